"""The controller's side of the socket to the frontend. It does not trust the frontend, which parses HTTP of
untrusted clients.

Requests are bounded in size, number and rate, and few of them are handled in each iteration of the event loop, so that
a frontend that floods the socket does not delay reconciliation. A frontend can report for ranks whose tokens pass
through it, read the metrics, and count reports; nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from dataclasses import dataclass
from typing import Any

from allranks.errors import AllranksError
from allranks.operator.ports import socket_protocol as protocol
from allranks.operator.ports.backend import Backend
from allranks.telemetry.messages import Answer, Denied
from allranks.telemetry.rate_limit import Bucket

_LOG_INTERVAL = 60.0
_TASK_BYTES = 4096

logger = logging.getLogger("allranks.operator")


class SocketError(AllranksError):
    """The socket cannot be created."""


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """For all connections of a socket together."""

    connections: int = 4
    """The frontend has one; a new one may connect before the end of the old one is noticed."""
    per_iteration: int = 32
    """Requests that are handled in one iteration of the event loop."""
    rate: float = 6000.0
    """Requests per second in the long run: two for each report at four times the rate of the report store's target, and
    a burst of as many."""
    unit_bytes: int = 4096
    """Bytes for each unit of the rate: longer requests and replies, such as pages of metrics, cost several units."""
    in_flight_bytes: int = 16 * 1024 * 1024
    """Of requests that wait for the API server. Each counts for at least 4 KiB, about the size of its task."""
    polls: int = 6_000
    """Supervisors that wait for orders: more than their store keeps, because a new poll replaces the former one of its
    pod. Further ones get 503."""


class SocketServer:
    """`start` replaces what a former process left at `path`. Of the backend only `identify`, `outcome`, `process`,
    `code` and `admits` may wait."""

    def __init__(self, path: str, backend: Backend, limits: SocketLimits | None = None) -> None:
        self.path = path
        self._backend, self._limits = backend, limits or SocketLimits()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._in_flight = self._polls = 0
        self._room = asyncio.Event()
        self._bucket = Bucket(self._limits.rate, time.monotonic())
        self._logged_at = float("-inf")

    async def start(self) -> None:
        """Raises SocketError."""
        try:
            listener = _bind(self.path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise SocketError(
                f"the socket {self.path} cannot be created: {reason}: give a path of at most 107 characters in a "
                "directory that the operator may write to"
            ) from error
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=protocol.REQUEST_BYTES)
        logger.info("listening on the socket %s", self.path)

    async def stop(self) -> None:
        if self._server:
            self._server.close()
            with contextlib.suppress(OSError):
                os.unlink(self.path)  # noqa: PTH108  # a path is a setting here, not an object
        for task in (*self._connections, *self._waiting):
            task.cancel()
        await asyncio.gather(*self._connections, *self._waiting, return_exceptions=True)

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._limits.connections:
            writer.close()
            return
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            await self._read(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the frontend was stopped
        except asyncio.CancelledError:
            pass  # `stop`; asyncio would log a cancelled connection as an error
        except protocol.ProtocolError as error:
            self._log("a connection of the frontend is closed: %s", error)
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handled = 0
        while True:
            data = await protocol.read_frame(reader, protocol.REQUEST_BYTES)
            request = protocol.decode_request(data)
            if isinstance(request, protocol.Identify | protocol.Outcome | protocol.Code | protocol.Admits):
                await self._start(request, max(_TASK_BYTES, len(data)), writer)
                replied = 0
            elif isinstance(request, protocol.Process):
                replied = self._start_poll(request, writer)
            else:
                replied = await self._answer(request, writer)
            await writer.drain()  # A frontend that reads no replies gets no further ones.
            await self._throttle(1.0 + (len(data) + replied) / self._limits.unit_bytes)
            handled += 1
            if handled % self._limits.per_iteration == 0:
                await asyncio.sleep(0)

    async def _start(self, request: protocol.Request, size: int, writer: asyncio.StreamWriter) -> None:
        """Handle a request that may wait for the API server, beside those that follow it."""
        while self._in_flight + size > self._limits.in_flight_bytes:
            self._room.clear()
            await self._room.wait()
        self._in_flight += size
        task = asyncio.get_running_loop().create_task(self._answer_later(request, size, writer))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def _start_poll(self, request: protocol.Process, writer: asyncio.StreamWriter) -> int:
        """Let a supervisor wait, in a room of its own. Return the size of the reply if there is no room."""
        if self._polls >= self._limits.polls:
            frame = protocol.reply_frame(request, _TOO_MANY_POLLS)
            writer.write(frame)
            return len(frame)
        self._polls += 1
        task = asyncio.get_running_loop().create_task(self._answer_poll(request, writer))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return 0

    async def _answer_poll(self, request: protocol.Request, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(request, writer)
        finally:
            self._polls -= 1

    async def _answer_later(self, request: protocol.Request, size: int, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(request, writer)
        finally:
            self._in_flight -= size
            self._room.set()

    async def _answer(self, request: protocol.Request, writer: asyncio.StreamWriter) -> int:
        """Return the size of the reply."""
        failed = False
        try:
            result = await self._handle(request)
        except Exception as error:
            failed, result = True, None
            self._log("cannot answer the frontend (%s)", type(request).__name__, error=error)
        if isinstance(request, protocol.Count) or writer.is_closing():
            return 0
        frame = protocol.reply_frame(request, result, failed)
        writer.write(frame)
        return len(frame)

    async def _handle(self, request: protocol.Request) -> object:
        backend = self._backend
        match request:
            case protocol.Identify(token=token):
                return await self._identify(token)
            case protocol.Report(token=token, body=body):
                return await backend.report(token, body)
            case protocol.Outcome(token=token, body=body):
                return await backend.outcome(token, body)
            case protocol.Process(token=token, body=body):
                return await backend.process(token, body)
            case protocol.Code(token=token, body=body):
                return await backend.code(token, body)
            case protocol.Check(name=name):
                return await backend.check(name)
            case protocol.Metrics():
                return await backend.metrics()
            case protocol.Admits(authorization=authorization, peer=peer):
                return await backend.admits(authorization, peer)
            case protocol.Count(counts=counts):
                for status, count in counts.items():
                    backend.count(status, count)
                return None

    async def _identify(self, token: str) -> Answer | None:
        try:
            await self._backend.identify(token)
        except Denied as denied:
            return denied.answer
        return None

    async def _throttle(self, cost: float) -> None:
        limits = self._limits
        self._bucket.add(-cost)
        left = self._bucket.left(time.monotonic(), limits.rate, limits.rate)
        if left < 0:
            await asyncio.sleep(-left / limits.rate)

    def _log(self, message: str, *arguments: object, error: Exception | None = None) -> None:
        """Log at a limited rate: a frontend must not be able to fill the log."""
        if time.monotonic() - self._logged_at > _LOG_INTERVAL:
            self._logged_at = time.monotonic()
            logger.error(message, *arguments, exc_info=error)


_TOO_MANY_POLLS = Answer(503, {"error": "too many supervisors wait"}, 5.0)


def _bind(path: str) -> socket.socket:
    """Return a listening socket that only this user may use. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
        listener.listen(16)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener
