"""kopf: the watch of jobs, credentials, the end of the process. Only `on.event`: no finalizers, no annotations.

What kopf is not asked to do, and why, is in docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import kopf

from allranks.api.job import GROUP, PLURAL, VERSION
from allranks.core.model import Manifest
from allranks.drivers.kubernetes import watch
from allranks.drivers.kubernetes.client import Client
from allranks.drivers.kubernetes.executor import identified
from allranks.settings import Settings


class _Endless:
    """Backoffs without an end: kopf gives up, and ends the operator with it, when they are used up."""

    def __iter__(self) -> Iterator[float]:
        backoff = watch.FIRST_BACKOFF_SECONDS
        while True:
            yield random.uniform(0.5, 1.0) * backoff
            backoff = min(watch.LAST_BACKOFF_SECONDS, 2 * backoff)


def registry(
    client: Client, seen: Callable[[Manifest, bool], None], alive: Callable[[], None]
) -> kopf.OperatorRegistry:
    """`seen(job, deleted)` is told of every job; `alive()` of every sign of life."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.AiohttpSession:
        # A session of its own, which kopf may close, on the one pool of connections.
        headers = client.connection.headers() | {"User-Agent": "allranks"}
        session = client.session(headers=headers, trace_configs=[_trace(alive)])
        return kopf.AiohttpSession(aiohttp_session=session, server=client.connection.url)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)  # type: ignore[arg-type]
    async def job(event: dict[str, Any], **_: Any) -> None:
        seen(identified(dict(event["object"])), event["type"] == "DELETED")

    return handlers


def _trace(alive: Callable[[], None]) -> aiohttp.TraceConfig:
    trace = aiohttp.TraceConfig()

    async def sign(*_: Any) -> None:
        alive()

    trace.on_request_start.append(sign)
    trace.on_request_end.append(sign)
    return trace


def settings(ours: Settings) -> kopf.OperatorSettings:
    """No peering, no Events and no scanning of its own; errors never end it."""
    out = kopf.OperatorSettings()
    out.posting.enabled = False
    out.peering.standalone = True
    out.scanning.disabled = True
    out.networking.error_backoffs = _Endless()
    out.networking.request_timeout = ours.request_timeout
    out.watching.server_timeout = ours.watch_timeout
    out.watching.inactivity_timeout = watch.SILENCE_SECONDS
    out.watching.chunk_size = watch.PAGE
    out.queueing.idle_timeout = 1.0
    out.queueing.exit_timeout = 1.0
    out.process.ultimate_exiting_timeout = None
    return out


async def run(
    client: Client,
    ours: Settings,
    seen: Callable[[Manifest, bool], None],
    alive: Callable[[], None],
    stop: asyncio.Event,
) -> None:
    """Until it is told to stop, by `stop` or by a signal, or fails."""
    await kopf.operator(
        registry=registry(client, seen, alive),
        settings=settings(ours),
        clusterwide=not ours.namespaces,
        namespaces=list(ours.namespaces),
        stop_flag=stop,
    )
