"""How far a rank is, told to allranks where the training is a job of it. Without the library nothing is told, and the
programs run as they are."""

from __future__ import annotations

import contextlib
from typing import Any

try:
    from allranks.report import finish, report, waiting
except ImportError:

    def report(**what: Any) -> None:
        """Nobody listens."""

    def finish() -> None:
        """Nobody waits for a last word."""

    def waiting() -> contextlib.AbstractContextManager[None]:
        """Nobody asks how much of a step was this rank's own work."""
        return contextlib.nullcontext()


__all__ = ["finish", "mark", "report", "waiting", "watch"]


def watch(model: Any) -> None:
    """Measure how much of each step is this rank's own work (PyTorch)."""
    with contextlib.suppress(ImportError):
        from allranks.report.pytorch import watch

        watch(model)


def mark(gradients: Any) -> Any:
    """The same for TensorFlow: the gradients of this rank are there now. Returns them."""
    with contextlib.suppress(ImportError):
        from allranks.report.keras import mark

        return mark(gradients)
    return gradients
