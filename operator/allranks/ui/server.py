"""The sockets of the pages and REST."""

from __future__ import annotations

import socket

from allranks.errors import AllranksError

HOST = "127.0.0.1"
PORT = 8765


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
