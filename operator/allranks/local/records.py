"""The records in a run directory: job.json, the job and its newest status, and progress.jsonl, the progress over time.

job.json has the format of `kubectl get -o json`. `status.progress` has room for 64 points of one metric; progress.jsonl
has some thousand points of each metric, one JSON object on each line: all values of a metric, or, if there are more
than VALUES between two points, the first, lowest, highest and last one, and their mean. Lines of the same step belong
together.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allranks.api.job import API_VERSION, KIND, Job
from allranks.api.status import FINISHED, Status, Times
from allranks.core.accounting import time_accounting
from allranks.core.facts.rank_reports import MetricValues
from allranks.fields import encode
from allranks.report.record import VALUES, Value, characteristic

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
        self._values: dict[tuple[int, str], MetricInterval] = {}
        """(attempt, metric) -> its values that are not written yet"""

    def record(self, attempt: int, metrics: Iterable[MetricValues]) -> None:
        """Take values of metrics, which the next point is written with."""
        for metric in metrics:
            self._values.setdefault((attempt, metric.name), MetricInterval()).add(metric)

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
        newest = max([progress.last_report, *(interval.newest for interval in self._values.values())])
        if self._first is None or self._last is None:
            self._first = self._last = progress.last_report
            return self._write(status)
        spacing = max(SHORTEST_SECONDS, (newest - self._first).total_seconds() / POINTS)
        if status.phase in FINISHED or (newest - self._last).total_seconds() >= spacing:
            return self._write(status)
        return False

    def _write(self, status: Status) -> bool:
        """Write the values of this attempt and its newest progress, in the order of their times."""
        lines = self._recorded_lines(status.attempt)
        point = point_of(status)
        # A program may report further metrics of a step that has a line already: those of an epoch, of an evaluation.
        content = [(point or {}).get(key) for key in ("attempt", "step", "epoch", "metrics")]
        if point is not None and content != self._written:
            self._written = content
            place = (point["attempt"], point["step"])
            same = next((line for line in lines if (line["attempt"], line["step"]) == place), None)
            if same is None:
                lines.append(point)
            else:
                same.update({**point, "time": same["time"], "metrics": {**point["metrics"], **same["metrics"]}})
        if not lines:
            return False
        lines.sort(key=lambda line: (line["attempt"], line["time"], line["step"]))
        self._last = max(line["time"] for line in lines)
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({**line, "time": _timestamp(line["time"])}) + "\n" for line in lines)
        return True

    def _recorded_lines(self, attempt: int) -> list[dict[str, Any]]:
        """Return a line for each step with values, and forget the values."""
        lines: dict[tuple[int, int], dict[str, Any]] = {}
        for reported, name in [key for key in self._values if key[0] <= attempt]:
            interval = self._values.pop((reported, name))
            for value in interval.values:
                first = {"time": datetime.fromtimestamp(value.at, UTC), "attempt": reported, "step": value.step}
                line = lines.setdefault((reported, value.step), {**first, "metrics": {}})
                line["metrics"][name] = value.value if math.isfinite(value.value) else None
            if interval.mean is not None:
                line.setdefault("means", {})[name] = interval.mean
        return list(lines.values())


class MetricInterval:
    """The values of a metric between two points: all of them, or the first, lowest, highest and last, and the mean."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.count = 0
        self._sum = 0.0

    def add(self, metric: MetricValues) -> None:
        values = [
            Value(step, math.nan if value is None else value, time.timestamp()) for time, step, value in metric.values
        ]
        finite = [value.value for value in values if math.isfinite(value.value)]
        self.values += values
        self.count += metric.count
        self._sum += sum(finite) if metric.mean is None else metric.mean * metric.count
        if max(self.count, len(self.values)) > VALUES:
            self.values = characteristic(self.values)

    @property
    def mean(self) -> float | None:
        """None if `values` are all values, or if the sum is too large."""
        are_all = self.count <= sum(math.isfinite(value.value) for value in self.values)
        return None if are_all or not math.isfinite(self._sum) else self._sum / self.count

    @property
    def newest(self) -> datetime:
        return datetime.fromtimestamp(max(value.at for value in self.values), UTC)


def point_of(status: Status) -> dict[str, Any] | None:
    """Return the newest progress as a line of the file; None before the first step of an attempt.

    It has the metrics of its step. Others that were reported at earlier steps have lines of their own."""
    progress = status.progress
    # A new attempt begins with the progress of the one before, without the time of a first step.
    if progress is None or progress.last_report is None or progress.step is None or not progress.first_step_time:
        return None
    step = progress.step if progress.metrics_step is None else progress.metrics_step
    records = progress.records or {}
    point = {
        "time": progress.last_report,
        "attempt": status.attempt,
        "step": step,
        "epoch": progress.epoch,
        "samplesPerSecond": progress.samples_per_second,
        "metrics": {
            name: value
            for name, value in progress.metrics.items()
            if name not in records or records[name].last_step == step
        },
    }
    return {key: value for key, value in point.items() if value is not None}


def _timestamp(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")
