"""HTTP server for `POST /v1/report`, `/v1/outcome`, `/v1/process` and `/v1/code`: authenticates the sender, limits the
size, hands the body on.

All input is untrusted: sizes, durations and counts are bounded (`connections`), rejections are delayed (tarpit),
responses contain no internals, and no token is stored or logged.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec
from aiohttp import web

from allranks.telemetry import outcomes
from allranks.telemetry.connections import Limits, Place, Rejections
from allranks.telemetry.listener import Listener
from allranks.telemetry.messages import BODY_BYTES, Answer, Denied

PATH = "/v1/report"
OUTCOME_PATH = "/v1/outcome"
PROCESS_PATH = "/v1/process"
"""For supervisors, which wait there for orders."""
CODE_PATH = "/v1/code"
"""For supervisors, which fetch the code of their job there."""
_LOG_INTERVAL = 60.0

logger = logging.getLogger("allranks.reports")

Sender = TypeVar("Sender")


class Server(Listener, Generic[Sender]):
    """Receives messages of authenticated senders.

    `identify` returns the sender of a token, or None for an invalid one; it may raise Denied. `ingest` answers a
    report, at once or later. `outcome` answers a part of what a function returned or raised, `process` the state of a
    supervisor, and `code` its request for code; without them, such messages are not received. `count` is called with
    the status of each response to a report. `port` 0 selects a free port, which `port` has after `start`.
    """

    def __init__(
        self,
        identify: Callable[[str], Awaitable[Sender | None]],
        ingest: Callable[[Sender, bytes], Answer | Awaitable[Answer]],
        *,
        outcome: Callable[[Sender, bytes], Awaitable[Answer]] | None = None,
        process: Callable[[Sender, bytes], Awaitable[Answer]] | None = None,
        code: Callable[[Sender, bytes], Awaitable[Answer]] | None = None,
        address: str = "",
        port: int = 0,
        count: Callable[[int], None] = lambda status: None,
        limits: Limits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(self._respond, address=address, port=port, limits=limits, monotonic=monotonic)
        self._identify, self._count = identify, count
        self._routes: dict[str, tuple[Callable[[Sender, bytes], Answer | Awaitable[Answer]], int]] = {
            PATH: (ingest, BODY_BYTES)
        }
        """Path -> what answers a message, and the bytes that it may have."""
        if outcome is not None:
            self._routes[OUTCOME_PATH] = (outcome, outcomes.BODY_BYTES)
        if process is not None:
            self._routes[PROCESS_PATH] = (process, BODY_BYTES)
        if code is not None:
            self._routes[CODE_PATH] = (code, BODY_BYTES)
        self._rejections = Rejections(self._limits, monotonic)
        self._logged_at = float("-inf")

    async def _respond(self, request: web.BaseRequest, place: Place) -> web.StreamResponse:
        try:
            answer = await self._answer(request, place)
        except (web.RequestPayloadError, ConnectionError):
            answer = Answer(400, {"error": "incomplete message"})
        except Exception:
            self._log_exception()
            answer = Answer(500, {"error": "internal error; see the operator's log"}, 30.0)
        if answer.status == 429:
            await asyncio.sleep(min(answer.retry_after, self._limits.wait_seconds))
        elif answer.status in _DELAYED:
            await asyncio.sleep(self._limits.hold_seconds)
        if request.path not in (OUTCOME_PATH, PROCESS_PATH, CODE_PATH):
            self._count(answer.status)
        return _response(answer)

    async def _answer(self, request: web.BaseRequest, place: Place) -> Answer:
        if request.path not in self._routes:
            return Answer(404, {"error": f"reports go to {PATH}"})
        ingest, most = self._routes[request.path]
        if request.method != "POST":
            return Answer(405, {"error": "use POST"})
        if (request.content_length or 0) > most:
            return _too_long(most)
        if "Content-Encoding" in request.headers:
            return Answer(415, {"error": "Content-Encoding is not supported"})
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return Answer(401, {"error": "Authorization: Bearer TOKEN is missing"})
        sender = await self._authenticate(token.strip(), place)
        if isinstance(sender, Answer):
            return sender
        body = await _body(request, most)
        if body is None:
            return _too_long(most)
        if request.path == PROCESS_PATH:
            place.is_served()  # its answer may take longer than the answer to a report
        answer = ingest(sender, body)
        return answer if isinstance(answer, Answer) else await answer

    async def _authenticate(self, token: str, place: Place) -> Sender | Answer:
        """Return the sender, or the rejection. After many invalid tokens from an address, tokens of its new connections
        are not checked."""
        if not place.trusted and not self._rejections.allow(place.peer):
            return Answer(429, {"error": "too many invalid tokens"}, 5.0)
        answer = Answer(401, {"error": "invalid token"})
        try:
            sender = await self._identify(token)
        except Denied as denied:
            sender, answer = None, denied.answer
        if answer.status in _REJECTED:
            place.trusted = sender is not None
            if sender is None:
                self._rejections.count(place.peer)
        return sender or answer

    def _log_exception(self) -> None:
        """Log at a limited rate: a sender must not be able to fill the log."""
        if self._monotonic() - self._logged_at > _LOG_INTERVAL:
            self._logged_at = self._monotonic()
            logger.exception("cannot process a report")


_REJECTED = frozenset({401, 403})
_DELAYED = frozenset({400, 401, 403, 404, 405, 413, 415, 500})
_CLOSED = frozenset({413, 500, 503})
"""Responses that close the connection. 503: the next connection may reach another replica."""
_encode = msgspec.json.Encoder().encode


def _too_long(most: int) -> Answer:
    return Answer(413, {"error": f"message too long: at most {most} bytes"})


async def _body(request: web.BaseRequest, most: int) -> bytes | None:
    """Return the body; None if it is too long. The deadline of the connection ends an endless body."""
    body, content = b"", request.content
    if content.is_eof():  # nearly all bodies arrive with the head
        body = content.read_nowait(-1)
        return None if len(body) > most else body
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > most:
            return None
    return body


def _response(answer: Answer) -> web.Response:
    headers = {"Server": "allranks", "Content-Type": "application/json"}  # no versions of the software
    if answer.retry_after:
        headers["Retry-After"] = str(math.ceil(answer.retry_after))
    response = web.Response(body=_encode(answer.body), status=answer.status, headers=headers)
    if answer.status in _CLOSED:
        response.force_close()
    return response
