"""Reports progress to allranks. Without its library the programs run unchanged and report nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

try:
    from allranks.report import checkpoint_requested, finish, report, waiting
except ImportError:

    def checkpoint_requested() -> bool:
        """Never without the library."""
        return False

    def report(**what: Any) -> None:
        """Does nothing without the library."""

    def finish() -> None:
        """Does nothing without the library."""

    def waiting() -> contextlib.AbstractContextManager[None]:
        """Does nothing without the library."""
        return contextlib.nullcontext()


__all__ = [
    "checkpoint_requested",
    "checkpoint_requested_of_all",
    "finish",
    "instrument",
    "mark_gradients_ready",
    "mark_in_jax",
    "report",
    "waiting",
]


def checkpoint_requested_of_all() -> bool:
    """The same in all ranks of a PyTorch training, which save a checkpoint together then."""
    with contextlib.suppress(ImportError):
        from allranks.report.pytorch import checkpoint_requested

        return checkpoint_requested()
    return False


def instrument(model: Any) -> None:
    """Measure this rank's own work in each step (PyTorch)."""
    with contextlib.suppress(ImportError):
        from allranks.report.pytorch import instrument

        instrument(model)


def mark_gradients_ready(gradients: Any) -> Any:
    """Measure this rank's own work in each step (TensorFlow): the gradients are ready now. Returns them."""
    with contextlib.suppress(ImportError):
        from allranks.report.keras import mark_gradients_ready

        return mark_gradients_ready(gradients)
    return gradients


def mark_in_jax(average: Callable[[Any], Any], gradients: Any) -> Any:
    """The `average` of the gradients of all devices. Measures this process's own work in each step (JAX)."""
    with contextlib.suppress(ImportError):
        from allranks.report.jax import mark_gradients_ready, mark_step_done

        return mark_step_done(average(mark_gradients_ready(gradients)))
    return average(gradients)
