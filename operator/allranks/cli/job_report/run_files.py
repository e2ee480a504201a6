"""What a local run stores beside its job: all metrics over time, the commit of its code, and logs."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from allranks.local.run_directories import CODE_FILE, PROGRESS_FILE

MOST_POINTS = 1000
"""More points cannot be distinguished in a plot."""


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
    """All parts are empty for a job on a cluster."""

    samples: tuple[Sample, ...] = ()
    commit: str = ""
    dirty: bool = False
    """Whether tracked files differed from the commit."""
    logs: tuple[Path, ...] = field(default=())


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
    )


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
