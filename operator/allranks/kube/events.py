"""Reads the Events of an object, or of a job and its pods: only their own fields, and only the newest of them.

Any user of a namespace may create Events about its objects, any number, each with 256 KiB of annotations.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from allranks.kube.cluster import Cluster, Query
from allranks.kube.decoding import ObjectMeta, decoder
from allranks.kube.paths import core_path

Manifest = dict[str, Any]
Turn = Callable[[], contextlib.AbstractAsyncContextManager[None]]
Received = Callable[[int], None]

MOST_EVENTS = 1000
"""Events of an object, and likewise of the pods of a job."""
MAX_MESSAGE, MAX_TEXT = 4096, 512
"""Characters of the message, and of any other text."""


class _Fields(msgspec.Struct, rename="camel", omit_defaults=True):
    """Kubernetes' JSON is camelCase."""


class _Metadata(ObjectMeta):
    name: str = ""


class _Object(_Fields):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class _Source(_Fields):
    component: str = ""
    host: str = ""


class _Series(_Fields):
    count: int = 0
    last_observed_time: str | None = None


class _Event(_Fields):
    metadata: _Metadata
    involved_object: _Object
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    source: _Source | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: _Series | None = None
    action: str = ""
    related: _Object | None = None
    reporting_component: str = ""
    reporting_instance: str = ""


_event = decoder(_Event)


def _ignore(size: int) -> None:
    pass


async def events_of_object(
    cluster: Cluster, namespace: str, uid: str, turn: Turn = contextlib.nullcontext, received: Received = _ignore
) -> list[Manifest]:
    """Return the newest Events of an object, the oldest of them first. Raises ClusterError.

    Calls `received(bytes)` for each Event that is read.
    """
    query = {"fieldSelector": f"involvedObject.uid={uid}"}
    return await _newest(cluster, namespace, query, lambda _: True, turn, received)


async def events_of_job(
    cluster: Cluster, metadata: Manifest, turn: Turn = contextlib.nullcontext, received: Received = _ignore
) -> list[Manifest]:
    """Return the newest Events of a job, then the newest ones of its pods. Raises ClusterError."""
    namespace, prefix, since = metadata["namespace"], f"{metadata['name']}-", str(metadata.get("creationTimestamp"))

    def of_its_pods(event: _Event) -> bool:
        return event.involved_object.name.startswith(prefix) and (event.metadata.creation_timestamp or "") >= since

    of_pods = {"fieldSelector": "involvedObject.kind=Pod"}
    return [
        *await events_of_object(cluster, namespace, metadata["uid"], turn, received),
        *await _newest(cluster, namespace, of_pods, of_its_pods, turn, received),
    ]


async def _newest(
    cluster: Cluster,
    namespace: str,
    query: Query,
    selects: Callable[[_Event], bool],
    turn: Turn,
    received: Received,
) -> list[Manifest]:
    newest: list[tuple[str, int, Manifest]] = []
    numbers = count()

    def keep(data: msgspec.Raw) -> None:
        received(memoryview(data).nbytes)
        event = _event(data)
        if selects(event):
            entry = event.metadata.creation_timestamp or "", next(numbers), _shortened(msgspec.to_builtins(event))
            (heapq.heappush if len(newest) < MOST_EVENTS else heapq.heappushpop)(newest, entry)

    await cluster.items(core_path(namespace, "events"), query, keep, turn)
    return [event for _, _, event in sorted(newest)]


def _shortened(part: Manifest) -> Manifest:
    """Return an Event, or a part of one, without the ends of texts that are too long."""
    return {
        key: _shortened(value)
        if isinstance(value, dict)
        else value[: MAX_MESSAGE if key == "message" else MAX_TEXT]
        if isinstance(value, str)
        else value
        for key, value in part.items()
    }
