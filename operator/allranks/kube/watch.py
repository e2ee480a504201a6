"""Mirrors a collection of the API server: lists it in pages, watches it, and lists it again when the watch lost track.

Each object is decoded once, by a function of the caller, which keeps little: the JSON of a page is released before the
next page is asked for. Errors do not end a watch, cancellation does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from allranks.kube.client import JSON, Client
from allranks.kube.decoding import ListMeta, decoder
from allranks.kube.errors import ApiError, Gone, NotFound, Refused, Unavailable

T = TypeVar("T")
logger = logging.getLogger(__name__)

PAGE = 500
PAGE_OF_LARGE_OBJECTS = 50
"""75 MB, if each has the largest size that the API server stores; twice as much while the response is put together."""
QUICK_SECONDS = 2.0
"""After a page that takes less time, the next one may be larger."""
FIRST_BACKOFF_SECONDS = 0.2
LAST_BACKOFF_SECONDS = 15.0
BRIEF_SECONDS = 1.0
"""A watch without events that ends sooner is a failure, not a renewal: a proxy may have answered."""
SILENCE_SECONDS = 90.0
"""API servers send a bookmark every minute: a watch that is silent for longer is dead."""


class _Page(msgspec.Struct, rename="camel"):
    """A page of a list, or of a table (`rows`)."""

    metadata: ListMeta
    items: list[msgspec.Raw] = []
    rows: list[msgspec.Raw] | None = None
    column_definitions: list[dict[str, Any]] = []


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw = msgspec.Raw()


class _Versioned(msgspec.Struct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    code: int = 0
    message: str = ""


_page, _line, _versioned = decoder(_Page), decoder(_Line), decoder(_Versioned)


class PageSize:
    """The number of objects that a request lists: fewer after one that took too long, more after quick ones.

    An API server that is busy does not answer with many large objects within the timeout, however often it is asked.
    """

    def __init__(self, most: int) -> None:
        self._most = self.limit = most

    def reduce(self) -> bool:
        """Return False if it is one object already."""
        before, self.limit = self.limit, max(1, self.limit // 4)
        return self.limit < before

    def arrived(self, seconds: float) -> None:
        """Note how long the last page took."""
        if seconds < QUICK_SECONDS:
            self.limit = min(self._most, 2 * self.limit)


class Watch(Generic[T]):
    """Calls `listed(objects, version)` with all objects, then `changed(object, deleted)` for each change.

    `decode` gets the JSON of one object (`decoding.decoder`). All that it returns is in memory until `listed` returns,
    so it keeps no part of the JSON. It raises msgspec.DecodeError.
    `forbidden(message)` is called when the API server rejects the watch. `on_error(error, failures)` replaces the log:
    it is called for each failure, with the number of failures in a row, and what it raises ends the watch.
    `on_open()` is called when the API server has accepted the watch, also after a lost connection. `page` is the number
    of objects that one request lists. `turn()` is a block in which one page is in memory.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        decode: Callable[[msgspec.Raw], T],
        *,
        listed: Callable[[Sequence[T], int], None],
        changed: Callable[[T, bool], None],
        parameters: Mapping[str, str] | None = None,
        accept: str = JSON,
        renewed_after: int = 240,
        silence: float | None = None,
        forbidden: Callable[[str], None] | None = None,
        on_error: Callable[[ApiError | msgspec.DecodeError, int], None] | None = None,
        on_open: Callable[[], None] = lambda: None,
        page: int = PAGE,
        turn: Callable[[], contextlib.AbstractAsyncContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.path = path
        self.synced = asyncio.Event()
        """Set once everything has been listed."""
        self.alive_at = time.monotonic()
        """Last activity: something arrived, or a request was sent."""
        self.columns: list[dict[str, Any]] = []
        """Column definitions, when `accept` asks for a table."""
        self._client, self._listed, self._changed = client, listed, changed
        self._forbidden, self._on_error, self._on_open = forbidden, on_error, on_open
        self._decode = decode
        self._parameters, self._accept = dict(parameters or {}), accept
        self._renewed_after = renewed_after
        self._silence = SILENCE_SECONDS if silence is None else silence
        self._page_size, self._turn = PageSize(page), turn
        self._version = ""

    @property
    def age(self) -> float:
        """Return the seconds since the last activity."""
        return time.monotonic() - self.alive_at

    async def run(self) -> None:
        """Run until cancelled, or until `on_error` raises. Lists first, unless `list_all` has done so."""
        backoff, failures, logged = 0.0, 0, ""
        while True:
            self.alive_at = time.monotonic()
            try:
                if not self._version:
                    await self.list_all()
                    backoff, failures, logged = 0.0, 0, ""
                began, received = time.monotonic(), False
                async for line in self._lines():
                    self._process(line)
                    backoff, failures, received = 0.0, 0, True
                if received or time.monotonic() - began > BRIEF_SECONDS:
                    continue  # renewed by the server
                logger.debug("%s: the watch ended as soon as it began", self.path)
            except Gone:
                logger.debug("%s: listing again", self.path)
                self._version = ""
            except (ApiError, msgspec.DecodeError) as error:
                failures += 1
                if self._on_error:
                    self._on_error(error, failures)
                elif isinstance(error, (Refused, NotFound)):
                    if str(error) != logged:
                        logged = str(error)
                        logger.error("%s: %s", self.path, error)
                        if self._forbidden:
                            self._forbidden(logged)
                    backoff = LAST_BACKOFF_SECONDS
                else:
                    logger.warning("%s: the watch is interrupted: %s", self.path, error)
            self.alive_at = time.monotonic()
            backoff = min(LAST_BACKOFF_SECONDS, max(FIRST_BACKOFF_SECONDS, 2 * backoff))
            await asyncio.sleep(random.uniform(0.5, 1.0) * backoff)

    def relist(self) -> None:
        """List everything again when the current request ends."""
        self._version = ""

    async def list_all(self) -> None:
        """List everything. Raises ApiError."""
        objects: list[T] = []
        position, begun = ListMeta(), False
        while position.further or not begun:
            asked_at = time.monotonic()
            try:
                position, begun = await self._list_page(position.further, objects), True
                self._page_size.arrived(time.monotonic() - asked_at)
            except Unavailable as error:
                if not (error.timed_out and self._page_size.reduce()):
                    raise
                logger.warning("%s; the next try lists %d objects", error, self._page_size.limit)
        self._listed(objects, int(position.resource_version))
        self._version = position.resource_version
        self.synced.set()

    async def _list_page(self, further: str, objects: list[T]) -> ListMeta:
        """Add the objects of the next page. A method of its own, so that the page is gone before the next one."""
        parameters = {**self._parameters, "limit": str(self._page_size.limit)} | (
            {"continue": further} if further else {}
        )
        async with self._turn():
            page = _page(await self._client.request("GET", self.path, None, parameters, accept=self._accept))
            self.alive_at = time.monotonic()
            self.columns = page.column_definitions or self.columns
            items = page.items if page.rows is None else page.rows
            objects += (decoded for item in items if (decoded := self._decoded(item)) is not None)
            return page.metadata

    async def _lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of one watch request. They have any length, so aiohttp's own iterator does not serve."""
        parameters = {
            **self._parameters,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            # Jitter: watches that began together are not all renewed together.
            "timeoutSeconds": str(int(self._renewed_after * random.uniform(0.8, 1.0))),
        }
        async with self._client.stream(self.path, parameters, self._silence, accept=self._accept) as content:
            self._on_open()
            unfinished = b""
            async for chunk in content.iter_any():
                self.alive_at = time.monotonic()
                lines = (unfinished + chunk).split(b"\n")
                unfinished = lines.pop()
                for line in lines:
                    if line:
                        yield line

    def _process(self, line: bytes) -> None:
        event = _line(line)
        about = _versioned(event.object)
        if event.type == "ERROR":
            raise (Gone if about.code == 410 else ApiError)(about.message, about.code)
        if event.type != "BOOKMARK" and (decoded := self._decoded(event.object)) is not None:
            self._changed(decoded, event.type == "DELETED")
        if about.metadata.resource_version != "0":
            self._version = about.metadata.resource_version

    def _decoded(self, data: msgspec.Raw) -> T | None:
        try:
            return self._decode(data)
        except msgspec.DecodeError as error:
            # Skips one object; the others are processed.
            logger.error("%s: an object cannot be decoded: %s", self.path, error)
            return None
