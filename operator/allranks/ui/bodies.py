"""Bounds the bodies of requests: their size, their time, and how many are in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allranks.shares import Turns
from allranks.ui.problems import Problem
from allranks.ui.users import USER_HEADER

MOST_BODY_BYTES = 2**20
BODY_SECONDS, LINGERING_SECONDS = 15.0, 2.0
AT_ONCE = 16
"""Requests with a body that are handled at the same time."""


async def read_body(scope: Scope, receive: Receive, most: int = MOST_BODY_BYTES) -> bytes:
    """Return the body of a request. Raises Problem if it is too large, or does not arrive in time."""
    too_large = Problem(413, f"the body of the request is too large: at most {most >> 10} KiB are read")
    length = Headers(scope=scope).get("content-length", "")
    if length.isdecimal() and int(length) > most:
        await _discard(receive)
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Problem(400, "the connection was closed before the end of the request")
                body += message.get("body", b"")
                if len(body) > most:
                    break
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise Problem(408, f"the body of the request did not arrive within {BODY_SECONDS:.0f} seconds") from None
    await _discard(receive)
    raise too_large


async def _discard(receive: Receive) -> None:
    """Read what is left of a body for a while: a client that still sends would not read the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGERING_SECONDS):
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass


class Bodies:
    """ASGI middleware that reads the body before a request is handled. Users have turns."""

    def __init__(self, app: ASGIApp, reject: Callable[[Scope, Problem], Response]) -> None:
        self._app, self._reject, self._turns = app, reject, Turns(AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        user = scope.get(USER_HEADER)
        async with self._turns.turn(user.account if user else ""):
            try:
                body = await read_body(scope, receive)
            except Problem as problem:
                await self._reject(scope, problem)(scope, receive, send)
                return
            rest: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

            async def next_message() -> Message:
                return rest.pop() if rest else await receive()

            await self._app(scope, next_message, send)


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
