"""Sockets and the HTTP server of the pages and REST."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from allranks.errors import AllranksError

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

HOST = "127.0.0.1"
PORT = 8765
CLOSE_SECONDS = 3
"""Time in which open connections may end after Ctrl-C."""


def listen(port: int | None) -> socket.socket:
    """Return a socket on this machine only. Raises AllranksError if the port is in use."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for tried in (PORT, 0) if port is None else (port,):
        try:
            listener.bind((HOST, tried))
        except OSError as error:
            if tried == PORT and port is None:
                continue
            listener.close()
            raise AllranksError(
                f"--port {tried}: cannot listen on {HOST}:{tried}: {(error.strerror or str(error)).lower()}"
            ) from error
        listener.listen()
        return listener
    raise AssertionError("port 0 is always free")


def everywhere(port: int) -> socket.socket:
    """Return a listening socket on all addresses, IPv4 and IPv6. Raises OSError."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def server_config(app: FastAPI, **options: Any) -> uvicorn.Config:
    """Return a configuration with the same loop and protocols, whatever else is installed."""
    import uvicorn

    return uvicorn.Config(app, loop="asyncio", http="h11", ws="none", server_header=False, **options)


def run_server(app: FastAPI, listener: socket.socket, started: Callable[[], None]) -> None:
    """Serve until a signal. Call `started` when the server answers."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.close_streams()
            await super().shutdown(sockets)

    config = server_config(app, log_level="warning", timeout_graceful_shutdown=CLOSE_SECONDS)
    with listener:
        Server(config).run(sockets=[listener])
