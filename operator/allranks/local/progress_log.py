"""progress.jsonl in the run directory: the progress with all metrics over time, one JSON object on each line.

`status.progress` has room for 64 points of one metric; this file has some thousand points of all metrics.
"""

from __future__ import annotations

import contextlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from allranks.api.status import FINISHED, Status

SHORTEST_SECONDS = 1.0
POINTS = 2000
"""The distance between two points is at least this fraction of the time so far, which bounds the file: a run of a month
has about 16,000 points."""


class ProgressLog:
    """Errors are ignored: a full disk must not end the training because of this file."""

    def __init__(self, path: Path) -> None:
        self._path, self._begun = path, False
        self._first: datetime | None = None
        self._last: datetime | None = None
        self._step: tuple[int, int | None] | None = None
        self._latest = Status()

    def note(self, status: Status) -> bool:
        """Records the progress if it is new, and not too early after the last point. Returns whether it did: then the
        job file must have it as well, or a run that is killed has two last values."""
        if status is self._latest:
            return False
        if not self._begun:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)  # that of an earlier run in the same directory
            self._begun = True
        if status.attempt != self._latest.attempt:
            self._write(self._latest)  # the end of the attempt before
        self._latest = status
        progress = status.progress
        if progress is None or progress.last_report is None:
            return False
        if self._first is None or self._last is None:
            self._first = self._last = progress.last_report
            return self._write(status)
        spacing = max(SHORTEST_SECONDS, (progress.last_report - self._first).total_seconds() / POINTS)
        if status.phase in FINISHED or (progress.last_report - self._last).total_seconds() >= spacing:
            return self._write(status)
        return False

    def _write(self, status: Status) -> bool:
        point = point_of(status)
        if point is None or (step := (point["attempt"], point["step"])) == self._step:
            return False
        assert status.progress
        self._step, self._last = step, status.progress.last_report
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(point) + "\n")
        return True


def point_of(status: Status) -> dict[str, Any] | None:
    """The newest progress as a line of the file; None before the first step of an attempt."""
    progress = status.progress
    # A new attempt begins with the progress of the one before, without the time of a first step.
    if progress is None or progress.last_report is None or progress.step is None or not progress.first_step_time:
        return None
    point = {
        "time": progress.last_report.isoformat().replace("+00:00", "Z"),
        "attempt": status.attempt,
        "step": progress.step,
        "epoch": progress.epoch,
        "samplesPerSecond": progress.samples_per_second,
        "metrics": progress.metrics,
    }
    return {key: value for key, value in point.items() if value is not None}
