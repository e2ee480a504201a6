"""The HTTP server of the pages and REST. Its connections are bounded like those of the operator's ports."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Callable
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from allranks.telemetry.connections import Connections, Limits, Place

CLOSE_SECONDS = 3
"""Time in which open connections may end after Ctrl-C."""
LIMITS = Limits(
    connections=2048,
    # A proxy connects for all its users, and kubectl port-forward from inside the pod.
    connections_of_peer=1536,
    new_of_peer=4096,
    new_per_second=256.0,
)
PLACE = "allranks.place"
"""Key of the connection of a request in its ASGI scope."""


def accept_sender(scope: Scope) -> None:
    """Note that the sender of a request is authenticated: its answer has no deadline."""
    place: Place | None = scope.get(PLACE)
    if place:
        place.is_served()


def close(scope: Scope) -> None:
    """Close the connection of a request, whose client does not read the answer."""
    place: Place | None = scope.get(PLACE)
    if place:
        place.cut()


class _Protocol(H11Protocol):
    """A connection with a place in the table."""

    def __init__(self, table: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._table, self._place = table, cast("Place | None", None)
        self._answer = cast("ASGIApp", self.app)
        self.app = cast("Any", self._respond)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast("asyncio.Transport", transport)
        self._place = self._table.open(wire)
        if self._place:
            super().connection_made(wire)

    def data_received(self, data: bytes) -> None:
        if self._place:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._place:
            self._place.lost()
            super().connection_lost(exc)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._place
        self._place.begins()
        try:
            await self._answer({**scope, PLACE: self._place}, receive, send)
        finally:
            self._place.answered()


class HttpServer(uvicorn.Server):
    """Serves with the same loop and protocols, whatever else is installed."""

    def __init__(self, app: FastAPI, **options: Any) -> None:
        self._table = Connections(LIMITS)
        protocol = cast("Any", functools.partial(_Protocol, self._table))
        super().__init__(
            uvicorn.Config(
                app, loop="asyncio", http=protocol, ws="none", server_header=False, proxy_headers=False, **options
            )
        )

    async def on_tick(self, counter: int) -> bool:
        """Close connections whose deadline has passed. uvicorn calls this ten times a second."""
        self._table.sweep()
        return await super().on_tick(counter)


def run_server(app: FastAPI, listener: socket.socket, started: Callable[[], None]) -> None:
    """Serve until a signal. Call `started` when the server answers."""

    class Server(HttpServer):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.close_streams()
            await super().shutdown(sockets)

    with listener:
        # Malformed requests are warnings, and everybody can send them: they would fill the log.
        Server(app, log_level="error", timeout_graceful_shutdown=CLOSE_SECONDS).run(sockets=[listener])
