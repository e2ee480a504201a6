"""Tries of one transfer after errors that may pass, with growing pauses, and one sentence about them for the user."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from allranks.data.errors import TemporaryError, explain
from allranks.errors import DataError

T = TypeVar("T")
TRIES = 6
"""Tries in a row without a new byte."""


def pause_before(number: int) -> float:
    """Return the seconds to wait before try `number`, from 1."""
    return float(min(2 ** (number - 1), 30))


class Tries:
    """The tries of one transfer. Several threads may use it."""

    def __init__(
        self,
        tell: Callable[[str], None] = lambda _: None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Count from the first try. `tell` is called once, after the first try that failed: a client may need a minute
        for each."""
        self._tell, self._sleep, self.clock = tell, sleep, clock
        self._lock = threading.Lock()
        self._reported = False

    def until_done(self, act: Callable[[], T], uri: str) -> T:
        """Call `act` until it succeeds, and return its result. Raise DataError."""
        number = 0
        while True:
            began, number = self.clock(), number + 1
            try:
                return act()
            except Exception as error:
                self.pause(explain(error, uri), number, self.clock() - began)

    def pause(self, reason: DataError, failures: int, seconds: float) -> None:
        """Wait for the next try. Raise `reason` if none follows.

        `failures`: number of failures in a row, 0 if the last try has transferred something. `seconds`: time of the
        last one."""
        if not isinstance(reason, TemporaryError) or failures >= TRIES:
            raise reason
        if failures:
            self._say(reason, failures, seconds)
        self._sleep(pause_before(failures or 1))

    def _say(self, reason: DataError, failures: int, seconds: float) -> None:
        with self._lock:
            reported, self._reported = self._reported, True
        if not reported:
            left = TRIES - failures
            longest = sum(map(pause_before, range(failures, TRIES))) + left * seconds
            self._tell(f"{reason}; up to {left} more tries follow, for about {_text(longest)}")


def _text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
