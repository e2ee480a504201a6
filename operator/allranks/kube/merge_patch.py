"""JSON merge patches (RFC 7386). Arguments are never changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def diff(before: Mapping[str, Any], after: Mapping[str, Any], *, remove: bool = True) -> dict[str, Any]:
    """Return the patch that turns `before` into `after`, which has no nulls: in a patch they remove a field.

    Without `remove`, fields that only `before` has stay.
    """
    patch: dict[str, Any] = {key: None for key in before if key not in after} if remove else {}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := diff(old, value, remove=remove):
                patch[key] = inner
        elif value != old:
            patch[key] = value
    return patch


def apply(patch: Any, value: Any) -> Any:
    """Return `value` with the patch applied."""
    if not isinstance(patch, Mapping):
        return patch
    out = dict(value) if isinstance(value, Mapping) else {}
    for key, part in patch.items():
        if part is None:
            out.pop(key, None)
        else:
            out[key] = apply(part, out.get(key))
    return out
