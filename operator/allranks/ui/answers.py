"""Bounds the answers that clients have not read yet: their bytes, and the time in which they are read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

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
        if scope.get("method") != "GET":
            await self._app(scope, receive, send)
            return
        user = scope.get(USER_HEADER)
        account, size, deadline, ended = user.account if user else "", 0, 0.0, False

        async def send_in_parts(message: Message) -> None:
            nonlocal size, deadline, ended
            if message["type"] == "http.response.start" and (length := _length(message)) > PART_BYTES:
                if not self._unread.take(account, min(length, MOST_OF_ANSWER)):
                    ended = True
                    await self._reject(scope, Problem(503, FULL))(scope, receive, send)
                    return
                size = min(length, MOST_OF_ANSWER)
                deadline = asyncio.get_running_loop().time() + READ_SECONDS + length / READ_BYTES_PER_SECOND
            if ended:
                return
            try:
                async with asyncio.timeout_at(deadline or None):
                    for part in _parts(message):
                        await send(part)
            except TimeoutError:
                ended = True
                close(scope)

        try:
            await self._app(scope, receive, send_in_parts)
        finally:
            if size:
                self._unread.give(account, size)


def _length(start: Message) -> int:
    """Return the length of an answer; 0 for a stream."""
    length = Headers(raw=start["headers"]).get("content-length", "")
    return int(length) if length.isdecimal() else 0


def _parts(message: Message) -> Iterator[Message]:
    body = message.get("body", b"")
    if len(body) <= PART_BYTES:
        yield message
        return
    for begin in range(0, len(body), PART_BYTES):
        end = begin + PART_BYTES
        more = end < len(body) or message.get("more_body", False)
        yield {"type": "http.response.body", "body": body[begin:end], "more_body": more}


class Parts(Response):
    """A JSON list of texts, which is sent without a copy of all of them in memory."""

    def __init__(self, begin: bytes, texts: Sequence[bytes], end: bytes, media_type: str) -> None:
        length = len(begin) + sum(map(len, texts)) + max(0, len(texts) - 1) + len(end)
        super().__init__(headers={"content-length": str(length)}, media_type=media_type)
        self._begin, self._texts, self._end = begin, texts, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        part = bytearray(self._begin)
        for place, text in enumerate(self._texts):
            part += b"," * (place > 0)
            part += text
            if len(part) > PART_BYTES:
                await send({"type": "http.response.body", "body": bytes(part), "more_body": True})
                part.clear()
        await send({"type": "http.response.body", "body": bytes(part + self._end)})
