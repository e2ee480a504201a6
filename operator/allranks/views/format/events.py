"""Groups the Kubernetes Events of a job and its pods: the same event of many pods is one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from allranks.api.sweep import KIND as SWEEP

MAX_GROUPS = 30
"""Older groups are dropped."""


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events that differ only in their object and numbers."""

    kind: str
    reason: str
    message: str
    objects: str
    """`job`, `sweep`, the name of the pod, or the number of pods."""
    count: int
    first: datetime
    last: datetime
    version: int
    """resourceVersion of the newest event: orders events of the same second."""


def group_events(events: Iterable[dict[str, Any]]) -> list[EventGroup]:
    """Group the Events; the newest group is last."""
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for event in events:
        about = event["involvedObject"]
        name = about.get("name", "")
        # `Successfully assigned team/penguins-worker-1-0 to node-7` is one group for all pods.
        message = event.get("message") or ""
        same = re.sub(rf"(?:[\w.-]+/)?{re.escape(name)}(?![\w-])", "{}", message) if name else message
        if about.get("kind") == "Pod":
            same = _without_numbers(same)
        key = (event.get("type") or "", event.get("reason") or "", about.get("kind", ""), same)
        alike.setdefault(key, []).append(event)
    groups = [_group(key, members) for key, members in alike.items()]
    return sorted(groups, key=lambda group: (group.last, group.version))[-MAX_GROUPS:]


def _group(key: tuple[str, ...], events: list[dict[str, Any]]) -> EventGroup:
    newest = max(events, key=lambda event: (_last(event), _version(event)))
    names = sorted({event["involvedObject"].get("name", "") for event in events})
    about = newest["involvedObject"].get("kind")
    if about == "Pod":
        objects = names[0] if len(names) == 1 else f"{len(names)} pods"
    else:
        objects = "sweep" if about == SWEEP else "job"
    return EventGroup(
        kind=key[0],
        reason=key[1],
        message=newest.get("message") or "",
        objects=objects,
        count=sum(_count(event) for event in events),
        first=min(_first(event) for event in events),
        last=_last(newest),
        version=_version(newest),
    )


def _version(event: dict[str, Any]) -> int:
    version = str((event.get("metadata") or {}).get("resourceVersion", ""))
    return int(version) if version.isdigit() else 0


def _without_numbers(text: str) -> str:
    """Image pulls of 2.1s and 2.3s belong to one group; so do sizes and addresses."""
    return re.sub(r"\d+(\.\d+)*", "#", text)


def _count(event: dict[str, Any]) -> int:
    series = event.get("series") or {}
    return int(series.get("count") or event.get("count") or 1)


def _last(event: dict[str, Any]) -> datetime:
    series = event.get("series") or {}
    stamp = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return datetime.fromisoformat(stamp or event["metadata"]["creationTimestamp"])


def _first(event: dict[str, Any]) -> datetime:
    stamp = event.get("firstTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(stamp)
