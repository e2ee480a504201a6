"""Checkpoints of a PyTorch training as bytes, and random numbers that continue after a restart as if there was none."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn

from common.journal import Progress

SUFFIX = ".pt"


def pack(model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, **more: Any) -> bytes:
    """Everything that a training needs to go on. `model` is the plain one, so that no name begins with `module.`."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": progress.as_dict(), **more}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack(
    content: bytes, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[Progress, dict[str, Any]]:
    """Fill model and optimizer; the progress, and what `pack` was given as `more`."""
    state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    model.load_state_dict(state.pop("model"))
    optimizer.load_state_dict(state.pop("optimizer"))
    return Progress(**state.pop("progress")), state


def seed_epoch(seed: int, epoch: int, rank: int) -> None:
    """Random numbers that depend on the epoch and not on how the training came to it. So no checkpoint has to hold
    the generators of all ranks, and a resumed training equals one that was never interrupted, to the last bit."""
    torch.manual_seed(hash((seed, epoch, rank)) & 0x7FFF_FFFF)  # the hash of integers is the same in every process
