"""An HTTP listener whose connections are bounded: every port of the operator is one.

Connections are limited in total and per address, in their duration, and in their unanswered bytes. An idle sender can
reconnect without loss, so the connection that is idle longest is closed when there is no room. Each state of a
connection has a deadline, so that slow senders do not affect others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web

from allranks.open_files import raise_open_files
from allranks.telemetry.rate_limit import Bucket


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, numbers and bytes."""

    connections: int = 10_000
    connections_of_peer: int = 256
    """Per address. Some networks hide all pods of a node behind its address."""
    new_of_peer: float = 512
    new_per_second: float = 32.0
    """Per address: burst, and rate, of new connections."""
    first_seconds: float = 10.0
    """From connecting until the head of the first request is complete."""
    idle_seconds: float = 75.0
    """Between a response and the next request head: more than two intervals."""
    request_seconds: float = 20.0
    """From the head of a request until its response: the body, and authentication."""
    unanswered_bytes: int = 65_536
    """Bytes that a connection may send before a response. A head with a token and a body take a quarter of that."""
    hold_seconds: float = 1.0
    """Rejections are delayed by this (tarpit)."""
    wait_seconds: float = 10.0
    """A 429 is delayed by its Retry-After, at most by this, which enforces the wait."""
    rejections: int = 64
    """Invalid tokens of one address in a row, plus one per second. Further tokens of its new connections are not
    checked."""
    peers: int = 4096
    """Addresses whose rate limits are remembered."""
    lingering_seconds: float = 1.0
    """After a response that closes the connection, the rest of its request is read for this long."""
    sweep_seconds: float = 1.0
    """Interval at which expired connections are closed."""


class Connection(web.RequestHandler):
    """The connection of a sender. Uses only the public parts of aiohttp."""

    def __init__(self, manager: web.Server, table: Connections, **options: Any) -> None:
        super().__init__(manager, **options)
        self.peer = ""
        self.trusted = False
        """Its last token was valid."""
        self._table = table
        self._unanswered = 0
        self.state: OrderedDict[Connection, float] | None = None
        self._wire: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = self._wire = cast("asyncio.Transport", transport)  # transports of uvloop are not subclasses of asyncio's
        self.peer = str((transport.get_extra_info("peername") or ("",))[0])
        if not self._table.admits(self.peer):
            wire.abort()
            return
        super().connection_made(transport)
        self._table.add(self)

    def data_received(self, data: bytes) -> None:
        self._unanswered += len(data)
        if self._unanswered > self._table.limits.unanswered_bytes:
            self.cut()
        else:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._table.lost(self)
        super().connection_lost(exc)
        self._wire = None

    def begins(self) -> None:
        """Note that a request head has arrived."""
        self._table.moved(self, busy=True)

    def answered(self) -> None:
        self._unanswered = 0
        self._table.moved(self, busy=False)

    def cut(self) -> None:
        """Close the connection without sending anything, which the peer might not read."""
        if self._wire is not None:
            self._wire.abort()


