"""Room that namespaces, or users, share: a quarter of it is kept for users of less than a quarter."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

T = TypeVar("T")


class Share:
    """Room of a fixed size, in any unit. One namespace alone may use three quarters of it, or `most_of_one`."""

    def __init__(self, most: int, most_of_one: int | None = None) -> None:
        self._most, self._free, self._quarter = most, most, max(1, most // 4)
        self._most_of_one = most_of_one or most
        self._used: Counter[str] = Counter()

    def fits(self, namespace: str, size: int = 1) -> bool:
        """Return whether a namespace may take this much now."""
        used = self._used[namespace] + size
        reserved = self._quarter if used > self._quarter else 0
        return size <= self._free - reserved and used <= self._most_of_one

    @property
    def large(self) -> dict[str, float]:
        """Return namespace -> the part of the room that it uses, if that is more than a quarter."""
        return {name: used / self._most for name, used in self._used.items() if used > self._quarter}

    def take(self, namespace: str, size: int = 1) -> bool:
        """Take this much. Return False if it does not fit."""
        if not self.fits(namespace, size):
            return False
        self._free -= size
        self._used[namespace] += size
        return True

    def give(self, namespace: str, size: int = 1) -> None:
        """Give back what was taken."""
        self._free += size
        self._used[namespace] -= size
        if not self._used[namespace]:
            del self._used[namespace]


class Traffic:
    """Bytes that arrived lately, by namespace: what is older than a minute counts half, and so on."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._bytes, self._halved_at = monotonic, Counter[str](), monotonic()

    def add(self, namespace: str, size: int) -> None:
        """Note that an object of this size arrived."""
        self._halve()
        self._bytes[namespace] += size

    @property
    def large(self) -> dict[str, float]:
        """Return namespace -> its part, if that is more than a quarter; nothing while all together are few bytes."""
        self._halve()
        total = self._bytes.total()
        if total < _FEW_BYTES:
            return {}
        return {name: size / total for name, size in self._bytes.items() if size > total / 4}

    def _halve(self) -> None:
        minutes = int((self._monotonic() - self._halved_at) / 60)
        if minutes:
            self._halved_at += 60 * minutes
            halved = {name: size >> min(minutes, 64) for name, size in self._bytes.items()}
            self._bytes = Counter({name: size for name, size in halved.items() if size})


_FEW_BYTES = 2**20


def largest_share(items: Collection[T], owner: Callable[[T], str], newcomer: str) -> list[T]:
    """Return the items of the owner that has the most of them: of the newcomer, if it has as many as any other.

    One of them makes room for an item of the newcomer, so that no owner can take the room of others.
    """
    numbers = Counter(map(owner, items))
    largest = max(numbers, key=lambda name: (numbers[name], name == newcomer), default=newcomer)
    return [item for item in items if owner(item) == largest]


class Turns:
    """Places of a `Share` for callers that wait: namespaces have turns, and the callers of a namespace their order."""

    def __init__(self, most: int = 1) -> None:
        self._share = Share(most)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By namespace; the next one is the first one."""

    @property
    def large(self) -> dict[str, float]:
        """Return `Share.large` of the places."""
        return self._share.large

    async def acquire(self, namespace: str) -> None:
        """Wait for a place."""
        if namespace not in self._waiting and self._share.take(namespace):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(namespace)
            raise

    def release(self, namespace: str) -> None:
        """Give a place back."""
        self._share.give(namespace)
        for name, turns in list(self._waiting.items()):
            while turns and turns[0].done():
                turns.popleft()  # cancelled
            if turns and self._share.take(name):
                turns.popleft().set_result(None)
                self._waiting[name] = self._waiting.pop(name)  # behind all others
            if not turns:
                del self._waiting[name]

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Have a place until the end of the block."""
        await self.acquire(namespace)
        try:
            yield
        finally:
            self.release(namespace)


PART_OF_LARGE = 0.25
"""Part of the time in which the operator decodes large specs and decides about them. One takes up to 0.2 s, in which
nothing else happens: those that arrive together would delay each step of other jobs by more than a second."""


class Pace:
    """Work that blocks the event loop: one piece after the other, at most `part` of the time. Namespaces have turns."""

    def __init__(self, part: float) -> None:
        self._pause, self._turns, self._next = 1 / part - 1, Turns(), 0.0

    async def wait(self, namespace: str) -> None:
        """Wait until a piece may begin. The caller begins it at once."""
        async with self._turns.turn(namespace):
            await asyncio.sleep(self._next - time.monotonic())

    @contextmanager
    def piece(self) -> Iterator[None]:
        """Do a piece of the work, without any `await`. The next one begins after a pause that follows from its time."""
        began = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            self._next = ended + self._pause * (ended - began)
