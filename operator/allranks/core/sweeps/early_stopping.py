"""Early stopping: compares the trials at equal numbers of steps, and stops those that are worse than others.

ASHA: Li et al., A System for Massively Parallel Hyperparameter Tuning (2020), in the form that stops trials instead of
pausing them. Median: Golovin et al., Google Vizier (2017).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

from allranks.api.status import ProgressStatus
from allranks.api.sweep import Stop, SweepSpec
from allranks.api.sweep_status import Check, Trial

MEDIAN_PEERS = 3
"""Other trials that rule Median needs at a check."""
MAX_CHECKS = 10
"""Later checks are left out: with factor 2, a trial has made 512 times the steps of its first check by then."""
_LATE = 1.5
"""A value that was reported later than this many times the steps of a check does not count for it."""


def default_min_steps(stop: Stop, total_steps: int) -> int:
    """Two checks in each trial."""
    return max(1, total_steps // stop.factor**2)


def steps_of_checks(stop: Stop, min_steps: int) -> Iterator[int]:
    """Endless for factor 2 and more."""
    return (min_steps * stop.factor**number for number in itertools.count())


def new_checks(trial: Trial, progress: ProgressStatus, spec: SweepSpec, min_steps: int) -> tuple[Check, ...]:
    """The checks that the trial has passed since the last observation, with the values of the metric there."""
    if spec.stop is None or progress.step is None:
        return ()
    metric, step = spec.objective.metric, progress.step
    passed = trial.checks[-1].step if trial.checks else 0
    due = [
        at for at in itertools.takewhile(lambda at: at <= step, steps_of_checks(spec.stop, min_steps)) if at > passed
    ]
    points = _points(progress, metric)
    found = [Check(step=at, value=value) for at in due if (value := _interpolated(points, at)) is not None]
    if due and metric in progress.metrics and (not found or found[-1].step < due[-1]) and step <= _LATE * due[-1]:
        found.append(Check(step=due[-1], value=progress.metrics[metric]))
    return tuple(found[: MAX_CHECKS - len(trial.checks)])


def is_worse(trial: Trial, checks: Iterable[Check], trials: Sequence[Trial], spec: SweepSpec) -> Check | None:
    """The check at which the trial is worse than the others, if it is at one of `checks`. `trials` includes it."""
    assert spec.stop is not None
    sign = 1 if spec.objective.goal == "Minimize" else -1
    for check in checks:
        others = [
            sign * there.value
            for other in trials
            if other.number != trial.number
            for there in other.checks
            if there.step == check.step
        ]
        value = sign * check.value
        if spec.stop.rule == "Median":
            if len(others) >= MEDIAN_PEERS and value > statistics.median(others):
                return check
        elif sum(other < value for other in others) >= math.ceil((len(others) + 1) / spec.stop.factor):
            return check
    return None


def _points(progress: ProgressStatus, metric: str) -> list[tuple[int, float]]:
    """(step, value) of the curve by step, if it is that of the metric. After a restart, later points count."""
    if progress.curve_metric != metric:
        return []
    return sorted({point.step: point.value for point in progress.curve if point.value is not None}.items())


def _interpolated(points: Sequence[tuple[int, float]], step: int) -> float | None:
    """The value at this step, between the two points around it."""
    before = [point for point in points if point[0] <= step]
    after = [point for point in points if point[0] >= step]
    if not before or not after:
        return None
    (left, low), (right, high) = before[-1], after[0]
    return low if left == right else low + (high - low) * (step - left) / (right - left)
