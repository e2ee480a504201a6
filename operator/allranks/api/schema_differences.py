"""Compares two structural schemas, for example that of an installed CRD with that of this version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def differences(wanted: dict[str, Any], installed: dict[str, Any], path: str) -> Iterator[str]:
    """Paths of fields, and of values of enumerations, that are in `wanted` alone."""
    if installed.get("x-kubernetes-preserve-unknown-fields"):
        return
    if "enum" in wanted and "enum" in installed:
        yield from (f"{path}={value}" for value in wanted["enum"] if value not in installed["enum"])
    for name, child in wanted.get("properties", {}).items():
        if name not in installed.get("properties", {}):
            yield f"{path}.{name}"
        else:
            yield from differences(child, installed["properties"][name], f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if isinstance(wanted.get(inner), dict) and isinstance(installed.get(inner), dict):
            yield from differences(wanted[inner], installed[inner], f"{path}[]")
