"""Amounts and names of compute resources, as the API server checks them.

Source: ValidateResourceRequirements in pkg/apis/core/validation of Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from allranks.api.validation_messages import similar
from allranks.authoring.checks.problem import Problem, below
from allranks.core.facts.quantity import quantity

_BYTES = re.compile(r"memory|ephemeral-storage|hugepages-.*|sizeLimit|storage|sharedMemory")
STANDARD = ("cpu", "memory", "ephemeral-storage")
"""Resources of containers without a vendor, beside hugepages-SIZE."""
_MIN_MEMORY = 1024 * 1024


def problems(path: str, name: str, amount: Any) -> Iterator[Problem]:
    """An amount at `path`. `name`: the resource or the field that it belongs to, for the advice."""
    if isinstance(amount, bool) or not isinstance(amount, int | float | str):
        return  # a matter of types
    try:
        found = quantity(str(amount))
    except ValueError:
        yield Problem(path, f"{str(amount)!r} is not a quantity: write {_example(name)}")
        return
    if found < 0:
        yield Problem(path, f"must not be negative, is {amount}")
    elif is_bytes(name) and 0 < found < _MIN_MEMORY:
        yield Problem(path, _too_few_bytes(str(amount), found), "warning")
    elif "/" in name and found % 1:
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


def _name_problems(path: str, name: str) -> Iterator[Problem]:
    if name in STANDARD or re.fullmatch(r"hugepages-\w+", name):
        return
    if "/" in name:
        near = similar(name, _VENDORS, 0.85)
        if near and name not in _VENDORS and not name.startswith(tuple(f"{vendor}." for vendor in _VENDORS)):
            yield Problem(path, f"is not a usual device, did you mean {near}?", "warning")
        return
    if near := similar(name, STANDARD, 0.7):
        yield Problem(path, f"is not a resource, did you mean {near}?")
    else:
        yield Problem(path, "is not a resource: use cpu, memory, ephemeral-storage or a device, such as nvidia.com/gpu")


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


def _example(name: str) -> str:
    if name == "cpu":
        return "a number of cores, such as 4, or 500m for half a core"
    if is_bytes(name):
        return "a number with a unit, such as 64Gi or 500M"
    return "a whole number, such as 1" if "/" in name else "a number, such as 1, 500m or 64Gi"


def _too_few_bytes(text: str, found: float) -> str:
    if text.endswith("m"):
        return f"{text} is less than one byte (m is a thousandth): did you mean {text[:-1]}Mi?"
    return f"{text} is only {int(found)} bytes: write a unit, such as Gi or Mi"
