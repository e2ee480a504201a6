"""Writes the record of metrics as event files, which TensorBoard shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from allranks.errors import AllranksError
from allranks.extras import install_command
from allranks.views.report.history import MetricValue


def write_event_files(values: Sequence[MetricValue], directory: Path) -> int:
    """Write each step once, as trackers have it, and return the number of values. Raise AllranksError.

    Values that an attempt repeats are left out, and values without a time, which TensorBoard needs.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise AllranksError(
            f"event files of TensorBoard need the Python package tensorboardX, which is not installed: "
            f"{install_command('tensorboard')}"
        ) from error
    if next(directory.glob("*tfevents*"), None):
        raise AllranksError(
            f"{directory} has event files already, to which TensorBoard would add these: name a new one"
        )
    timed = [(value, value.time) for value in values if value.time is not None and not value.repeated]
    if not timed:
        return 0
    try:
        with SummaryWriter(str(directory)) as writer:
            for value, time in timed:
                writer.add_scalar(value.metric, value.value, value.step, walltime=time.timestamp())
    except OSError as error:
        raise AllranksError(f"cannot write {directory}: {error.strerror}") from error
    return len(timed)
