"""Turns at something that only one may use at a time: no namespace waits for all callers of another one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Namespaces have turns one after another, and the callers of a namespace in the order in which they asked."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By namespace; the next one is the first one."""

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a turn, which lasts until the end of the block."""
        if self._taken:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(namespace, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._pass_on()
                raise
        self._taken = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            namespace, turns = next(iter(self._waiting.items()))
            del self._waiting[namespace]
            turn = turns.popleft()
            if turns:
                self._waiting[namespace] = turns  # behind all others
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False
