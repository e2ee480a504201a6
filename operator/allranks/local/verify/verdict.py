"""Decides from two runs, one without and one with kills, whether a program can be trusted to resume. Pure.

Steps before the first kill show how reproducible the program is. A metric that differs there is no evidence later.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from allranks.local.verify.records import Evidence, FileResult, Kill, Run

REPRODUCIBLE = 1e-3
"""A metric whose values without kills differ by at most this is compared, with LIMIT."""
LIMIT = 1e-2
ROUNDING = 1e-5
"""The accepted difference if there is none before the first kill: DistributedDataParallel, for example, adds in another
order in the first step of a process."""
SMALL = 1e-3
"""A smaller difference may be rounding that has grown in many steps."""

Answer = Literal["Yes", "No", "Unknown"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first value of the run with kills that differs from the unbroken run."""

    rank: str
    start: int
    """Number of the start of this rank, from 0."""
    step: int
    metric: str
    unbroken: float
    killed: float
    relative: float


@dataclass(frozen=True, slots=True)
class Losses:
    """The comparison of what all ranks reported."""

    metrics: Mapping[str, float]
    """Metric -> the accepted relative difference."""
    varying: Mapping[str, float]
    """Metric -> how much it differs before the first kill. It is not compared."""
    compared: int = 0
    """Number of results after a kill that were compared, without schedules such as a learning rate."""
    first: Difference | None = None
    worst: float = 0.0

    @property
    def is_reproducible(self) -> bool:
        """Return whether the losses of both runs, or without a loss all metrics, are the same before the first kill."""
        if any(_is_loss(name) for name in self.varying):
            return False
        return any(_is_result(name) for name in self.metrics)


@dataclass(frozen=True, slots=True)
class Resumption:
    """What followed a kill."""

    kill: Kill
    first: int | None
    """The first step that the killed rank reported after it, of several the lowest one; None if there was none."""
    repeated: int
    """Number of steps that had been reported before."""
    from_the_beginning: bool = False
    """Whether all ranks began with their first step. One rank alone may have a checkpoint of its own, or none yet."""


@dataclass(frozen=True, slots=True)
class Verdict:
    answer: Answer
    reasons: tuple[str, ...]
    """The most important one first."""
    hint: str
    losses: Losses
    resumptions: tuple[Resumption, ...]


def decide(evidence: Evidence) -> Verdict:
    """Return the verdict. Without enough evidence it is Unknown."""
    killed = evidence.killed or Run("Stopped")
    losses = compare_losses(evidence.unbroken, killed, evidence.kills, evidence.tolerance)
    resumptions = tuple(_resumptions(killed, evidence.kills))
    answer, reasons, hint = _answer(evidence, killed, losses, resumptions)
    return Verdict(answer, reasons, hint, losses, resumptions)


_Answer = tuple[Answer, tuple[str, ...], str]


def _answer(evidence: Evidence, killed: Run, losses: Losses, resumptions: tuple[Resumption, ...]) -> _Answer:
    return (
        _nothing_to_say(evidence)
        or _not_over_it(evidence, killed)
        or _started_again(resumptions)
        or _ended_early(evidence, killed)
        or _different(evidence, losses, killed)
        or _untested(evidence, losses, resumptions)
        or ("Yes", tuple(_proofs(evidence, losses)), _caveat(evidence))
    )


def _nothing_to_say(evidence: Evidence) -> _Answer | None:
    unbroken = evidence.unbroken
    if unbroken.ending == "Failed":
        text = unbroken.failures[-1][1] if unbroken.failures else "its ranks failed"
        return (
            "Unknown",
            (f"the run without kills failed: {text}",),
            "Correct the program first: allranks run shows it.",
        )
    if not unbroken.starts:
        return (
            "Unknown",
            ("no rank reported a step",),
            "Call report(step=..., loss=...) of allranks.report after each step, or set spec.progress.logPattern.",
        )
    if not unbroken.saves:
        return (
            "Unknown",
            ("the run without kills stored no file in the checkpoint directory",),
            "Save to the directory in ALLRANKS_CHECKPOINT_DIR, which is the mount path of spec.checkpoint.",
        )
    if not evidence.kills:
        return (
            "Unknown",
            ("the run is too short to kill a rank in it",),
            "Train for more steps, and save a checkpoint before the last one.",
        )
    return None


