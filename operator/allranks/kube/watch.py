"""A collection of the API server, mirrored: listed in pages, then watched, listed anew when the watch has lost track.

Decoding is typed (msgspec) and happens once per event. Whatever goes wrong, the watch goes on: it ends when cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec

from allranks.kube.client import ApiError, Client, Gone, NotFound, Refused

T = TypeVar("T")
logger = logging.getLogger(__name__)

PAGE = 500
FIRST_BACKOFF_SECONDS = 0.2
LAST_BACKOFF_SECONDS = 15.0
BRIEF_SECONDS = 1.0
"""A watch that tells nothing and ends sooner is no renewal: whoever is in between may be answering for the server."""
SILENCE_SECONDS = 90.0
"""API servers send a bookmark every minute: a watch that says nothing for longer is dead."""


class ListMeta(msgspec.Struct, rename="camel"):
    """Of a page of a list, and of a single object as far as its version."""

    resource_version: str = "0"
    # `continue` is a keyword.
    further: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: ListMeta
    items: list[msgspec.Raw] = []


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw = msgspec.Raw()


class _Versioned(msgspec.Struct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    code: int = 0
    message: str = ""


_page = msgspec.json.Decoder(_Page).decode
_line = msgspec.json.Decoder(_Line).decode
_versioned = msgspec.json.Decoder(_Versioned).decode


class Watch(Generic[T]):
    """`listed(objects, version)` gets everything there is, `changed(object, deleted)` each change after that."""

    def __init__(
        self,
        client: Client,
        path: str,
        kind: type[T],
        *,
        listed: Callable[[Sequence[T], int], None],
        changed: Callable[[T, bool], None],
        selector: str = "",
        renewed_after: int = 240,
        silence: float | None = None,
        forbidden: Callable[[str], None] | None = None,
    ) -> None:
        self.path = path
        self.synced = asyncio.Event()
        """Set once everything has been listed."""
        self.alive_at = time.monotonic()
        """Last sign of life: something came, or was tried."""
        self._client, self._listed, self._changed, self._forbidden = client, listed, changed, forbidden
        self._decode: Callable[[Any], T] = msgspec.json.Decoder(kind).decode
        self._parameters = {"labelSelector": selector} if selector else {}
        self._renewed_after = renewed_after
        self._silence = SILENCE_SECONDS if silence is None else silence
        self._version = ""

    @property
    def age(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self.alive_at

    async def run(self) -> None:
        """For ever."""
        backoff, told = 0.0, ""
        while True:
            self.alive_at = time.monotonic()
            try:
                if not self._version:
                    await self._list()
                    backoff, told = 0.0, ""
                began, heard = time.monotonic(), False
                async for line in self._lines():
                    self._take(line)
                    backoff, heard = 0.0, True
                if heard or time.monotonic() - began > BRIEF_SECONDS:
                    continue  # it was renewed by the server, as agreed
                logger.debug("%s: the watch was ended as soon as it began", self.path)
            except Gone:
                logger.debug("%s: listing anew", self.path)
                self._version = ""
            except (Refused, NotFound) as error:
                if str(error) != told:
                    told = str(error)
                    logger.error("%s: %s", self.path, error)
                    if self._forbidden:
                        self._forbidden(told)
                backoff = LAST_BACKOFF_SECONDS
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
                logger.warning("%s: the watch is interrupted: %s", self.path, str(error) or type(error).__name__)
            self.alive_at = time.monotonic()
            backoff = min(LAST_BACKOFF_SECONDS, max(FIRST_BACKOFF_SECONDS, 2 * backoff))
            await asyncio.sleep(random.uniform(0.5, 1.0) * backoff)

    async def _list(self) -> None:
        objects: list[T] = []
        further, version = "", "0"
        while True:
            parameters = {**self._parameters, "limit": str(PAGE)} | ({"continue": further} if further else {})
            page = _page(await self._client.get(self.path, **parameters))
            self.alive_at = time.monotonic()
            version, further = page.metadata.resource_version, page.metadata.further
            objects += (decoded for item in page.items if (decoded := self._decoded(item)) is not None)
            if not further:
                break
        self._listed(objects, int(version))
        self._version = version
        self.synced.set()

    async def _lines(self) -> AsyncIterator[bytes]:
        """The lines of one watch request; of any length, so not aiohttp's own iterator."""
        parameters = {
            **self._parameters,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            # Watches that were begun together are not all renewed together.
            "timeoutSeconds": str(int(self._renewed_after * random.uniform(0.8, 1.0))),
        }
        async with self._client.stream(self.path, parameters, self._silence) as content:
            rest = b""
            async for chunk in content.iter_any():
                self.alive_at = time.monotonic()
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                for line in lines:
                    if line:
                        yield line

    def _take(self, line: bytes) -> None:
        event = _line(line)
        about = _versioned(event.object)
        if event.type == "ERROR":
            raise (Gone if about.code == 410 else ApiError)(about.message, about.code)
        if event.type != "BOOKMARK" and (decoded := self._decoded(event.object)) is not None:
            self._changed(decoded, event.type == "DELETED")
        self._version = about.metadata.resource_version

    def _decoded(self, data: msgspec.Raw) -> T | None:
        try:
            return self._decode(data)
        except msgspec.DecodeError as error:
            # One object that cannot be read must not blind us for the others.
            logger.error("%s: an object cannot be read: %s", self.path, error)
            return None
