"""Sends HTTP requests to the API server. `Client` adds authentication, retries and errors.

A test passes another transport, which drops requests or pretends that the process has died.
"""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from allranks.kube.auth import Connection


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport:
    """One connection pool for requests, watches and kopf."""

    def __init__(self, connection: Connection) -> None:
        # Watches need connections of their own; the client's semaphore bounds the rest.
        self._connector = aiohttp.TCPConnector(limit=0, ssl=connection.ssl_context(), keepalive_timeout=75)
        self._proxy = _proxy(connection.url)
        self._session = self.session()

    def session(self, **how: Any) -> aiohttp.ClientSession:
        """A session that shares the connection pool."""
        return aiohttp.ClientSession(connector=self._connector, connector_owner=False, proxy=self._proxy, **how)

    async def send(self, verb: str, url: str, **how: Any) -> Response:
        async with self._session.request(verb, url, **how) as response:
            return Response(response.status, response.headers, await response.read())

    @contextlib.asynccontextmanager
    async def stream(self, url: str, **how: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """A GET whose body the caller reads while it arrives."""
        async with self._session.get(url, **how) as response:
            yield response

    async def close(self, abort: bool = False) -> None:
        """`abort`: closes connections without the TLS shutdown handshake."""
        await self._session.close()
        if abort:
            await self._connector.close(abort_ssl=True)
        else:
            await self._connector.close()


def _proxy(url: str) -> str | None:
    """Reads the proxy from the environment once. With `trust_env`, aiohttp starts two threads per request, which look
    for a proxy and read ~/.netrc: a third of the operator's CPU time."""
    target = urlsplit(url)
    if urllib.request.proxy_bypass(target.hostname or ""):
        return None
    return urllib.request.getproxies().get(target.scheme)
