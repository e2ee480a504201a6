"""A TCP proxy between a client and a server of data: cuts connections, answers in the server's place, and counts."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_CHUNK = 64 * 1024


@dataclass
class Way:
    """What passes. Tests change it between requests."""

    url: str = ""
    """Of the proxy."""
    cut_after: int | None = None
    """A connection is closed after this many bytes to the client."""
    cuts: int = 0
    """How many connections are cut; further ones are whole."""
    answer: bytes | None = None
    """The whole response to each request, in place of the server's."""
    received: int = 0
    """Bytes that the client has received."""
    logins: set[str] = field(default_factory=set)
    """Values of the header Authorization."""


@contextlib.contextmanager
def cutting_proxy(upstream: str) -> Iterator[Way]:
    """Yields the way to the server at `upstream`."""
    there = urlsplit(upstream)
    way = Way()
    sockets: set[socket.socket] = set()
    threads: list[threading.Thread] = []
    listening = socket.create_server(("127.0.0.1", 0))
    way.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return  # closed
            threads.append(thread := threading.Thread(target=serve, args=(client,)))
            thread.start()

    def serve(client: socket.socket) -> None:
        sockets.add(client)
        with client, contextlib.suppress(OSError):
            if way.answer is not None:
                note(client.recv(_CHUNK))
                client.sendall(way.answer)
                client.shutdown(socket.SHUT_WR)
                while client.recv(_CHUNK):
                    pass
                return
            with socket.create_connection((there.hostname or "", there.port or 80)) as server:
                sockets.add(server)
                upward = threading.Thread(target=pass_up, args=(client, server))
                upward.start()
                with contextlib.suppress(OSError):
                    pass_down(server, client)
                for each in (server, client):
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)
                upward.join()

    def pass_up(client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(_CHUNK):
                note(data)
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def pass_down(server: socket.socket, client: socket.socket) -> None:
        sent = 0
        while data := server.recv(_CHUNK):
            limit = way.cut_after
            if limit is not None and way.cuts > 0 and sent + len(data) > limit:
                way.cuts -= 1
                client.sendall(data[: max(0, limit - sent)])
                way.received += max(0, limit - sent)
                return
            client.sendall(data)
            sent += len(data)
            way.received += len(data)

    def note(data: bytes) -> None:
        for found in re.findall(rb"(?im)^authorization: ([^\r\n]+)", data):
            way.logins.add(found.decode())

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield way
    finally:
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        acceptor.join()
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
