"""The files of a report beside its job: metrics over time, logs, and the differences of the code from its commit."""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from allranks.code.differences import MAX_CHARACTERS
from allranks.kube.job_codec import status_of
from allranks.local.records import point_of
from allranks.local.run_directories import CODE_FILE, DIFFERENCES_FILE, PROGRESS_FILE, StoredRun

MOST_POINTS = 1000
"""More points cannot be distinguished in a plot."""
MOST_PROGRESS = 64 * 2**20
"""Characters of progress.jsonl that are read. A run of a month with a few metrics has a few million."""
MOST_CHARACTERS = 2 * MAX_CHARACTERS
"""Of differences in a file that somebody else may have written."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The progress at one time."""

    time: datetime
    attempt: int
    step: int
    samples_per_second: float | None
    metrics: Mapping[str, float]
    epoch: int | None = None
    """Completed epochs; None if this line does not have them."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """All parts but the differences are empty for a job on a cluster."""

    samples: tuple[Sample, ...] = ()
    commit: str = ""
    dirty: bool = False
    """Whether tracked files differed from the commit."""
    logs: tuple[Path, ...] = field(default=())
    differences: str = ""
    """Of the code from the commit, as a unified diff."""
    missing: str = ""
    """Why there are none, as a sentence."""
    thinned: bool = False
    """Whether there are more samples."""
    active: bool = True
    """Whether something runs the job, if it has not finished."""


def read_run_files(directory: Path, most_points: int = MOST_POINTS) -> RunFiles:
    """Read the files of a run. Missing and damaged ones are left out, and points beyond about `most_points`."""
    code: Any = {}
    with contextlib.suppress(OSError, ValueError):
        code = json.loads((directory / CODE_FILE).read_text(encoding="utf-8"))
    code = code if isinstance(code, dict) else {}
    run = StoredRun(directory)
    samples = [_united(list(same)) for _, same in groupby(stored_samples(run), key=_place)]
    kept = tuple(_thinned(samples, most_points))
    return RunFiles(
        kept,
        str(code.get("commit") or ""),
        code.get("dirty") is True,
        tuple(sorted((directory / "logs").glob("*.log"))),
        _text(directory / DIFFERENCES_FILE),
        thinned=len(kept) < len(samples) or _size(directory / PROGRESS_FILE) > MOST_PROGRESS,
        active=run.running,
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_CHARACTERS)
    except OSError:
        return ""


def stored_samples(run: StoredRun, most: int | None = MOST_PROGRESS) -> list[Sample]:
    """Return all lines, by attempt and time. If a run was interrupted, the job file has a later point, which is added.

    `most`: limit of characters that are read."""
    samples = sorted(
        _samples(run.directory / PROGRESS_FILE, most), key=lambda sample: (sample.attempt, sample.time, sample.step)
    )
    newest = _sample(point_of(status_of(run.manifest))) if samples else None
    if newest and (newest.time > samples[-1].time or _place(newest) == _place(samples[-1])):
        samples.append(newest)
    return samples


def _place(sample: Sample) -> tuple[int, int]:
    return sample.attempt, sample.step


def _united(samples: Sequence[Sample]) -> Sample:
    """Return the samples of one step as one. The last one has no rate if the ranks have ended since: keep the one
    before."""
    rates = [sample.samples_per_second for sample in samples if sample.samples_per_second is not None]
    metrics = {name: value for sample in samples for name, value in sample.metrics.items()}
    epochs = [sample.epoch for sample in samples if sample.epoch is not None]
    epoch = epochs[-1] if epochs else None
    return replace(samples[-1], samples_per_second=rates[-1] if rates else None, metrics=metrics, epoch=epoch)


def _samples(path: Path, most: int | None) -> Iterator[Sample]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = file.read(most).splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError):
            if sample := _sample(json.loads(line)):
                yield sample


def _sample(point: Any) -> Sample | None:
    """Decode a point of progress.jsonl; None if it is damaged."""
    try:
        time = point["time"] if isinstance(point["time"], datetime) else datetime.fromisoformat(point["time"])
        values = point.get("metrics", {}).items()
        metrics = {str(name): math.nan if value is None else float(value) for name, value in values}
        rate = point.get("samplesPerSecond")
        rate = float(rate) if rate is not None and math.isfinite(rate) else None
        epoch = None if point.get("epoch") is None else int(point["epoch"])
        return Sample(time, int(point["attempt"]), int(point["step"]), rate, metrics, epoch) if time.tzinfo else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _thinned(samples: Sequence[Sample], most: int) -> Iterator[Sample]:
    """Yield every n-th point, the last one of each attempt, and all points of metrics that have few."""
    every = math.ceil(len(samples) / most)
    rare = set(_rare(samples, most)) if every > 1 else set()
    for place, sample in enumerate(samples):
        ends = place + 1 == len(samples) or samples[place + 1].attempt != sample.attempt
        if place % every == 0 or ends or not rare.isdisjoint(sample.metrics):
            yield sample


def _rare(samples: Sequence[Sample], most: int) -> Iterator[str]:
    """Yield the metrics with the fewest points, which together have at most `most`."""
    counts = Counter(name for sample in samples for name in sample.metrics)
    total = 0
    for name, count in sorted(counts.items(), key=itemgetter(1)):
        total += count
        if total > most:
            return
        yield name