def _not_over_it(evidence: Evidence, killed: Run) -> _Answer | None:
    files = dict.fromkeys([*(file for kill in evidence.kills for file in kill.torn), *evidence.torn])
    torn = [f"a kill left a torn checkpoint, {file}" for file in files]
    if killed.ending == "Failed":
        text = killed.failures[-1][1] if killed.failures else "its ranks failed"
        hint = "Save to a temporary name and rename it, or load the checkpoint before a damaged one." if torn else ""
        return "No", (f"the run with kills failed: {text}", *torn), hint
    if killed.ending == "TimedOut":
        last = killed.starts[-1].last if killed.starts else 0
        reason = f"the run with kills had not ended after {killed.seconds:.0f} s, at step {last}"
        return "Unknown", (reason, *torn), "Give it more time with --time-limit, or read its logs if it hangs."
    return None


def _started_again(resumptions: tuple[Resumption, ...]) -> _Answer | None:
    for resumption in resumptions:
        if resumption.from_the_beginning:
            if resumption.kill.stored:
                reason = f"it started again with step {resumption.first}, although a complete checkpoint was stored"
                return "No", (reason,), "Load the newest checkpoint of ALLRANKS_CHECKPOINT_DIR at the start."
            if resumption.kill.torn:
                reason = f"it started again with step {resumption.first}: the only checkpoint was torn"
                hint = "Save to a temporary name, and rename it: until then the checkpoint before it stays."
                return "No", (reason, *resumption.kill.torn), hint
    return None


def _ended_early(evidence: Evidence, killed: Run) -> _Answer | None:
    last, expected = max(start.last for start in killed.starts), max(start.last for start in evidence.unbroken.starts)
    if evidence.until is None and last < expected:
        return "No", (f"it ended at step {last}, and the run without kills at step {expected}",), ""
    return None


def _different(evidence: Evidence, losses: Losses, killed: Run) -> _Answer | None:
    worst = max((file for file in evidence.files if file.result == "differs"), key=lambda f: f.worst, default=None)
    of_files = f"{worst.path}: {worst.detail}" if worst else ""
    if losses.first and losses.is_reproducible:
        first = losses.first
        reason = (
            f"{first.metric} of {first.rank} in step {first.step} is {first.killed!r} after a kill, and "
            f"{first.unbroken!r} in the run without kills ({_percent(first.relative)} apart)"
        )
        return "No", (reason, *([of_files] if of_files else ())), _cause(first, killed)
    if worst and not _within(worst, losses, evidence.tolerance):
        if losses.is_reproducible:
            hint = "Something that the loss does not show is not restored, such as an average of the weights."
            return "No", (f"the final checkpoints differ: {of_files}",), hint
        return _not_reproducible(losses, of_files)
    return None


def _not_reproducible(losses: Losses, of_files: str = "") -> _Answer:
    if losses.varying:
        name, difference = max(losses.varying.items(), key=lambda item: (_is_loss(item[0]), item[1]))
        reason = f"two runs differ before any kill: {name} by {_percent(difference)}"
        hint = "Set the seeds of Python, NumPy and the framework, and the order of the data; or accept it: --tolerance."
    else:
        reason = "no rank reported a loss, so that nothing shows whether two runs without kills are the same"
        hint = "Report the loss of each step: report(step=..., loss=...)."
    return "Unknown", (reason, *([f"the final checkpoints differ: {of_files}"] if of_files else ())), hint


def _untested(evidence: Evidence, losses: Losses, resumptions: tuple[Resumption, ...]) -> _Answer | None:
    if not any(resumption.kill.stored for resumption in resumptions):
        return (
            "Unknown",
            ("no checkpoint was stored before a kill, so that none was loaded",),
            "Save more often, or choose other kills with --seed and --kills.",
        )
    checked = any(file.result in ("equal", "same", "differs") for file in evidence.files)
    if not losses.compared and not checked:
        if losses.varying or not losses.metrics:
            return _not_reproducible(losses)
        return "Unknown", ("no step after a kill could be compared",), "Train for more steps."
    return None


def _proofs(evidence: Evidence, losses: Losses) -> Iterator[str]:
    if losses.compared:
        how = f"up to {_percent(losses.worst)}" if losses.worst else "bit by bit"
        names = ", ".join(losses.metrics)
        yield f"{losses.compared} values of {names} after a kill agree with the run without kills, {how}"
    same = [file for file in evidence.files if file.result in ("equal", "same")]
    near = [file for file in evidence.files if file.result == "differs"]
    if same:
        yield f"{len(same)} final checkpoint{'s are' if len(same) > 1 else ' is'} the same, bit by bit"
    if near:
        yield f"{len(near)} final checkpoints differ by at most {_percent(max(file.worst for file in near))}"


def _caveat(evidence: Evidence) -> str:
    in_saves = [kill for kill in evidence.kills if kill.kind == "save"]
    if not any(kill.torn or kill.unfinished for kill in in_saves):
        return "No kill met an unfinished save: try other moments with --seed and --kills."
    return ""


