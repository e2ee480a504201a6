"""Bounds the answers that clients have not read yet: their bytes, and the time in which they are read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allranks.shares import Share
from allranks.ui.http_server import close
from allranks.ui.problems import Problem
from allranks.ui.users import USER_HEADER

PART_BYTES = 64 * 1024
"""A larger answer is sent in parts, each when the client has read enough of the others."""
MOST_UNREAD_BYTES, MOST_OF_ANSWER = 128 * 2**20, 32 * 2**20
"""Bytes of all answers of several parts together, and those that count of one."""
READ_SECONDS, READ_BYTES_PER_SECOND = 30.0, 64 * 1024
"""Time in which an answer is read: this, and more for a large one."""
FULL = "too many large answers are being read at the same time: try again when others have ended"


class Answers:
    """ASGI middleware that sends large answers in parts, as fast as the client reads them. Users have shares."""

    def __init__(self, app: ASGIApp, reject: Callable[[Scope, Problem], Response]) -> None:
        self._app, self._reject, self._unread = app, reject, Share(MOST_UNREAD_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        large: Message | None = None

        async def send_in_parts(message: Message) -> None:
            nonlocal large
            if message["type"] == "http.response.start" and _is_large(message):
                large = message  # sent with the first part, because a refusal has another status
            elif large is not None:
                head, large = large, None
                await self._send(scope, receive, send, head, message["body"])
            else:
                await send(message)

        await self._app(scope, receive, send_in_parts if scope.get("method") == "GET" else send)

    async def _send(self, scope: Scope, receive: Receive, send: Send, head: Message, body: bytes) -> None:
        user, size = scope.get(USER_HEADER), min(len(body), MOST_OF_ANSWER)
        account = user.account if user else ""
        if not self._unread.take(account, size):
            await self._reject(scope, Problem(503, FULL))(scope, receive, send)
            return
        try:
            async with asyncio.timeout(READ_SECONDS + len(body) / READ_BYTES_PER_SECOND):
                await send(head)
                for begin in range(0, len(body), PART_BYTES):
                    end = begin + PART_BYTES
                    await send({"type": "http.response.body", "body": body[begin:end], "more_body": end < len(body)})
        except TimeoutError:
            close(scope)
        finally:
            self._unread.give(account, size)


def _is_large(start: Message) -> bool:
    """Return whether an answer, which is no stream, has several parts."""
    length = Headers(raw=start["headers"]).get("content-length", "")
    return length.isdecimal() and int(length) > PART_BYTES
