"""Makes all ranks of a PyTorch training learn of a requested checkpoint after the same step."""

from __future__ import annotations

import sys
import time

from allranks import report

SECONDS = 1.0
"""About this often the ranks ask each other."""
MOST_CALLS = 1000


class Agreement:
    """The state of one rank. All ranks exchange the number of the newest request in the same call."""

    def __init__(self) -> None:
        self._answered = 0
        self._calls, self._left = 1, 0
        self._exchanged_at: float | None = None

    def requested(self) -> bool:
        """Return True in all ranks or in none, once for each request."""
        if not report.is_enabled():
            return False
        if self._answered:
            report.checkpoint_handled(self._answered)  # the program has continued after its checkpoint
        number = report.checkpoint_request()
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


_agreement = Agreement()


def checkpoint_requested() -> bool:
    """Return whether to store a checkpoint now, with the same answer in all ranks; True once for each request.

    Use it instead of `allranks.report.checkpoint_requested` for checkpoints that all ranks store together. All ranks of
    the default process group must call it after each step. About once a second they exchange one number (`all_reduce`);
    the other calls take microseconds. Outside a job it is False, without an exchange."""
    return _agreement.requested()
