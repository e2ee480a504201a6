"""Lays one pod template over another as Kubernetes' strategic merge does: maps by key, lists of named things by name.

Source of the keys: the `patchMergeKey` tags of k8s.io/api/core/v1 `PodSpec` and `Container`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""List field -> the member that identifies an item. Any other list is replaced as a whole."""
_WHOLE = frozenset({"env", "volumes"})
"""Of these a namesake replaces the item: value and valueFrom, or two volume sources, exclude each other."""


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `under`; a null in `over` removes. Neither is changed."""
    out = dict(under)
    for key, value in over.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping):
            below = out.get(key)
            out[key] = merge(below if isinstance(below, Mapping) else {}, value)
        elif isinstance(value, list) and isinstance(out.get(key), list) and key in _KEYS:
            out[key] = _merge_named(out[key], value, _KEYS[key], key in _WHOLE)
        else:
            out[key] = value
    return out


def _merge_named(under: list[Any], over: list[Any], key: str, whole: bool) -> list[Any]:
    """Items of `under` in their order, merged with (or replaced by) their namesakes, then what is new."""
    named = {item.get(key): item for item in over if isinstance(item, Mapping)}
    out = []
    for item in under:
        namesake = named.pop(item.get(key), None) if isinstance(item, Mapping) else None
        if namesake is not None:
            item = dict(namesake) if whole else merge(item, namesake)
        out.append(item)
    return out + list(named.values())
