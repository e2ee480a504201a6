"""What belongs to a report beside the job: all metrics over time, the code, and logs of a local run; of a job on a
cluster, what its code differs from the commit in."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from allranks.code.differences import MAX_CHARACTERS
from allranks.code.ship import config_map_of, stored_differences
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.local.run_directories import CODE_FILE, DIFFERENCES_FILE, PROGRESS_FILE, StoredRun

MOST_POINTS = 1000
"""More points cannot be distinguished in a plot."""
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
    active: bool = True
    """Whether something runs the job, if it has not finished."""


def read_run_files(directory: Path) -> RunFiles:
    """Missing and damaged files are left out."""
    code: Any = {}
    with contextlib.suppress(OSError, ValueError):
        code = json.loads((directory / CODE_FILE).read_text(encoding="utf-8"))
    code = code if isinstance(code, dict) else {}
    return RunFiles(
        tuple(_thinned(list(_samples(directory / PROGRESS_FILE)))),
        str(code.get("commit") or ""),
        code.get("dirty") is True,
        tuple(sorted((directory / "logs").glob("*.log"))),
        _text(directory / DIFFERENCES_FILE),
        active=StoredRun(directory).running,
    )


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_CHARACTERS)
    except OSError:
        return ""


async def read_differences(cluster: Cluster, job: Manifest) -> RunFiles:
    """What the code of a job on a cluster differs from its commit in, or why that cannot be read."""
    code = (job.get("spec") or {}).get("code") or {}
    name = config_map_of(job)
    if not name or code.get("dirty") is not True:
        return RunFiles()
    namespace = job["metadata"].get("namespace") or cluster.namespace
    try:
        found = await stored_differences(cluster, namespace, name)
    except (ClusterError, ValueError) as error:
        return RunFiles(missing=f"The differences are in the ConfigMap {name}, which cannot be read: {error}")
    none = f"The ConfigMap {name} has no differences: the same files were stored before, or they fill it"
    return RunFiles(differences=found, missing="" if found else none)


def _samples(path: Path) -> Iterator[Sample]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(line)
            time = datetime.fromisoformat(found["time"])
            metrics = {str(name): float(value) for name, value in found.get("metrics", {}).items()}
            rate = found.get("samplesPerSecond")
            if time.tzinfo is not None:
                yield Sample(
                    time,
                    int(found["attempt"]),
                    int(found["step"]),
                    float(rate) if rate is not None and math.isfinite(rate) else None,
                    metrics,
                )


def _thinned(samples: list[Sample]) -> Iterator[Sample]:
    """Every n-th point, and the last one of each attempt."""
    every = math.ceil(len(samples) / MOST_POINTS)
    for place, sample in enumerate(samples):
        if place % every == 0 or place + 1 == len(samples) or samples[place + 1].attempt != sample.attempt:
            yield sample
