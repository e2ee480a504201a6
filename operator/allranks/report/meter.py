"""Measures `busy`: this rank's own work in each step, without waiting for the others.

In synchronous training all ranks have the same step time, so it does not tell which of them is slow.
"""

from __future__ import annotations

import time
from typing import Any


class Meter:
    """By the clock of the CPU. A step begins where the one before ended; `work_done` says that this rank's gradients
    are there; what comes then, until the step is over, is mostly waiting."""

    ended_by_report = True
    """Whether each report of a new step ends the step. Else something else does: a hook of the optimizer."""

    def __init__(self) -> None:
        self.totals = (0.0, 0)
        """Seconds of own work, and in how many steps, ever."""
        self.wait = Wait(self)
        self._began: Any = None
        self._busy: Any = None

    def work_done(self) -> None:
        """The local gradients are there. Of several calls in a step the last counts."""
        if self._began is not None:
            self._busy = time.perf_counter() - self._began - self.wait.seconds

    def step_over(self, steps: int = 1) -> None:
        """Several steps at once cannot be told apart: they are not counted."""
        if self._busy is not None and steps == 1:
            total, count = self.totals
            self.totals = (total + max(self._busy, 0.0), count + 1)
        self.restart()

    def waits(self) -> bool | None:
        """Whether this rank has done its part and waits for others; None while that is not known yet."""
        return None if self._began is None else self.wait.depth > 0 or self._busy is not None

    def restart(self) -> None:
        """The next step begins now: what was since the last one (an evaluation, a checkpoint) is in no step."""
        self._began, self._busy = time.perf_counter(), None
        self.wait.seconds = 0.0


class Wait:
    """`with meter.wait:` the time in it is left out. It may be nested."""

    def __init__(self, meter: Meter) -> None:
        self.seconds = 0.0
        self.depth = 0
        self._since = 0.0

    def __enter__(self) -> None:
        if self.depth == 0:
            self._since = time.perf_counter()
        self.depth += 1

    def __exit__(self, *ignored: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.seconds += time.perf_counter() - self._since
