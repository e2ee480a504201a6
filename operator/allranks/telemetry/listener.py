"""An HTTP listener whose connections are bounded (`connections`): every port of the operator is one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from allranks.telemetry.connections import Connection, Connections, Limits

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
        """Raises OSError when the port is in use."""
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
