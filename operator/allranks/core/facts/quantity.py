"""Kubernetes resource quantities, such as `500m`, `64Gi` or `2e3`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", 1)}
_FORM = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+(?![A-Za-z]))?)([A-Za-z]{0,2})")
"""Source: apimachinery's resource.ParseQuantity. An exponent takes the place of a unit."""


def quantity(text: str) -> float:
    """The value in base units. Raises ValueError."""
    found = _FORM.fullmatch(text)
    if not found or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a quantity")
    return float(found[1]) * _UNITS[found[2]]


def whole_number(text: object) -> int:
    """The value as a whole number, rounded up. An invalid one counts as none: the API server rejects its object."""
    try:
        return max(0, math.ceil(quantity(str(text))))
    except (ValueError, OverflowError):
        return 0


def amount(resources: Mapping[str, object] | None, resource: str) -> int:
    """The limit of a resource of a container, or its request without a limit, rounded up; 0 without both."""
    for part in ("limits", "requests"):
        amounts = (resources or {}).get(part)
        if isinstance(amounts, Mapping) and resource in amounts:
            return whole_number(amounts[resource])
    return 0
