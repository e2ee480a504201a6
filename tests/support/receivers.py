"""A real receiver of notifications on loopback: an HTTP server that records its requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class HttpReceiver:
    """Answers with the codes in `answers`, then with 204. With `hang`, it does not answer."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    hang: bool = False
    got: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    """(path, headers, JSON of the body)"""
    most_at_once: int = 0
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    _now: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            self.got.append((request.path, dict(request.headers), await request.json()))
            if self.hang:
                await self.ending.wait()
            code = self.answers.pop(0) if self.answers else 204
            return web.Response(status=code, headers={"Location": "/elsewhere"} if 300 <= code < 400 else {})
        finally:
            self._now -= 1


@contextlib.asynccontextmanager
async def http_receiver(**how: Any) -> AsyncIterator[HttpReceiver]:
    receiver = HttpReceiver(**how)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    receiver.url = f"http://127.0.0.1:{port}"
    try:
        yield receiver
    finally:
        receiver.ending.set()
        await runner.cleanup()


async def until(condition: Callable[[], bool], seconds: float = 300) -> None:
    """Waits for a condition. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
