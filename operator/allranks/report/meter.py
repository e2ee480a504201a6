"""Measures `busy`: this rank's own work in each step, without waiting for other ranks.

In synchronous training all ranks have the same step time, so step time does not show which rank is slow.
"""

from __future__ import annotations

import time
from typing import Any


class Meter:
    """Measures with the CPU clock. A step begins where the previous one ended. `work_done` marks that this rank's
    gradients are ready; the rest of the step is mostly waiting."""

    ended_by_report = True
    """True if a report of a new step ends the step. If False, a hook of the optimizer does."""

    def __init__(self) -> None:
        self.totals = (0.0, 0)
        """Busy seconds and number of measured steps since the start."""
        self.wait = Wait(self)
        self._began: Any = None
        self._busy: Any = None

    def work_done(self) -> None:
        """Record that the local gradients are ready. The last call in a step counts."""
        if self._began is not None:
            self._busy = time.perf_counter() - self._began - self.wait.seconds

    def step_over(self, steps: int = 1) -> None:
        """End `steps` steps. Several steps at once cannot be separated, so they are not measured."""
        if self._busy is not None and steps == 1:
            total, count = self.totals
            self.totals = (total + max(self._busy, 0.0), count + 1)
        self.restart()

    def waits(self) -> bool | None:
        """Return whether this rank has done its part of the step and waits for other ranks; None before the first
        step."""
        return None if self._began is None else self.wait.depth > 0 or self._busy is not None

    def restart(self) -> None:
        """Start the next step now: the time since the last one (an evaluation, a checkpoint) belongs to no step."""
        self._began, self._busy = time.perf_counter(), None
        self.wait.restart()


class WaitMeter(Meter):
    """Measures no busy time, because nothing marks when gradients are ready. It knows when the program waits."""

    def waits(self) -> bool | None:
        return True if self._began is not None and self.wait.depth > 0 else None


class Wait:
    """`with meter.wait:` excludes the time inside. May be nested."""

    def __init__(self, meter: Meter) -> None:
        self.seconds = 0.0
        self.depth = 0
        self._since = 0.0

    def restart(self) -> None:
        """Begin the next step. A wait that has begun counts for it from now on."""
        self.seconds, self._since = 0.0, time.perf_counter()

    def __enter__(self) -> None:
        if self.depth == 0:
            self._since = time.perf_counter()
        self.depth += 1

    def __exit__(self, *ignored: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.seconds += time.perf_counter() - self._since
