"""Random numbers of distributions, from an endless sequence of shares that are from 0 and less than 1.

The random module of Python may draw other numbers in its next version for the same seed, so it is not used.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator

from allranks.api import sweep_values
from allranks.api.sweep import Beta, Distribution, Exponential, Gamma, LogNormal, Normal, Range

_STANDARD = statistics.NormalDist()
_SMALLEST_SHARE = 2.0**-54
_LARGEST_LOG = math.log(sys.float_info.max)


def draw(distribution: Distribution, shares: Iterator[float]) -> float:
    """Return a number of the distribution, which takes as many shares as it needs."""
    match distribution:
        case Range() as bounds:
            return sweep_values.at(bounds, next(shares))
        case Normal() as normal:
            return normal.mu + normal.sigma * _normal(shares)
        case LogNormal() as normal:
            return _exp(normal.mu + normal.sigma * _normal(shares))
        case Exponential() as exponential:
            return -exponential.mean * math.log1p(-next(shares))
        case Gamma() as gamma:
            return _exp(math.log(gamma.scale) + _log_gamma(gamma.shape, shares))
        case Beta() as beta:
            first = _log_gamma(beta.alpha, shares)
            return 1 / (1 + _exp(_log_gamma(beta.beta, shares) - first))
    raise AssertionError(f"no random numbers of {type(distribution).__name__}")


def _normal(shares: Iterator[float]) -> float:
    return _STANDARD.inv_cdf(max(next(shares), _SMALLEST_SHARE))


def _exp(value: float) -> float:
    return math.exp(min(value, _LARGEST_LOG))


def _log_gamma(shape: float, shares: Iterator[float]) -> float:
    """Return the logarithm of a number of the gamma distribution with scale 1, by the method of Marsaglia and Tsang
    (2000). With a small shape, the number itself may be too small for a float."""
    if shape < 1:
        larger = _log_gamma(shape + 1, shares)
        return larger + math.log(1 - next(shares)) / shape
    center = shape - 1 / 3
    while True:
        normal = _normal(shares)
        cube = (1 + normal / math.sqrt(9 * center)) ** 3
        if cube > 0 and math.log(1 - next(shares)) < normal**2 / 2 + center * (1 - cube + math.log(cube)):
            return math.log(center * cube)
