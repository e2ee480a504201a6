"""A work queue with the semantics of client-go's: each key is queued once and processed by one worker at a time.

A key that is added while it is processed is processed again afterwards. Keys are handed out in the order of arrival.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from allranks.operator.timing import Clock

K = TypeVar("K", bound=Hashable)


class ShutDown(Exception):
    """The queue was shut down, and every queued key has been handed out."""


class WorkQueue(Generic[K]):
    """`backoff(failures)` returns the delay in seconds after that many failures in a row."""

    def __init__(self, clock: Clock, backoff: Callable[[int], float]) -> None:
        self._clock, self._backoff = clock, backoff
        self._queue: deque[K] = deque()
        self._dirty: set[K] = set()
        """Keys that need processing: those in the queue, and those added while they are processed."""
        self._processing: set[K] = set()
        self._delayed: dict[K, tuple[float, asyncio.TimerHandle]] = {}
        """Key -> (due, timer)."""
        self._failures: dict[K, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._shutting_down = False

    def __len__(self) -> int:
        """Keys that are queued or being processed."""
        return len(self._queue) + len(self._processing)

    @property
    def failing(self) -> bool:
        """Return whether any key is in backoff."""
        return bool(self._failures)

    def add(self, key: K) -> None:
        if self._shutting_down or key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._queue.append(key)
            self._wake_getter()

    def add_after(self, key: K, seconds: float) -> None:
        """Add the key when the time has passed. Of several delays the earliest counts."""
        if self._shutting_down:
            return
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock.monotonic() + seconds
        if (delayed := self._delayed.get(key)) is not None:
            if delayed[0] <= due:
                return
            delayed[1].cancel()
        self._delayed[key] = due, self._clock.call_later(seconds, self._expire, key)

    def add_rate_limited(self, key: K, longest: float = float("inf")) -> float:
        """Count a failure and add the key after its backoff, at most `longest` seconds. Returns the delay."""
        self._failures[key] = self.failures(key) + 1
        delay = random.uniform(0.5, 1.0) * min(longest, self._backoff(self._failures[key]))
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        """Failures in a row."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """Reset the backoff after a success."""
        self._failures.pop(key, None)

    def cancel_delay(self, key: K) -> None:
        """Not in client-go. For a worker that sets all delays of a key again when it is done."""
        if (delayed := self._delayed.pop(key, None)) is not None:
            delayed[1].cancel()

    def due_in(self, key: K) -> float | None:
        """Seconds until a delayed key is added."""
        delayed = self._delayed.get(key)
        return None if delayed is None else delayed[0] - self._clock.monotonic()

    async def get(self) -> K:
        """Wait for a key, which the caller must pass to `done`. Raises ShutDown."""
        while not self._queue:
            if self._shutting_down:
                raise ShutDown
            getter = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                # The wake-up of a cancelled getter must reach another one.
                if getter in self._getters:
                    self._getters.remove(getter)
                elif self._queue:
                    self._wake_getter()
                raise
        key = self._queue.popleft()
        self._dirty.discard(key)
        self._processing.add(key)
        return key

    def done(self, key: K) -> None:
        """Processing has ended. A key that was added meanwhile is queued again."""
        self._processing.discard(key)
        if key in self._dirty:
            self._queue.append(key)
            self._wake_getter()

    def shut_down(self) -> None:
        """Ignores further keys and drops delayed ones. `get` still hands out the queued ones."""
        self._shutting_down = True
        for _, timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()
        while self._getters:
            self._wake_getter()

    def _expire(self, key: K) -> None:
        del self._delayed[key]
        self.add(key)

    def _wake_getter(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return