def _cause(first: Difference, killed: Run) -> str:
    """Return what is probably not restored."""
    if not _is_loss(first.metric):
        return ""
    if first.relative < SMALL:
        return f"It may be rounding: --tolerance {SMALL:g} accepts it."
    steps = list(killed.ranks[first.rank][first.start].steps)
    if first.step == steps[0]:
        return (
            "It differs in the first step after the restart: weights, the batch (the position of the sampler) or "
            "random numbers are not restored."
        )
    return (
        f"The steps before it are the same, from step {steps[0]} on: weights and batch are restored, and what changes "
        "the weights is not, such as the state of the optimizer, or the schedule of the learning rate."
    )


# --- losses ----------------------------------------------------------------------------------------------------------


def compare_losses(unbroken: Run, killed: Run, kills: tuple[Kill, ...], tolerance: float | None) -> Losses:
    """Compare all metrics of all steps: first before the first kill, then after it."""
    begin = kills[0].time if kills else math.inf
    before: dict[str, float] = {}
    for _, _, _, name, first, second in _pairs(unbroken, killed, 0.0, begin):
        before[name] = max(before.get(name, 0.0), relative(first, second))
    metrics, varying = {}, {}
    for name, difference in before.items():
        limit = tolerance if tolerance is not None else ROUNDING if difference == 0.0 else LIMIT
        if difference <= (REPRODUCIBLE if tolerance is None else tolerance):
            metrics[name] = limit
        else:
            varying[name] = difference
    compared, worst = 0, 0.0
    differences: list[Difference] = []
    for rank, start, step, name, first, second in _pairs(unbroken, killed, begin, math.inf):
        if name in metrics:
            compared += _is_result(name)
            difference = relative(first, second)
            worst = max(worst, difference)
            if difference > metrics[name]:
                differences.append(Difference(rank, start, step, name, first, second, difference))
    earliest = min(differences, key=lambda item: (item.start, item.step, not _is_loss(item.metric)), default=None)
    return Losses(metrics, varying, compared, earliest, worst)


def _pairs(unbroken: Run, killed: Run, since: float, until: float) -> Iterator[tuple[str, int, int, str, float, float]]:
    """Yield (rank, start, step, metric, value of the unbroken run, value) of steps in an interval of time."""
    for rank, starts in killed.ranks.items():
        expected: dict[int, dict[str, float]] = {}
        for start in unbroken.ranks.get(rank, ()):
            for step, metrics in start.steps.items():
                expected.setdefault(step, {}).update(metrics)
        for number, start in enumerate(starts):
            for step, metrics in start.steps.items():
                if since <= start.times[step] < until and step in expected:
                    for name in metrics.keys() & expected[step].keys():
                        yield rank, number, step, name, expected[step][name], metrics[name]


def _is_loss(metric: str) -> bool:
    return "loss" in metric.lower()


def _is_result(metric: str) -> bool:
    """Return whether the metric follows from the weights, and not from the number of the step alone."""
    return _PLANNED.isdisjoint(re.split(r"[^a-z]+", metric.lower()))


_PLANNED = frozenset({"lr", "learning", "rate", "epoch", "step", "momentum", "beta", "decay", "scale"})


def relative(first: float, second: float) -> float:
    """Return the difference relative to the larger value; 0 for two NaN."""
    if first == second or (math.isnan(first) and math.isnan(second)):
        return 0.0
    difference = abs(first - second) / max(abs(first), abs(second))
    return difference if math.isfinite(difference) else math.inf


def _within(file: FileResult, losses: Losses, tolerance: float | None) -> bool:
    """Return whether checkpoints of a program that is not exactly reproducible are near enough."""
    if tolerance is not None:
        return file.worst <= tolerance
    return losses.is_reproducible and file.worst <= max(losses.metrics.values())


# --- resumptions -----------------------------------------------------------------------------------------------------


def _resumptions(killed: Run, kills: tuple[Kill, ...]) -> Iterator[Resumption]:
    for number, kill in enumerate(kills):
        until = kills[number + 1].time if number + 1 < len(kills) else math.inf
        after = {
            rank: next((start for start in starts if kill.time < start.began < until), None)
            for rank, starts in killed.ranks.items()
        }
        resumed = after.get(kill.ranks[0])
        if resumed is None:
            yield Resumption(kill, None, 0)
            continue
        starts = killed.ranks[kill.ranks[0]]
        earlier = {step for start in starts if start.began < resumed.began for step in start.steps}
        again = all(start is not None and start.first <= killed.ranks[rank][0].first for rank, start in after.items())
        yield Resumption(kill, resumed.first, len(earlier & resumed.steps.keys()), again)


def _percent(difference: float) -> str:
    return f"{difference:.2g} of the value" if difference < 0.001 else f"{100 * difference:.3g} %"
