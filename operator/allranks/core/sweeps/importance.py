"""The importance of each parameter of a sweep: the share of the differences between trials that it explains alone.

The trials are ranked by the value of the metric, and grouped by the value of the parameter. The share is the variance
of the ranks between the groups, less the variance between groups of random trials (epsilon squared of Kruskal and
Wallis, in the form of Kelley 1935). It does not show parameters that matter only together with another one.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from allranks.api.sweep import Parameter, SweepSpec
from allranks.api.sweep_status import Trial

MIN_TRIALS = 10
"""Fewer trials show nothing."""
GROUPS = 4
"""Number of parts with equally many trials into which numbers are grouped."""


def compared(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that count. A stopped trial has the value at which it was stopped, as for TPE."""
    return [trial for trial in trials if trial.phase in ("Succeeded", "Stopped") and trial.value is not None]


def importances(spec: SweepSpec, trials: Iterable[Trial]) -> dict[str, float]:
    """Return parameter -> share from 0 to 1, the largest first. Empty with fewer than ten trials."""
    counted = compared(trials)
    if len(counted) < MIN_TRIALS:
        return {}
    ranks = _ranks([trial.value or 0.0 for trial in counted])
    shares = {
        name: _explained(_groups(parameter, [trial.parameters[name] for trial in counted]), ranks)
        for name, parameter in spec.parameters.items()
    }
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value. Equal values have the mean of their ranks."""
    order = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(order)))}
    count: defaultdict[float, int] = defaultdict(int)
    for value in values:
        count[value] += 1
    return [first[value] + (count[value] - 1) / 2 for value in values]


def _groups(parameter: Parameter, values: Sequence[str]) -> list[Hashable]:
    """Return the group of each trial. Equal values are in the same group."""
    if isinstance(parameter.space, list) or len(set(values)) <= GROUPS:
        return list(values)
    numbers = [float(value) for value in values]
    bounds = statistics.quantiles(numbers, n=GROUPS)
    return [sum(number > bound for bound in bounds) for number in numbers]


def _explained(groups: Sequence[Hashable], ranks: Sequence[float]) -> float:
    members: defaultdict[Hashable, list[float]] = defaultdict(list)
    for group, rank in zip(groups, ranks, strict=True):
        members[group].append(rank)
    mean, number, parts = statistics.fmean(ranks), len(ranks), len(members)
    total = sum((rank - mean) ** 2 for rank in ranks)
    if total == 0 or not 1 < parts < number:
        return 0.0
    within = sum((rank - statistics.fmean(inner)) ** 2 for inner in members.values() for rank in inner)
    return max(0.0, 1.0 - (within / (number - parts)) / (total / (number - 1)))
