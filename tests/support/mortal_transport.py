"""A transport that dies as a process does under SIGKILL: no request leaves, no response arrives, connections break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from allranks.kube.auth import Connection
from allranks.kube.client import Response, Transport


class MortalTransport(Transport):
    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._dead = False

    async def die(self) -> None:
        self._dead = True
        await self._connector.close(abort_ssl=True)

    async def send(self, verb: str, url: str, **how: Any) -> Response:
        await self._while_alive()
        response = await super().send(verb, url, **how)
        await self._while_alive()
        return response

    @asynccontextmanager
    async def stream(self, url: str, **how: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        await self._while_alive()
        async with super().stream(url, **how) as response:
            yield response

    async def _while_alive(self) -> None:
        if self._dead:
            await asyncio.Event().wait()
