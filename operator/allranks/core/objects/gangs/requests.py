"""The resources that pods request, as the scheduler adds them up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from allranks.core.facts.model import Manifest
from allranks.core.facts.quantity import quantity


def of_gang(min_by_role: Mapping[str, int], templates: Mapping[str, Manifest]) -> Manifest:
    """Return the requests of all pods that a gang needs, as quantities."""
    total: dict[str, float] = {}
    for role, count in min_by_role.items():
        for name, value in of_pod(templates[role]["spec"]).items():
            total[name] = total.get(name, 0) + count * value
    return {name: _text(name, value) for name, value in sorted(total.items()) if value}


def of_pod(spec: Mapping[str, Any]) -> dict[str, float]:
    """A pod's requests: those of its containers and sidecars, or of one of its init containers if that needs more, and
    the overhead."""
    running: dict[str, float] = {}
    most: dict[str, float] = {}
    for container in spec.get("initContainers") or ():
        own = _of_container(container)
        if container.get("restartPolicy") == "Always":
            running = _sum(running, own)
            own = running
        else:
            own = _sum(running, own)
        most = {name: max(most.get(name, 0), own.get(name, 0)) for name in {*most, *own}}
    for container in spec.get("containers") or ():
        running = _sum(running, _of_container(container))
    pod = {name: max(running.get(name, 0), most.get(name, 0)) for name in {*running, *most}}
    return _sum(pod, _values(spec.get("overhead") or {}))


def _of_container(container: Mapping[str, Any]) -> dict[str, float]:
    """A limit without a request is the request."""
    resources = container.get("resources") or {}
    return {**_values(resources.get("limits") or {}), **_values(resources.get("requests") or {})}


def _values(amounts: Mapping[str, Any]) -> dict[str, float]:
    out = {}
    for name, amount in amounts.items():
        try:
            out[name] = quantity(str(amount))
        except ValueError:
            continue  # the API server rejects the pod, and its message is shown
    return out


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {*one, *other}}


def _text(resource: str, value: float) -> str:
    if resource != "cpu" or value == int(value):
        return str(math.ceil(value))
    return f"{math.ceil(round(value * 1000, 6))}m"
