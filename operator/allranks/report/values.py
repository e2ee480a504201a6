"""Converts reported values (Python, numpy, PyTorch, TensorFlow, JAX) to numbers without waiting for a GPU."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any

LARGEST = 2**53
"""Up to this value every JSON reader represents integers exactly."""


FIELDS = ("step", "total_steps", "epoch", "samples", "checkpoint", "busy", "loss")
"""The parameters of `report`, and the metric that most programs have."""


def closest(name: str) -> str | None:
    """Return the field that this name of a metric is probably meant to be; None for a name of its own, such as
    `d_loss`."""
    from difflib import get_close_matches  # only needed for new names

    plain = name.lower().replace("_", "").replace("-", "")
    if plain in ("globalstep", "iteration"):
        return "step"
    if name in FIELDS or any(letter in name for letter in "/.") or plain[-1:].isdigit():
        return None
    spelled = {field.replace("_", ""): field for field in FIELDS}
    matches = get_close_matches(plain, spelled, n=1, cutoff=0.85)
    if not matches or ("_" in name and "_" not in spelled[matches[0]]):
        return None
    return spelled[matches[0]]


def whole(value: Any) -> int:
    """Return a count (0, 1, 2, ...), given as an int, an integral float, a numpy number or a tensor in CPU memory.

    Raise ValueError or TypeError."""
    if is_on_device(value):
        raise ValueError("is on a GPU: pass a number")
    if isinstance(value, float):
        number = int(value)
        if number != value:
            raise ValueError("is not an integer")
    else:
        try:
            number = operator.index(value)
        except TypeError:  # TensorFlow's variables
            number = int(value.numpy() if hasattr(value, "numpy") else value)
    if not 0 <= number <= LARGEST:
        raise ValueError("is out of range")
    return number


def seconds(value: Any) -> float:
    """Return seconds or samples: finite and not negative. Raise ValueError or TypeError."""
    if is_on_device(value):
        raise ValueError("is on a GPU: pass a number")
    number = float(value)
    if not 0 <= number <= LARGEST:
        raise ValueError("is out of range")
    return number


def metric(value: Any) -> float | Callable[[], float]:
    """Return the number, or a function that returns it if getting it may take long. It may be infinite or NaN.

    Raise ValueError or TypeError if the value is not a number."""
    if isinstance(value, (int, float)):
        return float(value)
    if type(value).__module__ == "numpy":
        return float(value)
    if hasattr(value, "detach"):  # PyTorch: drop the graph, which holds all activations of the step
        value = value.detach()
        if value.device.type == "cpu":
            return float(value.item())
        return later_from_cuda(value) if value.device.type == "cuda" else lambda: float(value.item())
    if hasattr(value, "numpy"):  # TensorFlow: it may not be computed yet
        return lambda: float(value.numpy())
    if hasattr(value, "block_until_ready"):  # JAX
        return lambda: float(value)
    return float(value)


def later_from_cuda(value: Any) -> Callable[[], float]:
    """Return a function that waits until the GPU has executed all work queued so far, then returns the number."""
    cuda = sys.modules["torch"].cuda
    event = cuda.Event()
    event.record(cuda.current_stream(value.device))

    def wait_and_get() -> float:
        event.synchronize()
        return float(value.item())

    return wait_and_get


def is_on_device(value: Any) -> bool:
    """Return whether it is a tensor outside CPU memory."""
    device = getattr(value, "device", None)
    if device is None or type(value).__module__ == "numpy":
        return False
    return "cpu" not in str(device).lower()


def is_finite(value: float) -> bool:
    return math.isfinite(value)
