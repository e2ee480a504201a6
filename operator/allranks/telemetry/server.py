"""`POST /v1/report` over HTTP: who is it, is it short enough, and what the hub says to it.

Everything that comes in is somebody else's: sizes, times and numbers are bounded (`connections`), what is refused is
refused late, no answer tells of what is inside, and no token is kept or logged.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from allranks.telemetry.connections import Connection, Connections, Limits
from allranks.telemetry.rate_limit import Bucket
from allranks.telemetry.schema import BODY_BYTES
from allranks.telemetry.store import Answer, ReportSource

PATH = "/v1/report"
SWEEP_SECONDS = 1.0
_COMPLAINT_SECONDS = 60.0

logger = logging.getLogger("allranks.reports")
_silent = logging.getLogger("allranks.reports.http")
_silent.disabled = True  # aiohttp's: of what strangers send, it quotes the lines that it cannot read

Identify = Callable[[str], Awaitable[ReportSource | None]]
"""Whose token this is; None: nobody's. Raises Denied."""


class Denied(Exception):
    """401: no such token. 403: not the token of a rank. 503: not now, or not here. The message is for the sender."""

    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.answer = Answer(status, {"error": message}, retry_after)


class Server:
    """`port` 0 takes a free one; `port` afterwards tells which. `count` is told the status of each answer."""

    def __init__(
        self,
        identify: Identify,
        take: Callable[[ReportSource, bytes], Answer],
        *,
        address: str = "",
        port: int = 0,
        count: Callable[[int], None] = lambda status: None,
        limits: Limits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.port = port
        self._identify, self._take, self._count = identify, take, count
        self._address, self._monotonic = address, monotonic
        self._limits = limits or Limits()
        self._refusals: OrderedDict[str, Bucket] = OrderedDict()
        """Of each address that was refused something."""
        self._complained_at = float("-inf")
        self._connections: Connections | None = None
        self._runner: web.ServerRunner | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        return len(self._connections) if self._connections else 0

    async def start(self) -> None:
        """Raises OSError when the port is taken."""
        self._connections = Connections(self._limits, self._monotonic)
        # shutdown_timeout: nobody loses anything when a connection ends.
        self._runner = web.ServerRunner(_Listener(self._handle, self._connections), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._address or None, self.port, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._sweeper = asyncio.create_task(self._sweep(), name="connections of reports")

    async def stop(self) -> None:
        if self._sweeper:
            self._sweeper.cancel()
        if self._runner:
            await self._runner.cleanup()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            assert self._connections is not None
            self._connections.sweep()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.begins()
        try:
            answer = await self._answer(request, connection)
        except (web.RequestPayloadError, ConnectionError):
            answer = Answer(400, {"error": "the message did not come whole"})
        except Exception:
            self._complain()
            answer = Answer(500, {"error": "the operator failed; its log says more"}, 30.0)
        if answer.status == 429:
            await asyncio.sleep(min(answer.retry_after, self._limits.wait_seconds))
        elif answer.status in _HELD:
            await asyncio.sleep(self._limits.hold_seconds)
        self._count(answer.status)
        connection.answered()
        return _response(answer)

    async def _answer(self, request: web.BaseRequest, connection: Connection) -> Answer:
        if request.path != PATH:
            return Answer(404, {"error": f"reports go to {PATH}"})
        if request.method != "POST":
            return Answer(405, {"error": "POST it"})
        if (request.content_length or 0) > BODY_BYTES:
            return _TOO_LONG
        if "Content-Encoding" in request.headers:
            return Answer(415, {"error": "no encoding is understood"})
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return Answer(401, {"error": "Authorization: Bearer TOKEN is missing"})
        sender = await self._known(token.strip(), connection)
        if isinstance(sender, Answer):
            return sender
        body = await _body(request)
        return _TOO_LONG if body is None else self._take(sender, body)

    async def _known(self, token: str, connection: Connection) -> ReportSource | Answer:
        """An address that sent many tokens that are nobody's does not get more of them looked at."""
        limits, peer = self._limits, connection.peer
        bucket = self._refusals.get(peer)
        if bucket and not connection.trusted and bucket.left(self._monotonic(), limits.refusals, 1.0) < 1.0:
            return Answer(429, {"error": "too many tokens that are nobody's"}, 5.0)
        answer = Answer(401, {"error": "this token is nobody's"})
        try:
            sender = await self._identify(token)
        except Denied as denied:
            sender, answer = None, denied.answer
        if answer.status in _REFUSED:
            connection.trusted = sender is not None
            if sender is None:
                self._refused(peer)
        return sender or answer

    def _refused(self, peer: str) -> None:
        moment, limits = self._monotonic(), self._limits
        bucket = self._refusals.pop(peer, None) or Bucket(limits.refusals, moment)
        bucket.take(moment, limits.refusals, 1.0)
        self._refusals[peer] = bucket
        if len(self._refusals) > limits.peers:
            self._refusals.popitem(last=False)

    def _complain(self) -> None:
        """Seldom: what somebody's message can cause must not fill the log."""
        if self._monotonic() - self._complained_at > _COMPLAINT_SECONDS:
            self._complained_at = self._monotonic()
            logger.exception("a report could not be taken")


_REFUSED = frozenset({401, 403})
_HELD = frozenset({400, 401, 403, 404, 405, 413, 415, 500})
_CLOSED = frozenset({413, 500, 503})
"""Answers that end the connection. 503: another replica may be behind the next one."""
_TOO_LONG = Answer(413, {"error": f"a message has at most {BODY_BYTES} bytes"})
_encode = msgspec.json.Encoder().encode


async def _body(request: web.BaseRequest) -> bytes | None:
    """None: it is too long. The connection's deadline ends one that never ends."""
    body, content = b"", request.content
    if content.is_eof():  # it came with its head, as nearly all do
        body = content.read_nowait(-1)
        return None if len(body) > BODY_BYTES else body
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > BODY_BYTES:
            return None
    return body


def _response(answer: Answer) -> web.Response:
    headers = {"Server": "allranks", "Content-Type": "application/json"}  # not which version of what
    if answer.retry_after:
        headers["Retry-After"] = str(math.ceil(answer.retry_after))
    response = web.Response(body=_encode(answer.body), status=answer.status, headers=headers)
    if answer.status in _CLOSED:
        response.force_close()
    return response


class _Listener(web.Server):
    """Serves each connection by `Connection`."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], table: Connections) -> None:
        super().__init__(handler)
        self._table = table

    def __call__(self) -> web.RequestHandler:
        return Connection(
            self,
            self._table,
            loop=asyncio.get_running_loop(),
            logger=_silent,
            access_log=None,
            auto_decompress=False,
            lingering_time=1.0,
            keepalive_timeout=self._table.limits.idle_seconds,
        )
