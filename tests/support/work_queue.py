"""A clock that a test advances, and the delays of a work queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from allranks.operator.timing import Clock
from allranks.operator.workqueue import WorkQueue

K = TypeVar("K")


class Timer:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due, self.callback, self.cancelled = due, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class SteppedClock(Clock):
    def __init__(self) -> None:
        self.seconds = 0.0
        self.timers: list[Timer] = []

    def monotonic(self) -> float:
        return self.seconds

    def call_later(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> Any:
        timer = Timer(self.seconds + seconds, lambda: callback(*arguments))
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        until = self.seconds + seconds
        while due := [t for t in self.timers if not t.cancelled and t.due <= until]:
            timer = min(due, key=lambda t: t.due)
            self.timers.remove(timer)
            self.seconds = timer.due
            timer.callback()
        self.seconds = until


def due_in(queue: WorkQueue[K], key: K) -> float | None:
    """The seconds until a delayed key is added."""
    delayed = queue._delayed.get(key)
    return None if delayed is None else delayed[0] - queue._clock.monotonic()
