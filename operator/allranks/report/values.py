"""Turns what programs report (of Python, numpy, PyTorch, TensorFlow) into numbers, and never waits for a GPU."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any

LARGEST = 2**53
"""Whole numbers that every reader of JSON knows exactly."""


def whole(value: Any) -> int:
    """A count: 0, 1, 2, ...; also as a whole float, a numpy number, or a tensor in the memory of the CPU.

    Raises ValueError or TypeError."""
    if is_on_device(value):
        raise ValueError("is on a GPU: give a number")
    if isinstance(value, float):
        number = int(value)
        if number != value:
            raise ValueError("is not whole")
    else:
        try:
            number = operator.index(value)
        except TypeError:  # TensorFlow's variables
            number = int(value.numpy() if hasattr(value, "numpy") else value)
    if not 0 <= number <= LARGEST:
        raise ValueError("is out of range")
    return number


def seconds(value: Any) -> float:
    """Seconds, or samples: finite, 0 or more. Raises ValueError or TypeError."""
    if is_on_device(value):
        raise ValueError("is on a GPU: give a number")
    number = float(value)
    if not 0 <= number <= LARGEST:
        raise ValueError("is out of range")
    return number


def metric(value: Any) -> float | Callable[[], float]:
    """The number, or, where to ask for it may take long, a function that returns it. It may be infinite or NaN.

    Raises ValueError or TypeError for what is no number."""
    if isinstance(value, (int, float)):
        return float(value)
    if type(value).__module__ == "numpy":
        return float(value)
    if hasattr(value, "detach"):  # PyTorch's; without its graph, which holds all the activations of its step
        value = value.detach()
        if value.device.type == "cpu":
            return float(value.item())
        return later_from_cuda(value) if value.device.type == "cuda" else lambda: float(value.item())
    if hasattr(value, "numpy"):  # TensorFlow's: it may not be computed yet
        return lambda: float(value.numpy())
    if hasattr(value, "block_until_ready"):  # JAX
        return lambda: float(value)
    return float(value)


def later_from_cuda(value: Any) -> Callable[[], float]:
    """Another thread may look only when all is done that this one has asked of the GPU so far."""
    cuda = sys.modules["torch"].cuda
    event = cuda.Event()
    event.record(cuda.current_stream(value.device))

    def wait_and_get() -> float:
        event.synchronize()
        return float(value.item())

    return wait_and_get


def is_on_device(value: Any) -> bool:
    """Whether it is a tensor whose value is not in the memory of the CPU."""
    device = getattr(value, "device", None)
    if device is None or type(value).__module__ == "numpy":
        return False
    return "cpu" not in str(device).lower()


def is_finite(value: float) -> bool:
    return math.isfinite(value)
