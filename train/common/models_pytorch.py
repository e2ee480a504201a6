"""The networks of the PyTorch and Horovod programs."""

from __future__ import annotations

import torch
from torch import nn

from common.penguins import FEATURES, SPECIES


class PenguinNet(nn.Sequential):
    """(batch, 5) features to (batch, 3) logits."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(FEATURES, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, len(SPECIES)))


class DigitNet(nn.Module):
    """Maps (batch, rows, columns, channels) pixels from 0 to `peak` to (batch, classes) logits. A small VGG: pairs of
    3x3 convolutions, each twice as wide as the previous pair and followed by pooling, down to 2x2."""

    def __init__(self, side: int, channels: int, classes: int, peak: int) -> None:
        super().__init__()
        self.peak = peak
        layers: list[nn.Module] = []
        width = 16
        while side > 2:
            for inputs in (channels, width):
                # Not batch normalization: its running means would differ between ranks.
                layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.GroupNorm(4, width), nn.ReLU()]
            layers.append(nn.MaxPool2d(2))
            channels, width, side = width, 2 * width, side // 2
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.classifier = nn.Sequential(nn.Dropout(0.25), nn.Linear(channels * side * side, classes))
        self.to(memory_format=torch.channels_last)  # as the pixels are

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = pixels.permute(0, 3, 1, 2).float() / self.peak - 0.5
        return self.classifier(self.features(x))
