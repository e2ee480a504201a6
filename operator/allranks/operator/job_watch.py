"""kopf: the watch of jobs, credentials, the end of the process. Only `on.event`: no finalizers, no annotations.

What kopf is not asked to do, and why, is in docs/dev/architecture.md.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Set
from typing import Any

import aiohttp
import kopf
import msgspec

from allranks.api.job import GROUP, KIND, PLURAL, VERSION
from allranks.core.model import Manifest
from allranks.kube import paths, watch
from allranks.kube.client import Client
from allranks.kube.errors import NotFound
from allranks.operator.apply import identified
from allranks.operator.cache import JobKey
from allranks.operator.settings import Settings


class _Endless:
    """Backoffs without an end: kopf gives up, and ends the operator with it, when they are used up."""

    def __iter__(self) -> Iterator[float]:
        backoff = watch.FIRST_BACKOFF_SECONDS
        while True:
            yield random.uniform(0.5, 1.0) * backoff
            backoff = min(watch.LAST_BACKOFF_SECONDS, 2 * backoff)


_LASTING_SECONDS = 60.0
"""A login that was good for so long was no failure."""

_OPEN_SESSIONS = 4
"""kopf closes a session when its token is refused, under requests that it still has in it. aiohttp fails those by an
assertion, which ends kopf: so a session is closed when this many newer ones are there."""

Listed = Callable[[Set[JobKey], int, str | None], None]
"""Is told of all jobs there are (in a namespace), as of a version."""


def registry(
    client: Client,
    seen: Callable[[Manifest, bool], None],
    listed: Listed,
    alive: Callable[[], None],
    unserved: Callable[[], None],
    sessions: deque[aiohttp.ClientSession],
) -> kopf.OperatorRegistry:
    """`seen(job, deleted)` is told of every job, `alive()` of every sign of life, `unserved()` when kopf is told that
    there is no such resource. `sessions` are to be closed in the end."""
    handlers = kopf.OperatorRegistry()
    backoffs: Iterator[float] = iter(())
    login_at = float("-inf")

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.AiohttpSession:
        nonlocal backoffs, login_at
        if time.monotonic() - login_at > _LASTING_SECONDS:
            backoffs = itertools.chain((0.0,), _Endless())
        # After each 401 kopf asks again: for the newest token, and at once, however often that is refused.
        client.connection.forget_token()
        await asyncio.sleep(next(backoffs))
        login_at = time.monotonic()
        # A session of its own, on the one pool of connections.
        headers = client.connection.headers() | {"User-Agent": "allranks"}
        session = client.session(headers=headers, trace_configs=[_trace(listed, alive, unserved)])
        session.close = _left_open  # type: ignore[method-assign]
        sessions.append(session)
        if len(sessions) > _OPEN_SESSIONS:
            await aiohttp.ClientSession.close(sessions.popleft())
        return kopf.AiohttpSession(aiohttp_session=session, server=client.connection.url)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)  # type: ignore[arg-type]
    async def job(event: dict[str, Any], **_: Any) -> None:
        seen(identified(dict(event["object"])), event["type"] == "DELETED")

    return handlers


async def _left_open() -> None:
    pass


def _trace(listed: Listed, alive: Callable[[], None], unserved: Callable[[], None]) -> aiohttp.TraceConfig:
    trace = aiohttp.TraceConfig()
    present: dict[str, set[JobKey]] = {}

    async def sign(*_: Any) -> None:
        alive()

    async def ended(_: Any, __: Any, end: aiohttp.TraceRequestEndParams) -> None:
        alive()
        if end.url.path == paths.GROUP_VERSION and end.response.status == 404:
            unserved()

    # When kopf has lost track it lists anew, and tells its handlers what is there, not what is there no more.
    async def read(_: Any, __: Any, received: aiohttp.TraceResponseChunkReceivedParams) -> None:
        url = received.url
        named = _NAMED.get(url.path)
        if not (named or url.path.endswith(f"/{PLURAL}")) or "watch" in url.query:
            return
        try:
            page = _page(received.chunk)
        except msgspec.DecodeError:
            return  # no answer of an API server: kopf will say so
        if named and page.kind == named[0] and named[1] not in received.chunk:
            unserved()
        if page.kind != f"{KIND}List":
            return
        if "continue" not in url.query:
            present[url.path] = set()
        present.setdefault(url.path, set()).update((item.metadata.namespace, item.metadata.name) for item in page.items)
        if not page.metadata.further:
            found = _NAMESPACE.search(url.path)
            listed(present.pop(url.path), int(page.metadata.resource_version), found[1] if found else None)

    trace.on_request_start.append(sign)
    trace.on_request_end.append(ended)
    trace.on_response_chunk_received.append(read)
    return trace


_NAMESPACE = re.compile("/namespaces/([^/]+)/")
_NAMED = {
    paths.GROUPS: ("APIGroupList", f'"{GROUP}"'.encode()),
    paths.GROUP_VERSION: ("APIResourceList", f'"{PLURAL}"'.encode()),
}
"""Where kopf looks for our resource, what it reads there, and what that names."""


class _Meta(msgspec.Struct):
    name: str
    namespace: str


class _Item(msgspec.Struct):
    metadata: _Meta


class _Page(msgspec.Struct):
    kind: str = ""
    metadata: watch.ListMeta = msgspec.field(default_factory=watch.ListMeta)
    items: list[_Item] = []


_page = msgspec.json.Decoder(_Page).decode


class _NoEssence(kopf.DiffBaseStorage):
    """kopf would copy each job of each event, twice, to see what changed in it. No handler of ours asks."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass


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
    out.persistence.diffbase_storage = _NoEssence()
    return out


async def run(
    client: Client,
    ours: Settings,
    seen: Callable[[Manifest, bool], None],
    listed: Listed,
    alive: Callable[[], None],
    stop: asyncio.Event,
) -> None:
    """Until it is told to stop, by `stop` or by a signal, or fails. Raises NotFound when the API server does not serve
    jobs: kopf looks once, and would then watch nothing for ever."""
    sessions: deque[aiohttp.ClientSession] = deque()
    missing = False

    def unserved() -> None:
        nonlocal missing
        missing = True
        stop.set()

    try:
        await kopf.operator(
            registry=registry(client, seen, listed, alive, unserved, sessions),
            settings=settings(ours),
            clusterwide=not ours.namespaces,
            namespaces=list(ours.namespaces),
            # Unasked, kopf makes one of the user's name; a user ID in a container has none.
            identity="allranks",  # type: ignore[arg-type]
            stop_flag=stop,
        )
        if missing:
            raise NotFound(f"the API server serves no {PLURAL}.{GROUP} any more")
    finally:
        for session in sessions:
            await aiohttp.ClientSession.close(session)
