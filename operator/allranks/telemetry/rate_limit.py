"""How often: a bucket of tokens for who asks too much, and wake-ups of jobs that are few and fair."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

Job = tuple[str, str]

JOB_SECONDS = 5.0
"""Two wake-ups of one job are so far apart."""
WAKES_PER_SECOND = 20.0
"""Of all jobs together: with a thousand that report all the time, each one's turn comes every 50 s."""


class Bucket:
    """Holds up to `burst` tokens, and `rate` more of them each second; each use may say other numbers."""

    __slots__ = ("_at", "_left")

    def __init__(self, burst: float, moment: float) -> None:
        self._left, self._at = burst, moment

    def left(self, moment: float, burst: float, rate: float) -> float:
        self._left = min(burst, self._left + (moment - self._at) * rate)
        self._at = moment
        return self._left

    def add(self, tokens: float) -> None:
        self._left += tokens

    def take(self, moment: float, burst: float, rate: float) -> bool:
        """Whether there was one."""
        if self.left(moment, burst, rate) < 1.0:
            return False
        self._left -= 1.0
        return True


class Pacer:
    """`wake` is called for each job that news came of: the one that waits longest first. `later(seconds, call)` sets a
    timer."""

    def __init__(
        self,
        wake: Callable[[Job], None],
        monotonic: Callable[[], float],
        later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._wake, self._monotonic, self._later = wake, monotonic, later
        self._woken: dict[Job, float] = {}
        self._waiting: dict[Job, int] = {}
        """Job -> its entry in the queue."""
        self._queue: list[tuple[float, int, Job]] = []
        """(from when on it may be woken, number of the entry, job)"""
        self._numbers = itertools.count()
        self._free_at = float("-inf")
        """When the next wake-up of any job may be."""
        self._timer_at: float | None = None

    def at_once(self, job: Job) -> None:
        """For what happens once in a job's attempt."""
        self._waiting.pop(job, None)
        self._woken[job] = self._monotonic()
        self._wake(job)

    def soon(self, job: Job) -> None:
        if job in self._waiting:
            return
        number = next(self._numbers)
        self._waiting[job] = number
        due = max(self._monotonic(), self._woken.get(job, float("-inf")) + JOB_SECONDS)
        heapq.heappush(self._queue, (due, number, job))
        self._work()

    def forget(self, job: Job) -> None:
        self._waiting.pop(job, None)
        self._woken.pop(job, None)

    def _work(self) -> None:
        moment = self._monotonic()
        while self._queue:
            due, number, job = self._queue[0]
            if self._waiting.get(job) != number:  # woken at once, or forgotten
                heapq.heappop(self._queue)
                continue
            if max(due, self._free_at) > moment:
                self._set_timer(moment, max(due, self._free_at))
                return
            heapq.heappop(self._queue)
            del self._waiting[job]
            self._woken[job] = moment
            self._free_at = moment + 1.0 / WAKES_PER_SECOND
            self._wake(job)

    def _set_timer(self, moment: float, at: float) -> None:
        if self._timer_at is None or at < self._timer_at:
            self._timer_at = at
            self._later(at - moment, lambda: self._rang(at))

    def _rang(self, at: float) -> None:
        if self._timer_at == at:
            self._timer_at = None
        self._work()
