"""An HTTP listener whose connections are bounded (`connections`): every port of the operator is one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web

from allranks.telemetry.connections import Connections, Limits, Place


class Connection(web.RequestHandler):
    """The connection of a sender. Uses only the public parts of aiohttp."""

    def __init__(self, manager: web.Server, table: Connections, **options: Any) -> None:
        super().__init__(manager, **options)
        self.place: Place | None = None
        """None if the connection was refused."""
        self._table = table

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Transports of uvloop are not subclasses of asyncio's.
        self.place = self._table.open(cast("asyncio.Transport", transport))
        if self.place:
            super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.place and self.place.receives(len(data)):
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.place:
            self.place.lost()
        super().connection_lost(exc)


_silent = logging.getLogger("allranks.http")
# aiohttp's logger quotes malformed input of unauthenticated senders. A filter, because logging.config enables loggers.
_silent.addFilter(lambda _: False)

Handle = Callable[[web.BaseRequest, Place], Awaitable[web.StreamResponse]]


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
        assert connection.place
        connection.place.begins()
        try:
            return await self._handle(request, connection.place)
        finally:
            connection.place.answered()


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
