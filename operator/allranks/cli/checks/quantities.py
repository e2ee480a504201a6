"""Amounts and names of compute resources, as the API server checks them.

Source: apimachinery's resource.ParseQuantity, and ValidateResourceRequirements in pkg/apis/core/validation.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from allranks.cli.checks.problem import Problem, below

_BINARY = {f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([A-Za-z]{0,2}))")
_WORDS = re.compile(r"\s*([+-]?[\d.]+)\s*([A-Za-z]*)\s*")
_BYTES = re.compile(r"memory|ephemeral-storage|hugepages-.*|sizeLimit|storage|sharedMemory")
STANDARD = ("cpu", "memory", "ephemeral-storage")
"""Resources of containers without a vendor, beside hugepages-SIZE."""
DEVICES = {
    "gpu": "nvidia.com/gpu",
    "gpus": "nvidia.com/gpu",
    "nvidia": "nvidia.com/gpu",
    "tpu": "google.com/tpu",
    "rdma": "rdma/hca",
}
_NICKNAMES = {"mem": "memory", "ram": "memory", "cpus": "cpu", "cores": "cpu", "storage": "ephemeral-storage"}
_MIN_MEMORY = 1024 * 1024


def value(text: str | int | float) -> Decimal:
    """The amount in base units. Raises ValueError."""
    found = _FORM.fullmatch(str(text))
    if not found or (found[3] and found[3] not in _BINARY and found[3] not in _DECIMAL):
        raise ValueError(f"{text!r} is not a quantity")
    number, exponent, unit = Decimal(found[1]), found[2], found[3] or ""
    if exponent:
        return number.scaleb(min(int(exponent[1:]), 30))
    return number * _BINARY[unit] if unit in _BINARY else number.scaleb(_DECIMAL[unit])


def problems(path: str, name: str, amount: Any) -> Iterator[Problem]:
    """An amount at `path`. `name`: the resource or the field that it belongs to, for the advice."""
    if isinstance(amount, bool) or not isinstance(amount, int | float | str):
        return  # a matter of types
    try:
        found = value(amount)
    except ValueError:
        yield Problem(path, _not_a_quantity(str(amount), name))
        return
    if found < 0:
        yield Problem(path, f"must not be negative, is {amount}")
    elif is_bytes(name) and 0 < found < _MIN_MEMORY:
        yield Problem(path, _too_few_bytes(str(amount), found), "warning")
    elif "/" in name and found != int(found):
        yield Problem(path, f"must be a whole number, not {amount}: a device is not divided")


def resource_names(path: str, resources: dict[str, Any]) -> Iterator[Problem]:
    """The names in the `limits` and `requests` of one container."""
    for part in ("limits", "requests"):
        amounts = resources.get(part)
        for name in amounts if isinstance(amounts, dict) else ():
            yield from _name_problems(below(f"{path}.{part}", str(name)), str(name))


def is_bytes(name: str) -> bool:
    """Whether amounts of it are bytes."""
    return _BYTES.fullmatch(name) is not None


def is_resource(name: str) -> bool:
    """Whether a field of this name is probably meant as the name of a resource, such as `memory`."""
    return name in STANDARD or name.startswith("hugepages-") or "/" in name or name.lower() in (DEVICES | _NICKNAMES)


def _name_problems(path: str, name: str) -> Iterator[Problem]:
    if name in STANDARD or re.fullmatch(r"hugepages-\w+", name):
        return
    if "/" in name:
        near = difflib.get_close_matches(name.lower(), _VENDORS, n=1, cutoff=0.85)
        if near and name not in _VENDORS and not name.startswith(tuple(f"{vendor}." for vendor in _VENDORS)):
            yield Problem(path, f"is not a usual device, did you mean {near[0]}?", "warning")
        return
    lower = name.lower()
    near = difflib.get_close_matches(lower, STANDARD, n=1, cutoff=0.75)
    if meant := DEVICES.get(lower) or _NICKNAMES.get(lower) or (near[0] if near else None):
        yield Problem(path, f"is not a resource, did you mean {meant}?")
    else:
        yield Problem(path, "is not a resource: names of devices begin with their vendor, as in nvidia.com/gpu")


_VENDORS = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "gpu.intel.com/xe",
    "gpu.intel.com/i915",
    "habana.ai/gaudi",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "vpc.amazonaws.com/efa",
)


def _not_a_quantity(text: str, name: str) -> str:
    what = f"{text!r} is not a quantity"
    if not (found := _WORDS.fullmatch(text)) or not found[2]:
        return f"{what}: write {_example(name)}"
    number, unit = found[1], found[2]
    if unit in _BINARY or unit in _DECIMAL:
        return f"{what}: remove the space: {number}{unit}"
    letter, rest = unit[0].upper(), unit[1:].lower()
    if letter in "KMGTPE" and rest in ("", "b", "i", "ib"):
        decimal = f"{number}{'k' if letter == 'K' else letter}"
        binary = f"{number}{letter}i"
        if "i" in rest:
            return f"{what}: write {binary}"
        power, of_two = _DECIMAL[decimal[-1]], 10 * ("KMGTPE".index(letter) + 1)
        return f"{what}: write {binary} ({number} x 2^{of_two}) or {decimal} ({number} x 10^{power})"
    return f"{what}: write {_example(name)}"


def _example(name: str) -> str:
    if name == "cpu":
        return "a number of cores, such as 4, or 500m for half a core"
    if is_bytes(name):
        return "a number with a unit, such as 64Gi or 500M"
    return "a whole number, such as 1" if "/" in name else "a number, such as 1, 500m or 64Gi"


def _too_few_bytes(text: str, found: Decimal) -> str:
    amount = "less than one byte" if found < 1 else f"{int(found)} bytes"
    digits = re.match(r"[\d.]+", text)
    number = digits[0] if digits else text
    if text.endswith("m"):
        return f"{text} is {amount} (m is a thousandth): did you mean {number}Mi?"
    return f"{text} is {amount}: did you mean {number}Gi or {number}Mi?"
