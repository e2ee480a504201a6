"""Merges pod templates as a Kubernetes strategic merge patch does: maps by key, lists of named items by name.

Source of the list keys: the `patchMergeKey` tags of k8s.io/api/core/v1 `PodSpec` and `Container`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MERGE_KEYS = {
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
_RETAIN_KEYS = frozenset({"env", "volumes"})
"""Lists with patch strategy `retainKeys`: an overridden item keeps only the members that the override has as well,
because a volume, for example, can have only one source."""


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `under` with `over` merged into it. A null in `over` removes the member."""
    out = dict(under)
    for key, value in over.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict):
            below = out.get(key)
            out[key] = merge(below if isinstance(below, dict) else {}, value)
        elif isinstance(value, list) and isinstance(out.get(key), list) and key in MERGE_KEYS:
            out[key] = _merge_named(out[key], value, MERGE_KEYS[key], key in _RETAIN_KEYS)
        else:
            out[key] = value
    return out


def without_nulls(value: Any) -> Any:
    """Return a deep copy without null members. In YAML, a field without a value is null."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value if item is not None]
    return value


def _merge_named(under: list[Any], over: list[Any], key: str, retain: bool) -> list[Any]:
    """Return the items of `under`, merged with (or replaced by) items of the same name, then the new items."""
    if any(isinstance(item, dict) and isinstance(item.get(key), dict | list) for item in (*under, *over)):
        return over  # no name: the API server refuses the pod
    by_name = {item.get(key): item for item in over if isinstance(item, dict)}
    out = []
    for item in under:
        override = by_name.pop(item.get(key), None) if isinstance(item, dict) else None
        if override is not None:
            merged = merge(item, override)
            item = {key: value for key, value in merged.items() if key in override} if retain else merged
        out.append(item)
    return out + list(by_name.values())
