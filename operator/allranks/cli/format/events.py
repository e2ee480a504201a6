"""Kubernetes Events of a job and its pods, put together: what happened to every pod alike is one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

MOST = 30
"""The newest of them."""


@dataclass(frozen=True, slots=True)
class Happening:
    """Events that say the same."""

    kind: str
    reason: str
    message: str
    objects: str
    """`job`, the pod's name, or how many pods."""
    count: int
    first: datetime
    last: datetime
    version: int
    """Of the newest event: within a second it tells the order."""


def happenings(events: Iterable[dict[str, Any]]) -> list[Happening]:
    """Newest last."""
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for event in events:
        about = event["involvedObject"]
        name = about.get("name", "")
        # `Successfully assigned team/penguins-worker-1-0 to node-7` is one thing for all pods.
        message = event.get("message") or ""
        same = re.sub(rf"(?:[\w.-]+/)?{re.escape(name)}(?![\w-])", "{}", message) if name else message
        if about.get("kind") == "Pod":
            same = _without_numbers(same)
        key = (event.get("type") or "", event.get("reason") or "", about.get("kind", ""), same)
        alike.setdefault(key, []).append(event)
    told = [_together(key, some) for key, some in alike.items()]
    return sorted(told, key=lambda one: (one.last, one.version))[-MOST:]


def _together(key: tuple[str, ...], events: list[dict[str, Any]]) -> Happening:
    newest = max(events, key=lambda event: (_last(event), _version(event)))
    names = sorted({event["involvedObject"].get("name", "") for event in events})
    if newest["involvedObject"].get("kind") != "Pod":
        objects = "job"
    else:
        objects = names[0] if len(names) == 1 else f"{len(names)} pods"
    return Happening(
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
    """Pulls that took 2.1s and 2.3s are the same happening; so are sizes and addresses."""
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
