"""What the two runs leave: the steps that ranks recorded, the kills, and the comparison of checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Metrics = Mapping[str, float]
Ending = Literal["Succeeded", "Failed", "Stopped", "TimedOut"]
"""Stopped: it reached the last step to compare."""


@dataclass(frozen=True, slots=True)
class Line:
    """One report of a rank. `process` is the name of the file, which is different for each process."""

    process: str
    pid: int
    replica: str
    attempt: int
    time: float
    step: int
    rank: int | None = None
    metrics: Metrics = field(default_factory=dict)
    python: str = ""
    """The interpreter of the process."""

    @property
    def key(self) -> tuple[str, int]:
        """Identifies the rank over its restarts."""
        return self.replica, -1 if self.rank is None else self.rank

    @property
    def rank_name(self) -> str:
        return self.replica if self.rank is None else f"rank {self.rank}"


@dataclass(slots=True)
class Start:
    """The steps of one rank from a start, or a return to an earlier step, to the next one."""

    attempt: int
    began: float
    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)

    @property
    def first(self) -> int:
        return next(iter(self.steps))

    @property
    def last(self) -> int:
        return max(self.steps)


def starts(lines: Iterable[Line]) -> dict[str, tuple[Start, ...]]:
    """Return the starts of each rank. The first one is the lowest rank that reports metrics, or steps if none does."""
    by_rank: dict[tuple[bool, int, str], list[Line]] = {}
    for line in sorted(lines, key=lambda line: line.time):
        by_rank.setdefault((line.rank is None, line.rank or 0, line.replica), []).append(line)
    ranks = sorted(by_rank, key=lambda rank: (not any(line.metrics for line in by_rank[rank]), rank))
    return {by_rank[rank][0].rank_name: tuple(_starts_of(by_rank[rank])) for rank in ranks}


def _starts_of(lines: Iterable[Line]) -> list[Start]:
    result: list[Start] = []
    process, step = "", -1
    for line in lines:
        if line.process != process or line.step < step:
            result.append(Start(line.attempt, line.time))
        process, step = line.process, line.step
        result[-1].steps.setdefault(step, {}).update(line.metrics)
        result[-1].times.setdefault(step, line.time)
    return result


@dataclass(frozen=True, slots=True)
class Save:
    """Changes of files in the checkpoint directory that belong together."""

    step: int
    """The step that was reported last when it began."""
    began: float
    seconds: float
    sizes: Mapping[str, int]
    """Name of a file, with `#` for each number -> bytes that were written."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill (SIGKILL) of ranks."""

    kind: Literal["step", "save"]
    """`step`: a rank at a random time in a step. `save`: all ranks at a random time in a save."""
    step: int
    """The step that was reported last."""
    time: float
    ranks: tuple[str, ...]
    delay: float
    """Seconds since the report of the step, or since the beginning of the save."""
    stored: bool
    """Whether a complete checkpoint was in the directory."""
    torn: tuple[str, ...] = ()
    """Files of which only a part was written, under the name of a checkpoint: `NAME: REASON`."""
    unfinished: tuple[str, ...] = ()
    """Files that a save left under a temporary name."""


@dataclass(frozen=True, slots=True)
class FileResult:
    """The comparison of one checkpoint of both runs."""

    path: str
    other: str
    """Its path in the run with kills, which may have other numbers."""
    result: Literal["equal", "same", "differs", "not compared"]
    """`equal`: the same bytes. `same`: the same values in other bytes."""
    detail: str = ""
    worst: float = 0.0
    """The largest relative difference of two numbers."""


@dataclass(frozen=True, slots=True)
class Run:
    """One of the two runs."""

    ending: Ending
    ranks: Mapping[str, tuple[Start, ...]] = field(default_factory=dict)
    """Rank -> its starts. The first one is the lowest rank that reports metrics."""
    failures: tuple[tuple[int, str], ...] = ()
    """(attempt, what failed) of all failures."""
    seconds: float = 0.0
    saves: int = 0

    @property
    def starts(self) -> tuple[Start, ...]:
        return next(iter(self.ranks.values()), ())


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the verdict is about."""

    unbroken: Run
    killed: Run | None
    kills: tuple[Kill, ...] = ()
    files: tuple[FileResult, ...] = ()
    torn: tuple[str, ...] = ()
    """Checkpoints of the run with kills that are not complete at its end: `NAME: REASON`."""
    tolerance: float | None = None
    """The relative difference that the user accepts; None: equal bits, where the program is reproducible."""
    until: int | None = None
    """The last step that is compared, if the runs were not to end by themselves."""
