"""Values of parameters as text, and the values that algorithm Grid tries."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence

from allranks.api.sweep import MAX_TRIALS, IntRange, LogRange, Parameter, Range, SweepSpec
from allranks.text import stored_bytes

VARIABLE_PREFIX = "ALLRANKS_PARAM_"
_DIGITS = 6
"""Significant digits of a chosen number: more would not change a training."""


def text(value: str | int | float | bool) -> str:
    """Return the value as the program gets it."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def number_text(value: float, within: Range) -> str:
    """Return a number that was chosen from a range, in few digits but not outside of the range."""
    rounded = float(f"{value:.{_DIGITS}g}")
    return text(min(max(rounded, within.min), within.max))


def variable(name: str) -> str:
    """Return the environment variable of a parameter: ALLRANKS_PARAM_LEARNING_RATE for learning-rate."""
    return VARIABLE_PREFIX + re.sub(r"\W", "_", name).upper()


def grid_size(parameter: Parameter) -> int | None:
    """Return the number of values that algorithm Grid tries; None for a range without `points`."""
    match parameter.values, parameter.whole, parameter.uniform or parameter.log_uniform:
        case list() as values, _, _:
            return len(values)
        case _, IntRange() as whole, _:
            return whole_size(whole)
        case _, _, Range() as bounds:
            return bounds.points
    return None


def whole_size(bounds: IntRange) -> int:
    return (bounds.max - bounds.min) // bounds.step + 1


def longest(parameter: Parameter) -> int:
    """Return the largest number of bytes that a value of the parameter takes in the status."""
    if parameter.values is not None:
        return max(stored_bytes(text(value)) for value in parameter.values)
    if parameter.whole is not None:
        return max(len(text(parameter.whole.min)), len(text(parameter.whole.max)))
    return len(text(-sys.float_info.max))


def grid_value(parameter: Parameter, index: int) -> str:
    """Return one of the values that algorithm Grid tries. `index` is less than `grid_size`."""
    if parameter.values is not None:
        return text(parameter.values[index])
    if parameter.whole is not None:
        return text(parameter.whole.min + index * parameter.whole.step)
    bounds = parameter.log_uniform or parameter.uniform
    assert bounds is not None
    assert bounds.points is not None
    return number_text(at(bounds, index / (bounds.points - 1)), bounds)


def at(bounds: Range, share: float) -> float:
    """Return the number at this share (0 to 1) of a range."""
    if isinstance(bounds, LogRange):
        low, high = math.log(bounds.min), math.log(bounds.max)
        return math.exp(low + share * (high - low))
    return bounds.min + share * (bounds.max - bounds.min)


def combinations(spec: SweepSpec) -> int | None:
    """Return the number of trials of algorithm Grid; None if a parameter is a range without `points`."""
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
