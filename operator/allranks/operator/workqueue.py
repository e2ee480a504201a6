"""A work queue with the semantics of client-go's: each key is queued once and processed by one worker at a time.

A key that is added while it is processed is processed again afterwards. Keys are handed out in the order of arrival.
`JobQueue` adds what jobs need: watches and caches add to it, and the controller is its only consumer.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from allranks.operator.cache import JobKey
from allranks.operator.timing import Clock, Timing

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
        """Return the number of keys that are queued or being processed."""
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
        """Return the number of failures in a row."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """Reset the backoff after a success."""
        self._failures.pop(key, None)

    def cancel_delay(self, key: K) -> None:
        """Cancel the delay of a key. Not in client-go: for a worker that sets all delays of a key again when it is
        done."""
        if (delayed := self._delayed.pop(key, None)) is not None:
            delayed[1].cancel()

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
        """End the processing of a key. If it was added meanwhile, it is queued again."""
        self._processing.discard(key)
        if key in self._dirty:
            self._queue.append(key)
            self._wake_getter()

    def shut_down(self) -> None:
        """Ignore further keys and drop delayed ones. `get` still returns the queued ones."""
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


class JobQueue(WorkQueue[JobKey]):
    """Ignores jobs of a namespace until `open` is called for it, when its pods are listed."""

    def __init__(self, timing: Timing, clock: Clock) -> None:
        super().__init__(clock, lambda failures: _backoff(failures, timing))
        self._timing = timing
        self._open: set[str | None] = set()
        self._changed: set[JobKey] = set()
        self._debouncing: set[JobKey] = set()
        self._cost: dict[JobKey, float] = {}

    @property
    def idle(self) -> bool:
        """Return whether no job is queued, processed, debounced or in backoff."""
        return not (len(self) or self._debouncing or self.failing)

    def open(self, namespace: str | None) -> None:
        """Serve the jobs of a namespace, or of all namespaces (None)."""
        self._open.add(namespace)

    def enqueue(self, key: JobKey, urgent: bool = True) -> None:
        """Enqueue a job that changed, or whose pool did. A change that is not urgent is debounced."""
        self.mark_changed(key)
        self.enqueue_pod_event(key, urgent)

    def mark_changed(self, key: JobKey) -> None:
        """Let the next reconcile send rejected creates again, without waiting for their backoff."""
        self._changed.add(key)

    def enqueue_pod_event(self, key: JobKey, urgent: bool) -> None:
        """Enqueue a job of which a pod changed. Rejected creates keep their backoff, unless `mark_changed` is called as
        well."""
        cost = self._cost.get(key)
        if urgent or cost is None:
            self.enqueue_now(key)
        elif self._is_open(key):
            timing = self._timing
            self._debouncing.add(key)
            grown = min(timing.pod_event_debounce_max, cost / timing.reconcile_cpu_share)
            self.add_after(key, max(timing.pod_event_debounce, grown))

    def begin(self, key: JobKey) -> bool:
        """Begin a reconcile, which covers all delayed requests of this job. Return whether the job changed since the
        last."""
        self.cancel_delay(key)
        self._debouncing.discard(key)
        changed = key in self._changed
        self._changed.discard(key)
        return changed

    def set_cost(self, key: JobKey, seconds: float) -> None:
        """Set the CPU time of the last reconcile, from which the debounce follows."""
        self._cost[key] = seconds

    def remove(self, key: JobKey) -> None:
        """Forget a job that is deleted."""
        self.begin(key)
        self.forget(key)
        self._cost.pop(key, None)

    def enqueue_now(self, key: JobKey) -> None:
        """Enqueue a job that did not change, for example because its ranks reported: rejected creates keep their
        backoff."""
        if self._is_open(key):
            self.add(key)

    def _is_open(self, key: JobKey) -> bool:
        return None in self._open or key[0] in self._open


def _backoff(failures: int, timing: Timing) -> float:
    """Return 1 s, doubled up to 30 s; after eight failures up to five minutes."""
    longest = timing.retry_max if failures > 8 else timing.unavailable_retry_max
    return min(longest, 0.5 * 2.0 ** min(failures, 10))
