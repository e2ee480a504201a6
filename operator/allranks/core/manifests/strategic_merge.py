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
"""Of these an item keeps only what its namesake has too (`retainKeys`): two volume sources exclude each other."""


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


def without_nulls(value: Any) -> Any:
    """A copy without the members that are null, however deep: in YAML a field with nothing after it is one."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value if item is not None]
    return value


def _merge_named(under: list[Any], over: list[Any], key: str, whole: bool) -> list[Any]:
    """Items of `under` in their order, merged with (or replaced by) their namesakes, then what is new."""
    named = {item.get(key): item for item in over if isinstance(item, Mapping)}
    out = []
    for item in under:
        namesake = named.pop(item.get(key), None) if isinstance(item, Mapping) else None
        if namesake is not None:
            merged = merge(item, namesake)
            item = {key: value for key, value in merged.items() if key in namesake} if whole else merged
        out.append(item)
    return out + list(named.values())
