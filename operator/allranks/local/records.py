"""The records in a run directory: job.json, the job and its newest status, and progress.jsonl, the progress over time.

job.json has the format of `kubectl get -o json`. `status.progress` has room for 64 points of one metric; progress.jsonl
has some thousand points of all metrics, one JSON object on each line. The last line of a step replaces its earlier
ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allranks.api.job import API_VERSION, KIND, Job
from allranks.api.status import FINISHED, Status, Times
from allranks.core.accounting import time_accounting
from allranks.fields import encode

WRITE_INTERVAL_SECONDS = 5.0
ALIVE_INTERVAL_SECONDS = 30.0
"""Longest time between two writes, also of a job that reports nothing: the file says how long a killed run has run."""
SHORTEST_SECONDS = 1.0
POINTS = 2000
"""The distance between two points is at least this fraction of the time so far, which bounds the file: a run of a month
has about 16,000 points."""


class StateFile:
    """Writes job.json. Errors are ignored: a full disk must not end the training because of this file."""

    def __init__(self, path: Path, job: Job, interval: float = WRITE_INTERVAL_SECONDS) -> None:
        self._path, self._job, self._interval, self._wrote_at = path, job, interval, float("-inf")
        self._written: tuple[str, int] | None = None

    def write_first(self, status: Status) -> None:
        """Write the status with the current time, so that a run that is killed before the next write has an end. Keep
        the file of an earlier run in the directory."""
        if not self._path.exists():
            self.write(replace(status, times=Times(category="Queued", since=datetime.now(UTC))))

    def write_throttled(self, status: Status, at_once: bool = False) -> None:
        """Write progress now and then, a new phase or attempt at once: nothing may follow it for hours."""
        new_phase = (status.phase, status.attempt) != self._written
        if at_once or new_phase or time.monotonic() - self._wrote_at >= self._interval:
            self.write(status)

    async def keep_current(self, status: Callable[[], Status]) -> None:
        """Write the status now and then, until cancelled."""
        while True:
            await asyncio.sleep(ALIVE_INTERVAL_SECONDS)
            self.write(status())

    def write(self, status: Status) -> None:
        """Write the status with the times up to now."""
        status = replace(status, times=time_accounting.up_to(status, datetime.now(UTC)))
        self._wrote_at, self._written = time.monotonic(), (status.phase, status.attempt)
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": self._job.metadata.model_dump(by_alias=True, exclude_none=True, mode="json"),
            "spec": self._job.spec.model_dump(by_alias=True, exclude_none=True, mode="json"),
            "status": encode(status),
        }
        unfinished = self._path.with_name(f".{self._path.name}.tmp")
        with contextlib.suppress(OSError):
            unfinished.write_text(json.dumps(document, indent=1))
            unfinished.replace(self._path)


class ProgressLog:
    """Writes progress.jsonl. Errors are ignored: a full disk must not end the training because of this file."""

    def __init__(self, path: Path) -> None:
        self._path, self._begun = path, False
        self._first: datetime | None = None
        self._last: datetime | None = None
        self._written: list[Any] = []
        self._latest = Status()

    def note(self, status: Status) -> bool:
        """Record the progress if it is new, and not too early after the last point. Return whether it was recorded:
        then job.json must have it as well, or a run that is killed has two last values."""
        if status is self._latest:
            return False
        if not self._begun:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)  # of an earlier run in the same directory
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
        # A program may report further metrics of a step that has a line already: those of an epoch, of an evaluation.
        content = [(point or {}).get(key) for key in ("attempt", "step", "epoch", "metrics")]
        if point is None or content == self._written:
            return False
        assert status.progress
        self._written, self._last = content, status.progress.last_report
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(point) + "\n")
        return True


def point_of(status: Status) -> dict[str, Any] | None:
    """Return the newest progress as a line of the file; None before the first step of an attempt."""
    progress = status.progress
    # A new attempt begins with the progress of the one before, without the time of a first step.
    if progress is None or progress.last_report is None or progress.step is None or not progress.first_step_time:
        return None
    point = {
        "time": progress.last_report.isoformat().replace("+00:00", "Z"),
        "attempt": status.attempt,
        "step": progress.step if progress.metrics_step is None else progress.metrics_step,
        "epoch": progress.epoch,
        "samplesPerSecond": progress.samples_per_second,
        "metrics": progress.metrics,
    }
    return {key: value for key, value in point.items() if value is not None}
