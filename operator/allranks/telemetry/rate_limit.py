"""Token-bucket rate limits for clients, and fair, rate-limited reconcile requests per job."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

Job = tuple[str, str]

JOB_INTERVAL = 5.0
"""Minimum seconds between two notifications for one job."""
CHECKPOINT_INTERVAL = 0.5
"""The same while the operator waits for a checkpoint."""
NOTIFICATIONS_PER_SECOND = 20.0
"""For all jobs together: if a thousand jobs report all the time, each is reconciled every 50 s."""


class Bucket:
    """Token bucket: holds up to `burst` tokens and gains `rate` per second. Both may change between calls."""

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
        """Take one token. Return False if there is none."""
        if self.left(moment, burst, rate) < 1.0:
            return False
        self._left -= 1.0
        return True


class Notifier:
    """Calls `reconcile(job)` for each job with new reports, in the order of their arrival. `later(seconds, call)` sets
    a timer."""

    def __init__(
        self,
        reconcile: Callable[[Job], None],
        monotonic: Callable[[], float],
        later: Callable[[float, Callable[[], None]], Any],
        job_interval: float = JOB_INTERVAL,
    ) -> None:
        self._reconcile, self._monotonic, self._later = reconcile, monotonic, later
        self._job_interval = job_interval
        self._notified_at: dict[Job, float] = {}
        self._waiting: dict[Job, int] = {}
        """Job -> number of its entry in the queue."""
        self._queue: list[tuple[float, int, Job]] = []
        """(earliest moment of the notification, number of the entry, job)"""
        self._numbers = itertools.count()
        self._free_at = float("-inf")
        """Earliest moment of the next notification for any job."""
        self._timer_at: float | None = None

    def notify_now(self, job: Job) -> None:
        """Reconcile a job at once, for events that happen once per attempt."""
        self._waiting.pop(job, None)
        self._notified_at[job] = self._monotonic()
        self._reconcile(job)

    def notify(self, job: Job, interval: float | None = None) -> None:
        """Reconcile a job when its turn comes. A shorter `interval` replaces the notification that waits."""
        if job in self._waiting and interval is None:
            return
        number = next(self._numbers)
        self._waiting[job] = number
        seconds = self._job_interval if interval is None else min(interval, self._job_interval)
        due = max(self._monotonic(), self._notified_at.get(job, float("-inf")) + seconds)
        heapq.heappush(self._queue, (due, number, job))
        self._drain()

    def forget(self, job: Job) -> None:
        self._waiting.pop(job, None)
        self._notified_at.pop(job, None)

    def _drain(self) -> None:
        moment = self._monotonic()
        while self._queue:
            due, number, job = self._queue[0]
            if self._waiting.get(job) != number:  # notified immediately, or forgotten
                heapq.heappop(self._queue)
                continue
            if max(due, self._free_at) > moment:
                self._set_timer(moment, max(due, self._free_at))
                return
            heapq.heappop(self._queue)
            del self._waiting[job]
            self._notified_at[job] = moment
            self._free_at = moment + 1.0 / NOTIFICATIONS_PER_SECOND
            self._reconcile(job)

    def _set_timer(self, moment: float, at: float) -> None:
        if self._timer_at is None or at < self._timer_at:
            self._timer_at = at
            self._later(at - moment, lambda: self._expire(at))

    def _expire(self, at: float) -> None:
        if self._timer_at == at:
            self._timer_at = None
        self._drain()
