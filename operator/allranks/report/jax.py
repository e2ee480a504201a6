"""For JAX: `mark_gradients_ready` and `mark_step_done`, which measure this process's own work in each step.

JAX runs ahead of its devices, so the marks are callbacks that the devices call.
"""

from __future__ import annotations

from typing import Any

import jax  # type: ignore[import-not-found]
import numpy as np
from jax.experimental import io_callback  # type: ignore[import-not-found]

from allranks import report
from allranks.report.meter import Meter

_meter: DeviceSteps | None = None


class DeviceSteps(Meter):
    """Steps that end when the devices say so, not when the program has started them."""

    ended_by_report = False


def mark_gradients_ready(gradients: Any) -> Any:
    """Record when the own work of this process in the step is done; the rest of the step is waiting for others.

    Call `gradients = mark_gradients_ready(gradients)` before the gradients are summed. Return `gradients`.

    Inside `jit`, and inside `shard_map` if it has several devices: gradients that XLA itself sums have no such moment.
    Outside a job it does nothing and adds nothing to the program."""
    leaves, tree = jax.tree.flatten(gradients)
    if not leaves or not _measures():
        return gradients
    zero = io_callback(_ready, jax.ShapeDtypeStruct((), np.float32), _probe(leaves))
    # XLA orders by data alone: the sum of all processes, which needs these values, waits for the callback.
    return jax.tree.unflatten(tree, [leaf + zero.astype(leaf.dtype) for leaf in leaves])


def mark_step_done(gradients: Any) -> Any:
    """Begin the next step: `gradients = mark_step_done(gradients)`, after the gradients are summed. Return
    `gradients`."""
    leaves = jax.tree.leaves(gradients)
    if leaves and _measures():
        io_callback(_done, None, _probe(leaves))
    return gradients


def _measures() -> bool:
    global _meter
    if _meter is None:
        meter = DeviceSteps()
        if report.use_meter(meter):
            _meter = meter
    return _meter is not None


def _probe(leaves: list[Any]) -> Any:
    """Return a number that depends on all of them: the callback runs when all are computed. A single one, because JAX
    copies the arguments of a callback to a device of the CPU."""
    return sum(leaf.reshape(-1)[0].astype(np.float32) for leaf in leaves if leaf.size)


def _ready(*ignored: Any) -> Any:
    if _meter is not None:
        _meter.work_done()
    return np.zeros((), np.float32)


def _done(*ignored: Any) -> None:
    if _meter is not None:
        _meter.step_over()
