"""Requests to the API server: one pool of connections, bounded concurrency, retries, timeouts.

What may come to pass by trying again is tried again here for a while: 429 (after Retry-After), 5xx, lost connections,
timeouts. Every other answer is an answer. After a while `Unavailable` is raised, so that whoever asked decides anew.

ApiError
 ├─ Unavailable     no answer in time: nobody knows whether the request was carried out
 ├─ NotFound        404
 ├─ Conflict        409: a name that is taken, or a resourceVersion or UID that is not the present one
 ├─ Gone            410: the resourceVersion is too old
 └─ Refused         403, 422, 400, ...: quota, admission, validation, rights
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
import msgspec

from allranks.errors import AllranksError
from allranks.kube.auth import Connection
from allranks.kube.transport import Transport

FIRST_BACKOFF_SECONDS = 0.1
LAST_BACKOFF_SECONDS = 5.0
MERGE_PATCH = "application/merge-patch+json"


class ApiError(AllranksError):
    """An answer that is no success. `code` is HTTP's, `reason` the one of the Status object."""

    def __init__(self, message: str, code: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class Unavailable(ApiError): ...


class NotFound(ApiError): ...


class Conflict(ApiError): ...


class Gone(ApiError): ...


class Refused(ApiError): ...


class Fenced(ApiError):
    """We may not act (any more): another replica does."""


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""


_encode = msgspec.json.Encoder().encode
_status = msgspec.json.Decoder(_Status).decode
_ERRORS = {404: NotFound, 409: Conflict, 410: Gone}
_READS = frozenset({"GET"})


class Client:
    """`may_write` is asked right before a change is sent, each time: a former leader must not act."""

    def __init__(
        self,
        connection: Connection,
        *,
        concurrency: int = 32,
        timeout: float = 30.0,
        patience: float = 60.0,
        may_write: Callable[[], bool] = lambda: True,
        observe: Callable[[str, str, float], None] = lambda verb, code, seconds: None,
        user_agent: str = "allranks",
        transport: Transport | None = None,
    ) -> None:
        self.connection = connection
        self.may_write = may_write
        self.writes = 0
        """Changes that were answered with success."""
        self._observe = observe
        self._always = {"User-Agent": user_agent, "Accept": "application/json"}
        self._slots = asyncio.Semaphore(concurrency)
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(10.0, timeout))
        self._patience = patience
        self.transport = transport or Transport(connection)

    def session(self, **how: Any) -> aiohttp.ClientSession:
        """A session that shares the connection pool."""
        return self.transport.session(**how)

    async def close(self) -> None:
        await self.transport.close()

    async def create(self, path: str, body: Any) -> bytes:
        return await self.request("POST", path, body)

    async def get(self, path: str, **parameters: Any) -> bytes:
        return await self.request("GET", path, None, parameters)

    async def patch(self, path: str, body: Any) -> bytes:
        return await self.request("PATCH", path, body)

    async def replace(self, path: str, body: Any) -> bytes:
        return await self.request("PUT", path, body)

    async def delete(self, path: str, uid: str) -> bytes:
        """Raises Conflict when the object of this name is another one."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        return await self.request("DELETE", path, body | {"propagationPolicy": "Background"})

    async def request(
        self,
        verb: str,
        path: str,
        body: Any = None,
        parameters: Mapping[str, Any] | None = None,
        patience: float | None = None,
    ) -> bytes:
        """The body of a successful answer. Raises ApiError."""
        data = None if body is None else _encode(body)
        until = time.monotonic() + (self._patience if patience is None else patience)
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            wait = 0.0
            error: Exception
            try:
                async with self._slots:
                    return await self._once(verb, path, data, parameters)
            except _TryAgain as again:
                wait, error = again.after, again
            except (aiohttp.ClientError, TimeoutError, OSError) as lost:
                error = lost
            # Full jitter: a thousand requests that failed together do not come back together.
            wait = max(wait, random.uniform(0.2, 1.0) * backoff)
            backoff = min(LAST_BACKOFF_SECONDS, 2 * backoff)
            if time.monotonic() + wait > until:
                why = str(error) or type(error).__name__
                raise Unavailable(f"{verb} {path}: no answer of the API server: {why}") from error
            await asyncio.sleep(wait)

    async def _once(self, verb: str, path: str, data: bytes | None, parameters: Mapping[str, Any] | None) -> bytes:
        if verb not in _READS and not self.may_write():
            raise Fenced(f"{verb} {path}: another replica acts")
        headers = self.connection.headers() | self._always
        if data is not None:
            headers["Content-Type"] = MERGE_PATCH if verb == "PATCH" else "application/json"
        began, code = time.monotonic(), "none"
        try:
            response = await self.transport.send(
                verb, self.connection.url + path, data=data, params=parameters, headers=headers, timeout=self._timeout
            )
            code = str(response.status)
        finally:
            self._observe(verb, code, time.monotonic() - began)
        if response.status < 300:
            self.writes += verb not in _READS
            return response.body
        if response.status == 401:
            self.connection.forget_token()
        if response.status in (401, 429) or response.status >= 500:
            raise _TryAgain(f"{response.status} {_told(response.body)[0]}", _retry_after(response.headers))
        raise _error(response.status, response.body)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, parameters: Mapping[str, Any], silence: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """A watch. Raises TimeoutError when nothing at all comes for `silence` seconds, ApiError at once."""
        headers = self.connection.headers() | self._always
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silence)
        began, code = time.monotonic(), "none"
        async with contextlib.AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(
                    self.transport.stream(
                        self.connection.url + path, params=parameters, headers=headers, timeout=timeout
                    )
                )
                code = str(response.status)
            finally:
                self._observe("WATCH", code, time.monotonic() - began)
            if response.status == 401:
                self.connection.forget_token()
            if response.status != 200:
                answer = await response.read()
                if response.status in (401, 429) or response.status >= 500:
                    raise Unavailable(f"WATCH {path}: {response.status} {_told(answer)[0]}", response.status)
                raise _error(response.status, answer)
            yield response.content


class _TryAgain(Exception):
    def __init__(self, message: str, after: float) -> None:
        super().__init__(message)
        self.after = after


def _error(code: int, answer: bytes) -> ApiError:
    message, reason = _told(answer)
    return _ERRORS.get(code, Refused)(message or f"HTTP {code}", code, reason)


def _told(answer: bytes) -> tuple[str, str]:
    """(message, reason) of a Status object, or as much as a proxy in between says."""
    try:
        status = _status(answer)
    except msgspec.DecodeError:
        return answer[:200].decode(errors="replace").strip(), ""
    return status.message, status.reason


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return min(60.0, max(0.0, float(headers.get("Retry-After", 0))))
    except ValueError:
        return 0.0
