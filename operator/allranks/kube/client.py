"""Requests to the API server: bounded concurrency, retries, timeouts, and a fence against writes of a former leader.

Retries transient errors (429 with Retry-After, 5xx, 401 with a new token, connection loss, timeouts) with jittered
exponential backoff, then raises `Unavailable`. Every other error of the API server is raised at once (kube/errors).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import re
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec
from multidict import CIMultiDictProxy

from allranks.kube.auth import Connection
from allranks.kube.errors import (
    BY_STATUS,
    CONNECT_FAILED,
    DISCONNECTED,
    LOGIN_FAILED,
    TIMED_OUT,
    UNTRUSTED,
    ApiError,
    Fenced,
    LoginError,
    NamespaceTerminating,
    Refused,
    Unavailable,
)
from allranks.shares import Turns


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

    def session(self, **options: Any) -> aiohttp.ClientSession:
        """Return a session that shares the connection pool."""
        return aiohttp.ClientSession(connector=self._connector, connector_owner=False, proxy=self._proxy, **options)

    async def send(self, verb: str, url: str, **options: Any) -> Response:
        async with self._session.request(verb, url, **self._options, **options) as response:
            return Response(response.status, response.headers, await response.read())

    @contextlib.asynccontextmanager
    async def stream(self, url: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a GET whose body the caller reads while it arrives."""
        async with self._session.get(url, **self._options, **options) as response:
            try:
                yield response
            finally:
                # Not read to its end, as a watch that is cancelled: a TLS shutdown could outlive the event loop.
                if response.connection and response.connection.transport:
                    response.connection.transport.abort()

    async def close(self, abort: bool = False) -> None:
        """Close all connections; with `abort`, without the TLS shutdown handshake."""
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


FIRST_BACKOFF_SECONDS = 0.1
LAST_BACKOFF_SECONDS = 5.0
CONNECT_SECONDS = 10.0
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
_LARGE_BYTES = 2**20
_NAMESPACED = re.compile(r"/namespaces/([^/?]+)/")


def _namespace(path: str) -> str:
    """Return the namespace whose objects a request is about. Namespaces have turns: the API server needs half a minute
    for some objects, and requests about them must not take all places."""
    match = _NAMESPACED.search(path)
    return match[1] if match else ""


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    details: dict[str, Any] | None = None


_WEBHOOK_FAILED = "failed calling webhook"
"""In the message of a 500: an admission webhook with failurePolicy Fail is away. Retries do not help soon, and the user
needs to know, so it is a rejection."""

_encode = msgspec.json.Encoder().encode
_status = msgspec.json.Decoder(_Status).decode
_READS = frozenset({"GET"})
_CLOSED = "Connection closed."
"""What aiohttp's StreamReader says in a RuntimeError about a connection that was closed between two reads."""
_LOST = (aiohttp.ClientError, TimeoutError, OSError, LoginError)


