"""Sends HTTP requests to the API server. `Client` adds authentication, retries and errors.

A test passes another transport, which drops requests or pretends that the process has died.
"""

from __future__ import annotations

import contextlib
import socket
import urllib.request
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDictProxy

from allranks.kube.auth import Connection


class Response(NamedTuple):
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


class Transport:
    """One connection pool for requests, watches and kopf."""

    def __init__(self, connection: Connection, read_buffer: int = 1 << 16) -> None:
        # Watches need connections of their own; the client's semaphore bounds the rest.
        self._connector = aiohttp.TCPConnector(
            limit=0, ssl=connection.ssl_context(), keepalive_timeout=75, socket_factory=_socket
        )
        self._proxy = connection.proxy or _proxy(connection.url)
        self._options: dict[str, Any] = {"allow_redirects": False}
        if connection.server_name:
            self._options["server_hostname"] = connection.server_name
        self._session = self.session(read_bufsize=read_buffer)

    def session(self, **how: Any) -> aiohttp.ClientSession:
        """Return a session that shares the connection pool."""
        return aiohttp.ClientSession(connector=self._connector, connector_owner=False, proxy=self._proxy, **how)

    async def send(self, verb: str, url: str, **how: Any) -> Response:
        async with self._session.request(verb, url, **self._options, **how) as response:
            return Response(response.status, response.headers, await response.read())

    @contextlib.asynccontextmanager
    async def stream(self, url: str, **how: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a GET whose body the caller reads while it arrives."""
        async with self._session.get(url, **self._options, **how) as response:
            try:
                yield response
            finally:
                # Not read to its end, as a watch that is cancelled: a TLS shutdown could outlive the event loop.
                if response.connection and response.connection.transport:
                    response.connection.transport.abort()

    async def close(self, abort: bool = False) -> None:
        """`abort`: closes connections without the TLS shutdown handshake."""
        await self._session.close()
        if abort:
            await self._connector.close(abort_ssl=True)
        else:
            await self._connector.close()


def _socket(address: Any) -> socket.socket:
    """Return a socket with TCP keepalive, which detects within a minute a connection that broke while this machine
    slept."""
    family, kind, protocol, _, _ = address
    connection = socket.socket(family, kind, protocol)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # macOS has no TCP_KEEPIDLE
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def _proxy(url: str) -> str | None:
    """Read the proxy from the environment once. With `trust_env`, aiohttp starts two threads per request, which look
    for a proxy and read ~/.netrc: a third of the operator's CPU time."""
    target = urlsplit(url)
    if urllib.request.proxy_bypass(target.hostname or ""):
        return None
    return urllib.request.getproxies().get(target.scheme)
