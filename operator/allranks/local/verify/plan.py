"""Chooses when ranks are killed, from a seed and what a run without kills did."""

from __future__ import annotations

import bisect
import itertools
import random
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from allranks.local.verify.records import Save, Start

LARGE = 0.1
"""Of a checkpoint, a save writes at least this fraction of the bytes of the largest one. Other files are logs."""


@dataclass(frozen=True, slots=True)
class Aim:
    """One kill that is planned. Numbers between 0 and 1 choose the rank, and the time in the step or in the save."""

    kind: Literal["step", "save"]
    step: int
    """A rank is killed after this step is reported, or all ranks in the first save that begins after it."""
    rank: float
    moment: float


@dataclass(frozen=True, slots=True)
class Plan:
    aims: tuple[Aim, ...]
    step_seconds: float
    save_seconds: float
    logs: frozenset[str]
    """Patterns of files that no save of a checkpoint writes."""
    checkpoints: frozenset[str]
    """Patterns of checkpoints."""


def plan(starts: Sequence[Start], saves: Sequence[Save], left: Collection[str], kills: int, seed: int) -> Plan:
    """Aim every other kill at a save, in the order of their steps. The same seed gives the same steps.

    No kill is in the first tenth of the steps, which show whether both runs have the same losses without kills.
    `left`: patterns of the files that are in the checkpoint directory at the end; temporary files are not."""
    generator = random.Random(seed)
    written: dict[str, int] = {}
    for save in saves:
        for pattern, size in save.sizes.items():
            written[pattern] = max(size, written.get(pattern, 0))
    large = {pattern for pattern, size in written.items() if size >= LARGE * max(written.values())}
    times = sorted(time for start in starts for time in start.times.values())
    steps = sorted({step for start in starts for step in start.steps})
    of_checkpoints = [save for save in saves if not large.isdisjoint(save.sizes)]
    first = max(1, len(steps) // 10)
    # A save after the last step ends too late: the program may end at the same time.
    last_save = max((save.step for save in of_checkpoints if save.step < steps[-1]), default=0)
    to_save = bisect.bisect_right(steps, last_save)
    aims = []
    for number in range(kills):
        place, rank, moment = generator.random(), generator.random(), generator.random()
        in_save = number % 2 == 0 and first < to_save
        end = to_save if in_save else len(steps) - 1
        if first < end:
            step = steps[first + int(place * (end - first))]
            aims.append(Aim("save" if in_save else "step", step, rank, moment))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return Plan(
        tuple(sorted(aims, key=lambda aim: aim.step)),
        step_seconds=statistics.median(gaps) if gaps else 0.0,
        save_seconds=statistics.median(save.seconds for save in of_checkpoints) if of_checkpoints else 0.0,
        logs=frozenset(written) - large,
        checkpoints=frozenset(large).intersection(left) or frozenset(large),
    )