class Client:
    """Asks `fence` right before each write is sent, retries included: a former leader must not write."""

    def __init__(
        self,
        connection: Connection,
        *,
        concurrency: int = 32,
        timeout: float = 30.0,
        retry_timeout: float = 60.0,
        may_retry: Callable[[str, Unavailable], bool] = lambda _verb, _error: True,
        fence: Callable[[], bool] = lambda: True,
        observe: Callable[[str, str, float], None] = lambda verb, code, seconds: None,
        on_warning: Callable[[str], None] | None = None,
        user_agent: str = "allranks",
        transport: Transport | None = None,
    ) -> None:
        """`may_retry(verb, error)`: whether a failed request is sent again within `retry_timeout` seconds."""
        self.connection = connection
        self.fence = fence
        self.writes = 0
        """Successful writes."""
        self._observe, self._on_warning = observe, on_warning
        self._headers = {"User-Agent": user_agent}
        self._slots = Turns(concurrency)
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_SECONDS, timeout))
        self._retry_timeout, self._may_retry = retry_timeout, may_retry
        self.transport = transport or Transport(connection)

    def session(self, **options: Any) -> aiohttp.ClientSession:
        """Return a session that shares the connection pool."""
        return self.transport.session(**options)

    async def close(self) -> None:
        await self.transport.close()

    async def create(self, path: str, body: Any) -> bytes:
        return await self.request("POST", path, body)

    async def get(self, path: str, **parameters: Any) -> bytes:
        return await self.request("GET", path, None, parameters)

    async def patch(self, path: str, body: Any) -> bytes:
        return await self.request("PATCH", path, body)

    async def delete(self, path: str, uid: str, version: str = "", grace_seconds: int | None = None) -> bytes:
        """Delete an object. Raises Conflict if it has another UID, or another resourceVersion if one is passed.

        `grace_seconds` replaces the grace period of a pod."""
        preconditions = {"uid": uid} | ({"resourceVersion": version} if version else {})
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        grace = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        return await self.request("DELETE", path, body | grace | {"propagationPolicy": "Background"})

    async def request(
        self,
        verb: str,
        path: str,
        body: Any = None,
        parameters: Mapping[str, Any] | None = None,
        *,
        accept: str = JSON,
        content: str | None = None,
        retry_timeout: float | None = None,
    ) -> bytes:
        """Return the body of a successful answer; a PATCH is a JSON merge patch, unless `content` is another type.
        Raises ApiError."""
        data = None if body is None else _encode(body)
        until = time.monotonic() + (self._retry_timeout if retry_timeout is None else retry_timeout)
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            try:
                async with self._slots.turn(_namespace(path)):
                    return await self._once(verb, path, data, parameters, accept, content)
            except Unavailable as error:
                # Full jitter: a thousand requests that failed together are not repeated together.
                wait = max(error.retry_after, random.uniform(0.2, 1.0) * backoff)
                backoff = min(LAST_BACKOFF_SECONDS, 2 * backoff)
                if not self._may_retry(verb, error) or time.monotonic() + wait > until:
                    raise
            await asyncio.sleep(wait)

    async def _once(
        self,
        verb: str,
        path: str,
        data: bytes | None,
        parameters: Mapping[str, Any] | None,
        accept: str,
        content: str | None,
    ) -> bytes:
        if verb not in _READS and not self.fence():
            raise Fenced(f"{verb} {path}: this replica is not the leader")
        began, code = time.monotonic(), "none"
        try:
            headers = self.connection.headers() | self._headers | {"Accept": accept}
            if data is not None:
                headers["Content-Type"] = content or (MERGE_PATCH if verb == "PATCH" else JSON)
            # aiohttp sends a BytesIO in parts, and warns of more than 1 MiB of bytes, which would block the event loop.
            sent = io.BytesIO(data) if data is not None and len(data) > _LARGE_BYTES else data
            response = await self.transport.send(
                verb, self.connection.url + path, data=sent, params=parameters, headers=headers, timeout=self._timeout
            )
            code = str(response.status)
        except _LOST as error:
            raise _lost(verb, path, error) from error
        finally:
            self._observe(verb, code, time.monotonic() - began)
        if self._on_warning:
            for warning in response.headers.getall("Warning", ()):
                self._on_warning(warning)
        if response.status < 300:
            self.writes += verb not in _READS
            return response.body
        raise self._error(verb, path, response)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        parameters: Mapping[str, Any],
        silence: float | None,
        *,
        accept: str = JSON,
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Open the body of an answer while it arrives: a watch, or a log that is followed.

        Raises ApiError: at once, when the connection is lost, and when nothing arrives for `silence` seconds.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence)
        began, code = time.monotonic(), "none"
        try:
            async with contextlib.AsyncExitStack() as stack:
                try:
                    headers = self.connection.headers() | self._headers | {"Accept": accept}
                    response = await stack.enter_async_context(
                        self.transport.stream(
                            self.connection.url + path, params=parameters, headers=headers, timeout=timeout
                        )
                    )
                    code = str(response.status)
                finally:
                    self._observe("WATCH", code, time.monotonic() - began)
                if response.status >= 300:
                    answer = Response(response.status, response.headers, await response.read())
                    raise self._error("WATCH", path, answer)
                try:
                    yield response.content
                except RuntimeError as error:
                    if str(error) != _CLOSED:
                        raise
                    raise aiohttp.ClientConnectionError(_CLOSED) from error
        except _LOST as error:
            raise _lost("WATCH", path, error) from error

    def _error(self, verb: str, path: str, response: Response) -> ApiError:
        if response.status == 401:
            self.connection.forget_token()
        message, reason, details = _parse_status(response.body)
        message = message or f"HTTP status {response.status}"
        if response.status == 500 and _WEBHOOK_FAILED in message:
            return Refused(message, response.status, reason, details)
        if response.status in (401, 429) or response.status >= 500:
            error = Unavailable(message, response.status, reason, details, context=f"{verb} {path}: {response.status}")
            error.retry_after = _retry_after(response.headers)
            return error
        if response.status == 403 and "NamespaceTerminating" in str(details.get("causes")):
            return NamespaceTerminating(message, response.status, reason, details)
        return BY_STATUS.get(response.status, Refused)(message, response.status, reason, details)


def _lost(verb: str, path: str, error: Exception) -> Unavailable:
    """Return the error for a request that got no answer."""
    reason, message = DISCONNECTED, str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason, message = UNTRUSTED, str(error.certificate_error)
    elif isinstance(error, aiohttp.ClientConnectorError):
        # asyncio puts the address, which the sentence has already, in place of the system's text.
        number = error.os_error.errno
        text = os.strerror(number) if number and number > 0 else error.os_error.strerror
        reason, message = CONNECT_FAILED, str(text or error.os_error).lower()
    elif isinstance(error, TimeoutError):
        reason = TIMED_OUT
    elif isinstance(error, LoginError):
        reason = LOGIN_FAILED
    return Unavailable(message, 0, reason, context=f"{verb} {path}: no response from the API server")


def _parse_status(answer: bytes) -> tuple[str, str, Mapping[str, Any]]:
    """Return message, reason and details of a Status object. A proxy in between answers with plain text."""
    try:
        status = _status(answer)
    except msgspec.DecodeError:
        return answer[:200].decode(errors="replace").strip(), "", {}
    return status.message, status.reason, status.details or {}


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return min(60.0, max(0.0, float(headers.get("Retry-After", 0))))
    except ValueError:
        return 0.0
