"""Kubernetes resource quantities, such as `500m`, `64Gi` or `2e3`, and the sum of what pods request."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from allranks.api.job import Resources

_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", 1)}
_FORM = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+(?![A-Za-z]))?)([A-Za-z]{0,2})")
"""Source: apimachinery's resource.ParseQuantity. An exponent takes the place of a unit."""


def quantity(text: str) -> float:
    """Return the value in base units. Raises ValueError."""
    match = _FORM.fullmatch(text)
    if not match or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a quantity")
    return float(match[1]) * _UNITS[match[2]]


def whole_number(text: object) -> int:
    """Return the value rounded up; 0 for an invalid one, because the API server rejects its object."""
    try:
        return max(0, math.ceil(quantity(str(text))))
    except (ValueError, OverflowError):
        return 0


def amount(resources: Mapping[str, object] | None, resource: str) -> int:
    """Return the limit of a resource of a container, or its request without a limit, rounded up; 0 without both."""
    for part in ("limits", "requests"):
        amounts = (resources or {}).get(part)
        if isinstance(amounts, Mapping) and resource in amounts:
            return whole_number(amounts[resource])
    return 0


def gang_requests(min_by_role: Mapping[str, int], templates: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the requests of all pods that a gang needs, as quantities."""
    total: dict[str, float] = {}
    for role, count in min_by_role.items():
        for name, value in pod_requests(templates[role]["spec"]).items():
            total[name] = total.get(name, 0) + count * value
    return {name: _quantity_text(name, value) for name, value in sorted(total.items()) if value}


def pod_requests(spec: Mapping[str, Any]) -> dict[str, float]:
    """Return the requests of a pod, as the scheduler adds them up.

    They are the sum over its containers and sidecars, or one of its init containers if that needs more, and the
    overhead.
    """
    running: dict[str, float] = {}
    most: dict[str, float] = {}
    for container in spec.get("initContainers") or ():
        requests = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            running = _summed(running, requests)
            requests = running
        else:
            requests = _summed(running, requests)
        most = {name: max(most.get(name, 0), requests.get(name, 0)) for name in {*most, *requests}}
    for container in spec.get("containers") or ():
        running = _summed(running, _container_requests(container))
    pod = {name: max(running.get(name, 0), most.get(name, 0)) for name in {*running, *most}}
    return _summed(pod, _quantities(spec.get("overhead") or {}))


def _container_requests(container: Mapping[str, Any]) -> dict[str, float]:
    """Return the requests of a container. A limit without a request is the request."""
    resources = container.get("resources") or {}
    return {**_quantities(resources.get("limits") or {}), **_quantities(resources.get("requests") or {})}


def _quantities(amounts: Mapping[str, Any]) -> dict[str, float]:
    out = {}
    for name, amount in amounts.items():
        try:
            out[name] = quantity(str(amount))
        except ValueError:
            continue  # the API server rejects the pod, and its message is shown
    return out


def _summed(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {*first, *second}}


def _quantity_text(resource: str, value: float) -> str:
    if resource != "cpu" or value == int(value):
        return str(math.ceil(value))
    return f"{math.ceil(round(value * 1000, 6))}m"


def quantity_problems(resources: Resources | None) -> list[tuple[str, str]]:
    """Return (path below `resources`, message) of amounts that are no quantities."""
    out = []
    for part in ("requests", "limits"):
        for name, amount in (getattr(resources, part, None) or {}).items():
            try:
                quantity(str(amount))
            except ValueError as error:
                out.append((f"{part}.{name}", f"{error}: write it as 500m, 2 or 4Gi, for example"))
    return out
