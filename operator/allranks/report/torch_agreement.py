"""Makes all ranks of a PyTorch training learn after the same step that a checkpoint is requested, or due."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from allranks import report

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 1.0
"""About this often the ranks ask each other."""
MOST_CALLS = 1000
_EVERY = "ALLRANKS_CHECKPOINT_EVERY_SECONDS"
"""Set in all ranks of a job or in none."""


class Agreement:
    """The state of one rank. All ranks exchange the number of the newest checkpoint in the same call.

    `newest` returns the number that this rank has received. `continues` is called with the number of the last
    checkpoint when the program asks again."""

    def __init__(self, newest: Callable[[], int], continues: Callable[[int], None] | None = None) -> None:
        self._newest, self._continues = newest, continues
        self._answered = 0
        self._calls, self._left = 1, 0
        self._exchanged_at: float | None = None

    def requested(self) -> bool:
        """Return True in all ranks or in none, once for each number."""
        if not report.is_enabled():
            return False
        if self._answered and self._continues:
            self._continues(self._answered)
        number = self._newest()
        dist = sys.modules.get("torch.distributed")  # a program that has not imported it has one process
        if dist and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            if self._left:
                self._left -= 1
                return False
            number = self._exchange(number)
        if number <= self._answered:
            return False
        self._answered = number
        return True

    def _exchange(self, number: int) -> int:
        torch = sys.modules["torch"]
        dist = torch.distributed
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
        values = torch.tensor([number, self._next_calls()], dtype=torch.int64, device=device)
        with report.waiting():
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
            number, calls = values.tolist()
        self._calls, self._left = calls, calls - 1
        self._exchanged_at = time.monotonic()
        return int(number)

    def _next_calls(self) -> int:
        """Return the number of calls after which this rank proposes the next exchange."""
        if self._exchanged_at is None:
            return 1
        seconds = max(time.monotonic() - self._exchanged_at, 1e-6) / self._calls
        return max(1, min(int(SECONDS / seconds), 4 * self._calls, MOST_CALLS))


_request = Agreement(report.checkpoint_request, report.checkpoint_handled)
_due = Agreement(report.checkpoint_due_step)


def checkpoint_requested() -> bool:
    """Return whether to store a checkpoint now, with the same answer in all ranks; True once for each request.

    Use it instead of `allranks.report.checkpoint_requested` for checkpoints that all ranks store together. All ranks of
    the default process group must call it after each step. About once a second they exchange one number (`all_reduce`);
    the other calls take microseconds. Outside a job it is False, without an exchange."""
    return _request.requested()


def checkpoint_due() -> bool:
    """Return whether a checkpoint is due, with the same answer in all ranks, as `checkpoint_requested` does.

    Report the step first. The answer may come about a second after the step, and does not depend on what single ranks
    have received."""
    due = _EVERY in os.environ and _due.requested()
    if due:
        report.checkpoint_begins()
    return due
