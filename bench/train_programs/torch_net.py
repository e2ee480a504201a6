"""The network of the PyTorch and Horovod programs, and a training step."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from clock import CLASSES, LAYERS, PIXELS, Step


def make_net(width: int) -> nn.Sequential:
    torch.set_num_threads(1)
    sizes = [PIXELS, *[width] * LAYERS]
    hidden = [layer for i in range(LAYERS) for layer in (nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, CLASSES))


def make_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int, rank: int) -> Step:
    """A step on a fixed batch of random numbers, different on each rank."""
    numbers = torch.Generator().manual_seed(rank)
    x = torch.randn(batch, PIXELS, generator=numbers)
    y = torch.randint(CLASSES, (batch,), generator=numbers)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def instrument(model: nn.Module) -> None:
    """If the job reports progress, also measures this rank's own work in each step."""
    with contextlib.suppress(ImportError):
        from allranks.report.pytorch import instrument

        instrument(model)
