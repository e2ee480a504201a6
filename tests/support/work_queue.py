"""Delays of a work queue."""

from __future__ import annotations

from typing import TypeVar

from allranks.operator.workqueue import WorkQueue

K = TypeVar("K")


def due_in(queue: WorkQueue[K], key: K) -> float | None:
    """The seconds until a delayed key is added."""
    delayed = queue._delayed.get(key)
    return None if delayed is None else delayed[0] - queue._clock.monotonic()
