"""Everything that touches kopf. kopf watches jobs, logs in and handles signals.

Only `on.event` is used: other handlers add finalizers, annotations and requests per job. The rest of this module works
around behaviour of kopf, with the reason at each place. docs/dev/architecture.md lists them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Set
from typing import Any

import aiohttp
import kopf
import msgspec
import yarl

from allranks.api.job import GROUP, KIND, PLURAL, VERSION
from allranks.core.facts.model import Manifest
from allranks.kube import compact_jobs, paths, watch
from allranks.kube.client import Client
from allranks.kube.decoding import ListMeta, ObjectMeta, decoder
from allranks.kube.errors import NotFound
from allranks.operator.cache import JobKey
from allranks.operator.settings import Settings

logger = logging.getLogger("allranks.jobs")


class EndlessBackoff:
    """kopf gives up and ends the operator when its backoffs are used up."""

    def __iter__(self) -> Iterator[float]:
        backoff = watch.FIRST_BACKOFF_SECONDS
        while True:
            yield random.uniform(0.5, 1.0) * backoff
            backoff = min(watch.LAST_BACKOFF_SECONDS, 2 * backoff)


_LOGIN_SECONDS = 60.0
"""A login that lasted this long resets the backoff."""

_OPEN_SESSIONS = 4
"""When a token is rejected, kopf closes the HTTP session while its other requests still use it. aiohttp then raises an
AssertionError, which ends kopf. So a session is closed only when there are this many newer ones."""

Listed = Callable[[Set[JobKey], int, str | None], None]
"""Called with all jobs of a namespace, or of all namespaces (None), and the resourceVersion of the list."""


class _Pages:
    """Adapts the number of jobs that a request lists: after a timeout, kopf asks for the same again and again."""

    def __init__(self, timeout: float) -> None:
        self._timeout, self._size = timeout, watch.PageSize(watch.PAGE_OF_LARGE_OBJECTS)
        self._asked_at: dict[str, float] = {}
        """URL path -> when a page was asked for that has not arrived."""

    async def __call__(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if _is_jobs(request.url) and "watch" not in request.url.query:
            now = time.monotonic()
            if now - self._asked_at.get(request.url.path, now) >= self._timeout and self._size.reduce():
                logger.warning("the list of jobs takes too long; the next try lists %d of them", self._size.limit)
            self._asked_at[request.url.path] = now
            request.url = request.url.update_query(limit=self._size.limit)
        return await send(request)

    def arrived(self, path: str) -> None:
        """Note that a page is complete."""
        if (asked_at := self._asked_at.pop(path, None)) is not None:
            self._size.arrived(time.monotonic() - asked_at)


def registry(
    client: Client,
    changed: Callable[[Manifest, bool], None],
    listed: Listed,
    alive: Callable[[], None],
    unserved: Callable[[], None],
    sessions: deque[aiohttp.ClientSession],
    pages: _Pages,
) -> kopf.OperatorRegistry:
    """Call `changed(job, deleted)` for every job event, `alive()` for every activity of the watch, `unserved()` when
    the API server does not serve the resource. The caller closes `sessions`."""
    handlers = kopf.OperatorRegistry()
    backoffs: Iterator[float] = iter(())
    login_at = float("-inf")

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.AiohttpSession:
        nonlocal backoffs, login_at
        if time.monotonic() - login_at > _LOGIN_SECONDS:
            backoffs = itertools.chain((0.0,), EndlessBackoff())
        # kopf logs in again after each 401, without any delay: read the newest token, and back off here.
        client.connection.forget_token()
        await asyncio.sleep(next(backoffs))
        login_at = time.monotonic()
        # A session per login, on the shared connection pool.
        headers = client.connection.headers() | {"User-Agent": "allranks"}
        session = client.session(
            headers=headers,
            trace_configs=[_trace(listed, alive, unserved, pages.arrived)],
            response_class=_CompactResponse,
            middlewares=[pages],
        )
        session.close = _keep_open  # type: ignore[method-assign]  # see _OPEN_SESSIONS
        sessions.append(session)
        if len(sessions) > _OPEN_SESSIONS:
            await aiohttp.ClientSession.close(sessions.popleft())
        return kopf.AiohttpSession(aiohttp_session=session, server=client.connection.url)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)  # type: ignore[arg-type]
    async def job(event: dict[str, Any], **_: Any) -> None:
        changed(compact_jobs.compact(dict(event["object"])), event["type"] == "DELETED")

    return handlers


class _CompactResponse(aiohttp.ClientResponse):
    """Gives kopf jobs whose specs are not decoded, so that a large or deeply nested one does no harm."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        await super().start(connection)
        if self.status == 200 and _is_jobs(self.url) and "watch" in self.url.query:
            self.content = _CompactLines(self.content)  # type: ignore[assignment]
        return self

    async def json(self, **options: Any) -> Any:
        if not (self.status == 200 and _is_jobs(self.url)):
            return await super().json(**options)
        try:
            return compact_jobs.page(await self.read())
        except msgspec.DecodeError:  # not a response of an API server
            return await super().json(**options)


