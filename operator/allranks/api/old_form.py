"""The spelling of version 0.1, before the API followed the Kubernetes conventions: `action: restart` is now `Restart`.

Manifests in the old form are refused with a sentence that says what to write. Stored jobs in the old form keep running:
what was stored by an earlier operator is converted when it is decoded (`kube/job_codec.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from allranks.api.crd import Schema, root_schema
from allranks.api.status import FINISHED

_CURE = " (allranks convert rewrites the file)"
ITEMS = "[]"
"""A step into every item of a list."""
Path = tuple[str, ...]

STRAGGLERS: Path = ("progress", "stragglerFactor")
"""A number, 1.5. Its successor is a percentage, `stragglerPercent: 150`."""
PERCENT = "stragglerPercent"

_ALWAYS_UPPER_CAMEL: frozenset[Path] = frozenset(
    {
        ("cleanPodPolicy",),
        ("inputs", ITEMS, "mode"),
        ("mpi", "implementation"),
        ("mpi", "slotsPerWorker"),
        ("notify", ITEMS, "occasions", ITEMS),
        ("notify", ITEMS, "webhook", "format"),
        ("outputs", ITEMS, "when"),
        ("spmd", "processesPerPod"),
        ("utilization", "action"),
    }
)
"""Fields of spec whose values had today's form from the beginning."""
_CATEGORIES = {
    "queued": "Queued",
    "starting": "Starting",
    "productive": "Productive",
    "lost": "Lost",
    "over": "Finished",
}
"""Values of `status.times.state`, which is now `category`."""


@cache
def values() -> Mapping[Path, Mapping[str, str]]:
    """Path below spec -> old value -> today's value, of every field whose values have a new form."""
    found: dict[Path, Mapping[str, str]] = {("success",): {"all": "All"}}  # its schema has no list of values
    for path, schema in _fields(root_schema()["properties"]["spec"], ()):
        word = schema.get("pattern", "").strip("^$") if schema.get("x-kubernetes-int-or-string") else ""
        names = {_old(value): value for value in schema.get("enum", [word] if word.isalpha() else [])}
        changed = {old: new for old, new in names.items() if old != new}
        if changed and path not in _ALWAYS_UPPER_CAMEL:
            found[path] = changed
    return found


def new_value(location: Path, value: Any) -> str | None:
    """Today's form of an old value at this path below spec; None if the value has no old form."""
    return values().get(location, {}).get(value) if isinstance(value, str) else None


def percent(factor: Any) -> int:
    """The `stragglerPercent` of a `stragglerFactor`."""
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool) and math.isfinite(factor)
    return min(100_000, max(101, round(factor * 100))) if is_number else 150


def sentence(location: Sequence[int | str], value: Any) -> str | None:
    """What to write for a value in the old form at this path of a manifest; None if it has no old form."""
    path = tuple(ITEMS if isinstance(step, int) else step for step in location[1:])
    if path == STRAGGLERS:
        return f"is the old form: write {PERCENT}: {percent(value)}{_CURE}"
    new = new_value(path, value)
    return f"{value} is the old form: write {new}{_CURE}" if new else None


def spec(stored: Any) -> Any:
    """A stored spec in today's form; the same object if it has that form already. Wrong types are left as they are."""
    for path, names in values().items():
        stored = _replaced(stored, path, names)
    return _with_percent(stored)


def status(stored: Any) -> Any:
    """A stored status in today's form; the same object if it has that form already."""
    if not isinstance(stored, dict):
        return stored
    times, conditions = stored.get("times"), stored.get("conditions")
    if isinstance(times, dict) and "category" not in times:
        rest = {name: value for name, value in times.items() if name != "state"}
        stored = {**stored, "times": {**rest, "category": _category(stored, times)}}
    if isinstance(conditions, list) and any(_is_incomplete(condition) for condition in conditions):
        stored = {**stored, "conditions": [_complete(c) if _is_incomplete(c) else c for c in conditions]}
    return stored


def _category(stored: Mapping[str, Any], times: Mapping[str, Any]) -> str:
    """An API server with today's CRD leaves `state` out. Then only the categories that other fields show remain; the
    next look at a running job finds the others."""
    state = times.get("state")
    if isinstance(state, str) and state in _CATEGORIES:
        return _CATEGORIES[state]
    if stored.get("phase") in FINISHED:
        return "Finished"
    return "Productive" if times.get("productiveSince") else "Queued"


def _is_incomplete(condition: Any) -> bool:
    return isinstance(condition, dict) and not (condition.get("reason") and "message" in condition)


def _complete(condition: Mapping[str, Any]) -> dict[str, Any]:
    return {**condition, "reason": condition.get("reason") or "Unknown", "message": condition.get("message", "")}


def _old(value: str) -> str:
    """The lower-camel form: `Restart` was `restart`, `MPI` was `mpi`."""
    return value.lower() if value.isupper() else value[:1].lower() + value[1:]


def _fields(schema: Schema, path: Path) -> Iterator[tuple[Path, Schema]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from _fields(child, (*path, name))
    if "items" in schema:
        yield from _fields(schema["items"], (*path, ITEMS))


def _replaced(value: Any, path: Path, names: Mapping[str, str]) -> Any:
    """`value` with today's name at `path`. Copies only what changes."""
    if not path:
        return names.get(value, value) if isinstance(value, str) else value
    step, rest = path[0], path[1:]
    if step == ITEMS:
        if not isinstance(value, list):
            return value
        items = [_replaced(item, rest, names) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    if not isinstance(value, dict) or step not in value:
        return value
    new = _replaced(value[step], rest, names)
    return value if new is value[step] else {**value, step: new}


def _with_percent(stored: Any) -> Any:
    section, old = STRAGGLERS
    progress = stored.get(section) if isinstance(stored, dict) else None
    if not isinstance(progress, dict) or old not in progress:
        return stored
    factor, rest = progress[old], {name: value for name, value in progress.items() if name != old}
    return {**stored, section: {PERCENT: percent(factor), **rest}}
