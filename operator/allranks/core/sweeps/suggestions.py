"""The parameters of a trial: a function of the seed and the number, and for TPE of the trials that have ended.

Random numbers are hashes, so they are the same on every machine and for every version of Python.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence

from allranks.api import sweep_values
from allranks.api.sweep import Distribution, IntRange, LogRange, Parameter, Range, SweepSpec
from allranks.api.sweep_status import Trial
from allranks.core.sweeps import distributions
from allranks.core.sweeps.model import Parameters, Suggestion

STARTUP_TRIALS = 10
"""The first trials of TPE are random, as in Optuna: there is nothing to learn from yet."""


def suggest(
    spec: SweepSpec, number: int, trials: Sequence[Trial], suggested: Mapping[int, Mapping[str, str]]
) -> Parameters | Suggestion:
    """Return the parameters of trial `number`, or the request for them."""
    if spec.algorithm == "Grid":
        return grid(spec, number)
    learned = tuple(trial for trial in trials if trial.phase in ("Succeeded", "Stopped") and trial.value is not None)
    if spec.algorithm == "Random" or number < STARTUP_TRIALS or not learned:
        return random(spec, number)
    if number in suggested:
        return dict(suggested[number])
    return Suggestion(number, learned)


def grid(spec: SweepSpec, number: int) -> Parameters:
    """Return the combination with this number; the last parameter by name changes fastest."""
    chosen: Parameters = {}
    for name in reversed(sweep_values.names(spec)):
        size = sweep_values.grid_size(spec.parameters[name]) or 1
        number, index = divmod(number, size)
        chosen[name] = sweep_values.grid_value(spec.parameters[name], index)
    return {name: chosen[name] for name in sweep_values.names(spec)}


def random(spec: SweepSpec, number: int) -> Parameters:
    """Return independent values for each trial and parameter."""
    return {name: _value(spec.parameters[name], _shares(spec.seed, number, name)) for name in sweep_values.names(spec)}


def _value(parameter: Parameter, shares: Iterator[float]) -> str:
    match parameter.space:
        case list() as values:
            return sweep_values.text(values[int(next(shares) * len(values))])
        case IntRange() as whole:
            return sweep_values.text(whole.min + int(next(shares) * sweep_values.whole_size(whole)) * whole.step)
        case Range(step=float()) as bounds if not isinstance(bounds, LogRange):
            # Each value is equally likely, also the first and the last one.
            return sweep_values.step_text(bounds, int(next(shares) * sweep_values.steps(bounds)))
        case Distribution() as distribution:
            return sweep_values.number_text(distributions.draw(distribution, shares), distribution)


def _shares(seed: int, number: int, name: str) -> Iterator[float]:
    """Yield numbers that are from 0 and less than 1, without an end."""
    for place in itertools.count():
        digest = hashlib.sha256(f"{seed}/{number}/{name}{f'/{place}' if place else ''}".encode()).digest()
        yield (int.from_bytes(digest[:8]) >> 11) / 2**53