class _CompactLines:
    """The content of a watch, for the one method of it that kopf uses. Not a generator: a session that ends would leave
    it open."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._unfinished: list[bytes] = []

    def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        self._chunks = self._content.iter_chunked(size)
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while True:
            try:
                first, *others = (await anext(self._chunks)).split(b"\n")
            except StopAsyncIteration:
                if unfinished := b"".join(self._unfinished):
                    self._unfinished.clear()
                    return unfinished  # cut: kopf reports it
                raise
            except RuntimeError as error:
                # aiohttp, of a connection that was closed between two reads. kopf tries again after a client's error.
                raise aiohttp.ClientConnectionError(str(error)) from error
            self._unfinished.append(first)
            if others:
                lines = [b"".join(self._unfinished), *others[:-1]]
                self._unfinished = [others[-1]]
                return b"".join(compact_jobs.line(line) + b"\n" for line in lines)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)


def _is_jobs(url: yarl.URL) -> bool:
    return url.path.endswith(f"/{PLURAL}")


async def _keep_open() -> None:
    pass


def _trace(
    listed: Listed, alive: Callable[[], None], unserved: Callable[[], None], arrived: Callable[[str], None]
) -> aiohttp.TraceConfig:
    """Read kopf's own requests and responses."""
    trace = aiohttp.TraceConfig()
    pages: dict[str, set[JobKey]] = {}
    """URL path -> jobs in the pages of the current list."""

    async def on_request(*_: Any) -> None:
        alive()

    async def on_response(_: Any, __: Any, end: aiohttp.TraceRequestEndParams) -> None:
        alive()
        if end.url.path == paths.GROUP_VERSION and end.response.status == 404:
            unserved()

    # After a lost watch kopf lists again, and its handlers get the present objects but not the deleted ones.
    async def on_chunk(_: Any, __: Any, received: aiohttp.TraceResponseChunkReceivedParams) -> None:
        url = received.url
        discovery = _DISCOVERY.get(url.path)
        if not (discovery or _is_jobs(url)) or "watch" in url.query:
            return
        try:
            page = _decode_page(received.chunk)
        except msgspec.DecodeError:
            return  # Not a response of an API server; kopf reports it.
        if discovery and page.kind == discovery[0] and discovery[1] not in received.chunk:
            unserved()
        if page.kind != f"{KIND}List":
            return
        arrived(url.path)
        if "continue" not in url.query:
            pages[url.path] = set()
        pages.setdefault(url.path, set()).update((item.metadata.namespace, item.metadata.name) for item in page.items)
        if not page.metadata.further:
            match = _NAMESPACE.search(url.path)
            listed(pages.pop(url.path), int(page.metadata.resource_version), match[1] if match else None)

    trace.on_request_start.append(on_request)
    trace.on_request_end.append(on_response)
    trace.on_response_chunk_received.append(on_chunk)
    return trace


_NAMESPACE = re.compile("/namespaces/([^/]+)/")
_DISCOVERY = {
    paths.GROUPS: ("APIGroupList", f'"{GROUP}"'.encode()),
    paths.GROUP_VERSION: ("APIResourceList", f'"{PLURAL}"'.encode()),
}
"""Path of kopf's discovery -> (kind of the response, what it contains if our resource is served)."""


class _Item(msgspec.Struct):
    metadata: ObjectMeta


class _Page(msgspec.Struct):
    kind: str = ""
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[_Item] = []


_decode_page = decoder(_Page)


class _NoEssence(kopf.DiffBaseStorage):
    """Stores nothing. kopf's default copies the job twice per event for a diff that no handler of ours uses."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass


def kopf_settings(ours: Settings) -> kopf.OperatorSettings:
    """Disable peering, Events and scanning of kopf; errors never end it."""
    out = kopf.OperatorSettings()
    out.posting.enabled = False
    out.peering.standalone = True
    out.scanning.disabled = True
    out.networking.error_backoffs = EndlessBackoff()
    out.networking.request_timeout = ours.request_timeout
    out.watching.server_timeout = ours.watch_timeout
    out.watching.inactivity_timeout = watch.SILENCE_SECONDS
    out.watching.chunk_size = watch.PAGE_OF_LARGE_OBJECTS
    out.queueing.idle_timeout = 1.0
    out.queueing.exit_timeout = 1.0
    out.process.ultimate_exiting_timeout = None
    out.persistence.diffbase_storage = _NoEssence()
    return out


async def run(
    client: Client,
    ours: Settings,
    changed: Callable[[Manifest, bool], None],
    listed: Listed,
    alive: Callable[[], None],
    stop: asyncio.Event,
) -> None:
    """Run until `stop` is set or a signal arrives. Raises NotFound when the API server does not serve jobs: kopf's
    discovery runs once, and would then watch nothing forever."""
    sessions: deque[aiohttp.ClientSession] = deque()
    missing = False

    def unserved() -> None:
        nonlocal missing
        missing = True
        stop.set()

    try:
        await kopf.operator(
            registry=registry(client, changed, listed, alive, unserved, sessions, _Pages(ours.request_timeout)),
            settings=kopf_settings(ours),
            clusterwide=not ours.namespaces,
            namespaces=list(ours.namespaces),
            # The default contains the user's name; a user ID in a container has none.
            identity="allranks",  # type: ignore[arg-type]
            stop_flag=stop,
        )
        if missing:
            raise NotFound(f"the API server serves no {PLURAL}.{GROUP} any more")
    finally:
        for session in sessions:
            await aiohttp.ClientSession.close(session)
