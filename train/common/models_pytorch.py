"""The networks of the PyTorch programs, Horovod's among them."""

from __future__ import annotations

from torch import nn

from common.penguins import FEATURES, SPECIES


class PenguinNet(nn.Sequential):
    """(batch, 5) features to (batch, 3) logits."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(FEATURES, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, len(SPECIES)))
