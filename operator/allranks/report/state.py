"""The progress of a rank and its message: pure functions of numbers and a monotonic clock."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

GROUP_RANK = "ALLRANKS_GROUP_RANK"
"""The number of this process in the group that its library has formed, if that is smaller than the job."""
RANK = (GROUP_RANK, "RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMI_RANK", "ALLRANKS_RANK")
WORLD_SIZE = ("WORLD_SIZE",)
ATTEMPT = ("ALLRANKS_ATTEMPT",)
LOCAL_RANK = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "HOROVOD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "ALLRANKS_LOCAL_RANK",
)


class State(NamedTuple):
    """All reported values in one immutable object, which the other thread reads without a lock. Sums since the
    start."""

    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    stepped_at: float | None = None
    """Time when `step` last increased, or was first reported."""
    steps: int = 0
    """Number of steps in `step_seconds`: all except those before the first report."""
    step_seconds: float = 0.0
    samples: float = 0.0
    sample_seconds: float = 0.0
    sampled_at: float | None = None
    busy_seconds: float = 0.0
    busy_steps: int = 0
    checkpoint_step: int | None = None
    checkpoint_at: float | None = None


def advance(
    old: State,
    now: float,
    step: int | None,
    total_steps: int | None,
    epoch: int | None,
    samples: float | None,
    checkpoint: bool,
    busy: float | None,
) -> State:
    """Return the state after one report; None leaves a number as it was."""
    stepped_at, steps, step_seconds = old.stepped_at, old.steps, old.step_seconds
    if step is None:
        step = old.step
    elif old.step is None or step < old.step:  # the first report, or a return to a checkpoint
        stepped_at = now
    elif step > old.step:
        steps += step - old.step
        step_seconds += 0.0 if stepped_at is None else now - stepped_at
        stepped_at = now
    sampled, sample_seconds, sampled_at = old.samples, old.sample_seconds, old.sampled_at
    if samples is not None:
        if sampled_at is not None:  # the first value has no start time
            sampled += samples
            sample_seconds += now - sampled_at
        sampled_at = now
    return State(
        step,
        old.total_steps if total_steps is None else total_steps,
        old.epoch if epoch is None else epoch,
        stepped_at,
        steps,
        step_seconds,
        sampled,
        sample_seconds,
        sampled_at,
        old.busy_seconds if busy is None else old.busy_seconds + busy,
        old.busy_steps if busy is None else old.busy_steps + 1,
        step if checkpoint else old.checkpoint_step,
        now if checkpoint else old.checkpoint_at,
    )


class Means:
    """Rates and times of the steps since the last message with new steps. A message without new steps repeats them."""

    def __init__(self) -> None:
        self.samples_per_second: float | None = None
        self.step_seconds: float | None = None
        self.busy_seconds: float | None = None
        self.load_seconds: float | None = None
        self._steps = self._samples = self._busy = self._loads = (0.0, 0.0)

    def update(self, state: State, metered: tuple[float, int], loaded: float | None = None) -> None:
        """Compute the means since the last message. `metered`: totals of a meter, used if the program reports no busy
        time.

        `loaded`: seconds that the program has waited for data; None if it does not measure them."""
        if loaded is not None and state.steps == 0:
            self._loads = (loaded, 0.0)  # what comes before the first step belongs to no step
        elif loaded is not None:
            self.load_seconds, self._loads = mean(loaded, state.steps, self._loads, self.load_seconds)
        busy = (state.busy_seconds, state.busy_steps) if state.busy_steps else metered
        self.step_seconds, self._steps = mean(state.step_seconds, state.steps, self._steps, self.step_seconds)
        self.busy_seconds, self._busy = mean(busy[0], busy[1], self._busy, self.busy_seconds)
        self.samples_per_second, self._samples = mean(
            state.samples, state.sample_seconds, self._samples, self.samples_per_second
        )


def mean(
    total: float, count: float, before: tuple[float, float], last: float | None
) -> tuple[float | None, tuple[float, float]]:
    """Return (mean since `before`, the new `before`); the last mean if the count has not increased."""
    if count > before[1]:
        return max(total - before[0], 0.0) / (count - before[1]), (total, count)
    return last, before


def message(
    state: State,
    means: Means,
    metrics: Mapping[str, float],
    now: float,
    waiting: bool | None,
    done: bool,
    saves_on_request: bool = False,
    handled_request: int = 0,
) -> dict[str, Any]:
    """Return the message as sent."""
    checkpoint = None
    if state.checkpoint_at is not None:
        checkpoint = {"step": state.checkpoint_step, "ago": rounded(now - state.checkpoint_at)}
    return {
        "attempt": number_in(ATTEMPT),
        "rank": number_in(RANK),
        "localRank": number_in(LOCAL_RANK) or 0,
        "step": state.step,
        "totalSteps": state.total_steps,
        "epoch": state.epoch,
        "metrics": dict(metrics),
        "samplesPerSecond": rounded(means.samples_per_second),
        "stepSeconds": rounded(means.step_seconds),
        "busySeconds": rounded(means.busy_seconds),
        "loadSeconds": rounded(means.load_seconds),
        "checkpoint": checkpoint,
        "savesOnRequest": saves_on_request,
        "handledRequest": handled_request,
        "idle": None if state.stepped_at is None else rounded(now - state.stepped_at),
        "waiting": waiting,
        "done": done,
    }


def number_in(variables: tuple[str, ...]) -> int | None:
    """Return the number in the first of these variables. Read for each message: elastic ranks can change while they
    run."""
    for variable in variables:
        value = os.environ.get(variable, "")
        if value.isdecimal() and len(value) < 10:
            return int(value)
    return None


def rounded(value: float | None) -> float | None:
    """Round to microseconds: more digits are noise."""
    return None if value is None else round(max(value, 0.0), 6)