class Connections:
    """All connections of a server by state, in each state ordered by when they entered it."""

    def __init__(self, limits: Limits, monotonic: Callable[[], float]) -> None:
        self.limits, self._monotonic = limits, monotonic
        self._first: OrderedDict[Connection, float] = OrderedDict()
        self._idle: OrderedDict[Connection, float] = OrderedDict()
        self._busy: OrderedDict[Connection, float] = OrderedDict()
        self._of_peer: dict[str, set[Connection]] = {}
        self._new: OrderedDict[str, Bucket] = OrderedDict()
        self._room = room(limits.connections)

    def __len__(self) -> int:
        return len(self._first) + len(self._idle) + len(self._busy)

    def admits(self, peer: str) -> bool:
        """Return whether the rate limit of an address allows a new connection."""
        limits, moment = self.limits, self._monotonic()
        bucket = self._new.pop(peer, None) or Bucket(limits.new_of_peer, moment)
        self._new[peer] = bucket
        if len(self._new) > limits.peers:
            self._new.popitem(last=False)
        return bucket.take(moment, limits.new_of_peer, limits.new_per_second)

    def add(self, new: Connection) -> None:
        others = self._of_peer.setdefault(new.peer, set())
        if len(others) >= self.limits.connections_of_peer:
            self._drop(min((c for c in others if c.state is not self._busy), key=self._since, default=new))
        elif len(self) >= self._room:
            fronts = [next(iter(state)) for state in (self._idle, self._first) if state]
            self._drop(min(fronts, key=self._since, default=new))
        if new._wire is not None and not new._wire.is_closing():
            others = self._of_peer.setdefault(new.peer, set())
            others.add(new)
            new.state = self._first
            new.state[new] = self._monotonic()
        elif not others:
            self._of_peer.pop(new.peer, None)

    def moved(self, connection: Connection, busy: bool) -> None:
        if connection.state is not None:
            del connection.state[connection]
            connection.state = self._busy if busy else self._idle
            connection.state[connection] = self._monotonic()

    def lost(self, connection: Connection) -> None:
        if connection.state is not None:
            del connection.state[connection]
            connection.state = None
        others = self._of_peer.get(connection.peer)
        if others is not None:
            others.discard(connection)
            if not others:
                del self._of_peer[connection.peer]

    def sweep(self) -> None:
        """Close connections whose deadline has passed."""
        moment, limits = self._monotonic(), self.limits
        for state, seconds in (
            (self._first, limits.first_seconds),
            (self._idle, limits.idle_seconds),
            (self._busy, limits.request_seconds),
        ):
            while state:
                connection, since = next(iter(state.items()))
                if moment - since <= seconds:
                    break
                self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self.lost(connection)
        connection.cut()

    def _since(self, connection: Connection) -> float:
        return connection.state[connection] if connection.state is not None else self._monotonic()


_OTHER_FILES = 256
"""Open files of the process besides these connections: those to the API server, and of the ports for metrics and
probes."""


def room(requested: int) -> int:
    """Return the number of connections that the limit of open files allows."""
    return min(requested, max(16, raise_open_files(requested + _OTHER_FILES) - _OTHER_FILES))


_silent = logging.getLogger("allranks.http")
# aiohttp's logger quotes malformed input of unauthenticated senders. A filter, because logging.config enables loggers.
_silent.addFilter(lambda _: False)

Handle = Callable[[web.BaseRequest, Connection], Awaitable[web.StreamResponse]]


class Listener:
    """`port` 0 selects a free port, which `port` has after `start`."""

    def __init__(
        self,
        handle: Handle,
        *,
        address: str = "",
        port: int = 0,
        limits: Limits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.port = port
        self._handle, self._address, self._monotonic = handle, address, monotonic
        self._limits = limits or Limits()
        self._connections: Connections | None = None
        self._runner: web.ServerRunner | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        return len(self._connections) if self._connections else 0

    async def start(self) -> None:
        """Listen on the port. Raises OSError when it is in use."""
        self._connections = Connections(self._limits, self._monotonic)
        # shutdown_timeout: a closed connection loses no data, the peer repeats everything.
        self._runner = web.ServerRunner(_Server(self._serve, self._connections), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._address or None, self.port, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._sweeper = asyncio.create_task(self._sweep(), name="sweep connections")

    async def stop(self) -> None:
        if self._sweeper:
            self._sweeper.cancel()
        if self._runner:
            await self._runner.cleanup()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._limits.sweep_seconds)
            assert self._connections is not None
            self._connections.sweep()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.begins()
        try:
            return await self._handle(request, connection)
        finally:
            connection.answered()


class _Server(web.Server):
    """Creates a `Connection` per connection."""

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
            lingering_time=self._table.limits.lingering_seconds,
            keepalive_timeout=self._table.limits.idle_seconds,
        )
