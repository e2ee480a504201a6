"""The rule for early stopping. The program must apply it to the same number on all ranks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass


@dataclass
class EarlyStopping:
    """Stops after `patience` epochs in a row in which the validation loss did not fall below the best one so far."""

    patience: int
    best: float = math.inf
    best_epoch: int = 0
    stale: int = 0

    def update(self, loss: float, epoch: int) -> bool:
        """Record the validation loss of an epoch. True if it is the best so far; NaN never is."""
        if loss < self.best:
            self.best, self.best_epoch, self.stale = loss, epoch, 0
            return True
        self.stale += 1
        return False

    @property
    def exhausted(self) -> bool:
        """Whether to stop now."""
        return self.stale >= self.patience

    def as_dict(self) -> dict[str, float]:
        """State for the checkpoint, without the patience, which may change after a restart."""
        state = asdict(self)
        del state["patience"]
        return state
