"""A scripted API server on a free local port."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiohttp import web

from allranks.kube.auth import Connection
from allranks.kube.client import Client

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def status(code: int, reason: str = "", message: str = "", **headers: str) -> Answer:
    """Answers with a Status object, like the API server for errors."""

    async def answer(_: web.Request) -> web.StreamResponse:
        body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
        return web.json_response(body, status=code, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return answer


def says(body: Any, code: int = 200) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=code)

    return answer


def streams(*lines: Any, then: str = "end", chunk: int = 0) -> Answer:
    """A watch: each line as JSON, then `end`, `hang` or `cut`. Sends `chunk` bytes at a time."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        for start in range(0, len(data), chunk or len(data) or 1):
            await response.write(data[start : start + (chunk or len(data))])
        if then == "hang":
            await asyncio.sleep(60)
        elif then == "cut" and request.transport:
            request.transport.abort()
        return response

    return answer


async def hangs(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def resets(request: web.Request) -> web.StreamResponse:
    assert request.transport
    request.transport.abort()
    return web.Response()


class Scripted:
    """Gives the answers in order, the last one forever. `asked` records the requests: (verb, path, query, body)."""

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.tasks: set[asyncio.Task[Any]] = set()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.asked.append((request.method, request.path, dict(request.query), json.loads(text) if text else None))
        self.headers.append(dict(request.headers))
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        task = asyncio.current_task()
        assert task
        self.tasks.add(task)
        try:
            return await answer(request)
        finally:
            self.tasks.discard(task)


@asynccontextmanager
async def server(*script: Answer) -> AsyncIterator[Scripted]:
    scripted = Scripted()
    scripted.script = list(script)
    runner = web.ServerRunner(web.Server(scripted), shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    scripted.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield scripted
    finally:
        for task in list(scripted.tasks):
            task.cancel()  # answers that hang
        await runner.cleanup()


@contextmanager
def threaded_server(*script: Answer) -> Iterator[Scripted]:
    """Runs in a thread, because kopf cancels the tasks of its loop, and waits 5 s for connections of a server in it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    context = server(*script)
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(600)
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(600)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(600)
        loop.close()


@asynccontextmanager
async def client_of(*script: Answer, **how: Any) -> AsyncIterator[tuple[Client, Scripted]]:
    async with server(*script) as scripted:
        client = Client(Connection(scripted.url, token="secret"), **how)
        try:
            yield client, scripted
        finally:
            await client.close()
