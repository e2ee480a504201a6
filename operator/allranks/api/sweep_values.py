"""Values of parameters as text, and the values that algorithm Grid tries."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence

from allranks.api.sweep import MAX_TRIALS, Distribution, IntRange, LogRange, Parameter, Range, SweepSpec
from allranks.text import stored_bytes

VARIABLE_PREFIX = "ALLRANKS_PARAM_"
_DIGITS = 6
"""Significant digits of a chosen number: more would not change a training."""
_EXACT = 2**53
"""Up to here floats have all whole numbers."""


def text(value: str | int | float | bool) -> str:
    """Return the value as the program gets it."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def number_text(value: float, distribution: Distribution) -> str:
    """Return a number that was chosen, rounded to the step or to few digits, but not outside of a range."""
    bounds = distribution if isinstance(distribution, Range) else None
    if (step := distribution.step) is not None:
        multiple = round((value - (bounds.min if bounds else 0.0)) / step)
        return step_text(distribution, min(max(multiple, 0), steps(bounds) - 1) if bounds else multiple)
    rounded = float(f"{value:.{_DIGITS}g}")
    return text(min(max(rounded, bounds.min), bounds.max) if bounds else rounded)


def step_text(distribution: Distribution, multiple: int) -> str:
    """Return the value with this many steps above the smallest one, or above 0 without a smallest one."""
    assert distribution.step is not None
    first = distribution.min if isinstance(distribution, Range) else 0.0
    value = float(f"{first + multiple * distribution.step:.15g}")  # 0.3, not 0.30000000000000004
    whole = first.is_integer() and distribution.step.is_integer() and abs(value) <= _EXACT
    return text(int(value) if whole else value)


def steps(bounds: Range) -> int:
    """Return the number of values of a range with a step."""
    assert bounds.step is not None
    return math.floor((bounds.max - bounds.min) / bounds.step + 1e-9) + 1


def variable(name: str) -> str:
    """Return the environment variable of a parameter: ALLRANKS_PARAM_LEARNING_RATE for learning-rate."""
    return VARIABLE_PREFIX + re.sub(r"\W", "_", name).upper()


def grid_size(parameter: Parameter) -> int | None:
    """Return the number of values that algorithm Grid tries; None if the parameter has no finite set of them."""
    match parameter.space:
        case list() as values:
            return len(values)
        case IntRange() as whole:
            return whole_size(whole)
        case Range(step=None) as bounds:
            return bounds.points
        case Range() as bounds:
            return steps(bounds)
    return None


def whole_size(bounds: IntRange) -> int:
    return (bounds.max - bounds.min) // bounds.step + 1


def longest(parameter: Parameter) -> int:
    """Return the largest number of bytes that a value of the parameter takes in the status."""
    match parameter.space:
        case list() as values:
            return max(stored_bytes(text(value)) for value in values)
        case IntRange() as whole:
            return max(len(text(whole.min)), len(text(whole.max)))
    return len(text(-sys.float_info.max))


def grid_value(parameter: Parameter, index: int) -> str:
    """Return one of the values that algorithm Grid tries. `index` is less than `grid_size`."""
    match parameter.space:
        case list() as values:
            return text(values[index])
        case IntRange() as whole:
            return text(whole.min + index * whole.step)
        case Range(step=None, points=int(points)) as bounds:
            return number_text(at(bounds, index / (points - 1)), bounds)
        case Range() as bounds:
            return step_text(bounds, index)
    raise AssertionError("a distribution without bounds has no grid")


def at(bounds: Range, share: float) -> float:
    """Return the number at this share (0 to 1) of a range."""
    if isinstance(bounds, LogRange):
        low, high = math.log(bounds.min), math.log(bounds.max)
        return math.exp(low + share * (high - low))
    return bounds.min + share * (bounds.max - bounds.min)


def combinations(spec: SweepSpec) -> int | None:
    """Return the number of trials of algorithm Grid; None if a parameter has no finite set of values."""
    out = 1
    for size in map(grid_size, spec.parameters.values()):
        if size is None:
            return None
        out *= size
    return out


def number_of_trials(spec: SweepSpec) -> int:
    """Return the number of trials of a valid sweep."""
    if spec.algorithm == "Grid":
        return min(spec.trials or MAX_TRIALS, combinations(spec) or 0)
    return spec.trials or 0


def names(spec: SweepSpec) -> Sequence[str]:
    """Return the parameters in a fixed order: the API server does not keep the order of a manifest."""
    return sorted(spec.parameters)
