"""The learning rate as a function of the epoch alone: a training that resumes needs no state for it."""

from __future__ import annotations

import math


def cosine(lr: float, epoch: int, epochs: int) -> float:
    """Falls from `lr` in epoch 0 to nearly 0 in the last of `epochs`, as half a cosine (arXiv:1608.03983)."""
    return lr * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
