"""Real receivers of notifications on loopback: an HTTP server and a mail server, which record what arrives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
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


@dataclass
class MailServer:
    """Accepts mails without encryption. `refuse`: replies of the first commands RCPT."""

    port: int = 0
    refuse: list[str] = field(default_factory=list)
    hang: bool = False
    mails: list[tuple[list[str], Message]] = field(default_factory=list)
    """(recipients, mail)"""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._converse(reader, writer)
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(text: str) -> None:
            writer.write(f"{text}\r\n".encode())

        if self.hang:
            await asyncio.sleep(60)
        say("220 test")
        to: list[str] = []
        while line := (await reader.readline()).decode().strip():
            command = line.upper()
            if command.startswith("RCPT"):
                to.append(line.partition(":")[2].strip("<>"))
                say(self.refuse.pop(0) if self.refuse else "250 ok")
            elif command == "DATA":
                say("354 go on")
                body = await reader.readuntil(b"\r\n.\r\n")
                self.mails.append((to, message_from_bytes(body[:-5])))
                say("250 ok")
            elif command == "QUIT":
                say("221 bye")
                return
            else:
                say("250 ok")


@contextlib.asynccontextmanager
async def mail_server(**how: Any) -> AsyncIterator[MailServer]:
    made = MailServer(**how)
    tasks: set[asyncio.Task[Any]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(made.handle(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next iteration of the loop


async def until(condition: Callable[[], bool], seconds: float = 300) -> None:
    """Waits for a condition. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
