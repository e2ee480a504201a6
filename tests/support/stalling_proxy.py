"""A TCP proxy that can stall: connections stay open, and nothing passes until it continues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from urllib.parse import urlsplit

from .fault_proxy import Threads

_CHUNK = 256 * 1024


class StallingProxy:
    """`url` is its address for the client. Its methods are called from the test's thread."""

    def __init__(self, threads: Threads, upstream: str) -> None:
        self._threads, self._upstream = threads, urlsplit(upstream)
        self._moving = asyncio.Event()
        self._moving.set()
        self._connections: set[asyncio.Task[None]] = set()
        threads.do(self._start())

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Nothing passes during the block, unless it calls `continue_`."""
        self._threads.do(self._stall())
        try:
            yield
        finally:
            self.continue_()

    def continue_(self) -> None:
        self._threads.do(self._continue())

    def close(self) -> None:
        self._threads.do(self._stop())

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _stall(self) -> None:
        self._moving.clear()

    async def _continue(self) -> None:
        self._moving.set()

    async def _stop(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            there, onward = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, onward))
                group.create_task(self._pass_on(there, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)

    async def _pass_on(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(_CHUNK):
                await self._moving.wait()
                to.write(data)
                await to.drain()
        finally:
            to.close()
