"""The parts that the descriptions of jobs and of sweeps share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from allranks.api.status import Condition
from allranks.kube.cluster import Manifest
from allranks.views.format.duration import age, human
from allranks.views.format.events import EventGroup, group_events
from allranks.views.format.table import Grid, cell

Fact = tuple[str, Any]
"""(title, value). One without a value is not printed."""


def facts(found: Iterable[Fact]) -> Iterator[str]:
    """The head of a description."""
    for title, value in found:
        if value not in ("", None):
            yield f"{title + ': ':<13}{cell(value)}"


def section(title: str, content: Iterable[str | Grid]) -> Iterator[str | Grid]:
    found = list(content)
    if found:
        yield f"{title}:"
        yield from found


def of_object(metadata: Manifest, now: datetime) -> list[Fact]:
    """The facts that every object has."""
    return [
        ("Name", metadata["name"]),
        ("Namespace", metadata["namespace"]),
        ("Labels", ", ".join(f"{key}={value}" for key, value in (metadata.get("labels") or {}).items())),
        ("Created", f"{_timestamp(metadata['creationTimestamp'])} ({age(metadata['creationTimestamp'], now)} ago)"),
        ("Deleted", f"{age(metadata['deletionTimestamp'], now)} ago" if metadata.get("deletionTimestamp") else ""),
    ]


def conditions(found: Sequence[Condition], now: datetime) -> Iterator[Grid]:
    if found:
        rows = [(c.type, c.status, age(c.last_transition_time, now), c.reason, c.message) for c in found]
        yield Grid(["Type", "Status", "Since", "Reason", "Message"], rows)


def events(found: list[Manifest] | str, now: datetime) -> Iterator[str | Grid]:
    """A text is the reason why they cannot be read."""
    if isinstance(found, str):
        yield f"  {found}"
        return
    groups = group_events(found)
    if not groups:
        yield "  none (the API server keeps events for an hour)"
        return
    rows = [(_last_time(one, now), one.kind, one.reason, one.objects, one.message) for one in groups]
    yield Grid(["Age", "Type", "Reason", "Object", "Message"], rows)


def _last_time(group: EventGroup, now: datetime) -> str:
    count = f" (x{group.count} over {human((now - group.first).total_seconds())})" if group.count > 1 else ""
    return age(group.last, now) + count


def _timestamp(text: str) -> str:
    return text.replace("T", " ").replace("Z", " UTC")
