"""Keeps steps that an attempt repeats out of the event files of TensorBoard, which would show both values of a step.

For the writers of PyTorch and tensorboardX. The first value stays, as in Weights & Biases.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from allranks.report.state import ATTEMPT, number_in


def skip_repeated_steps(writer: Any) -> None:
    """Extend `FileWriter` of `torch.utils.tensorboard.writer` or `tensorboardX.writer`."""
    if not number_in(ATTEMPT):
        return
    kind, event_type, begun = writer.FileWriter, writer.event_pb2.Event, time.time()
    add_event = kind.add_event
    folders: dict[str, dict[str, int]] = {}

    @wraps(add_event)
    def add(self: Any, event: Any, step: Any = None, *args: Any, **rest: Any) -> Any:
        if event.HasField("session_log"):  # `purge_step` of the program: TensorBoard hides the first values
            self.purges = True
        if step and event.HasField("summary") and not getattr(self, "purges", False):
            folder = str(self.get_logdir())
            if folder not in folders:
                folders[folder] = last_steps(folder, event_type, begun)
            for value in [value for value in event.summary.value if folders[folder].get(value.tag, 0) >= step]:
                event.summary.value.remove(value)
            if not event.summary.value:
                return None
        return add_event(self, event, step, *args, **rest)

    kind.add_event = add


def last_steps(folder: str, event_type: Any, before: float) -> dict[str, int]:
    """Return the last step of each tag in the event files that were begun before a time. A folder of an object store
    has none."""
    steps: dict[str, int] = {}
    for path in Path(folder).glob("*tfevents.*"):
        begun = path.name.partition("tfevents.")[2].partition(".")[0]
        if not begun.isdigit() or int(begun) >= int(before):
            continue
        for record in records(path):
            event = event_type.FromString(record)
            for value in event.summary.value:
                steps[value.tag] = max(event.step, steps.get(value.tag, 0))
    return steps


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a TFRecord file, without the end that a killed writer left incomplete."""
    size, place = path.stat().st_size, 0
    with path.open("rb") as file:
        while len(header := file.read(12)) == 12:  # the length, and its checksum
            [length] = struct.unpack("<Q", header[:8])
            place += length + 16
            if place > size:
                return
            yield file.read(length)
            file.seek(place)
