"""One result of a check, and how a field's path is written."""

from __future__ import annotations

from typing import Literal, NamedTuple

Severity = Literal["error", "warning", "note"]


class Problem(NamedTuple):
    """`severity`: the API server would refuse an error; a warning is probably a mistake; a note is advice."""

    path: str
    message: str
    severity: Severity = "error"
    meant: str = ""
    """The field that a misspelt or misplaced one is probably meant to be."""


def below(path: str, key: str | int) -> str:
    """Return the path of a member: `spec.resources.limits[nvidia.com/gpu]`, `spec.containers[0]`."""
    if isinstance(key, int) or "." in key or "/" in key:
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def last_key(path: str) -> str:
    """Return the last key of a path: `nvidia.com/gpu` for `spec.resources.limits[nvidia.com/gpu]`."""
    return path[path.rindex("[") + 1 : -1] if path.endswith("]") else path.rpartition(".")[2]
