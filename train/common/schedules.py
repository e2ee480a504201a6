"""The learning rate as a function of the epoch or the step alone: a training that resumes needs no state for it."""

from __future__ import annotations

import math


def cosine(lr: float, epoch: int, epochs: int) -> float:
    """Falls from `lr` in epoch 0 to nearly 0 in the last of `epochs`, as half a cosine (arXiv:1608.03983)."""
    return lr * 0.5 * (1 + math.cos(math.pi * epoch / epochs))


def warmup_cosine(lr: float, step: int, steps: int, warmup: int) -> float:
    """Rises to `lr` in the first `warmup` steps, then falls to a tenth of it in the last of `steps`, as half a
    cosine."""
    if step < warmup:
        return lr * (step + 1) / warmup
    return lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))))
