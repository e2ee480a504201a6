"""PyTorch checkpoints as bytes, and random seeds that make a resumed training identical to an uninterrupted one."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn

from common.journal import Progress

SUFFIX = ".pt"


def pack(model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, **more: Any) -> bytes:
    """The checkpoint. `model` must be the plain module, so that no name begins with `module.`."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": progress.as_dict(), **more}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack(
    content: bytes, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[Progress, dict[str, Any]]:
    """Restore model and optimizer; returns the progress and the `more` of `pack`."""
    state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    model.load_state_dict(state.pop("model"))
    optimizer.load_state_dict(state.pop("optimizer"))
    return Progress(**state.pop("progress")), state


def seed_epoch(seed: int, epoch: int, rank: int) -> None:
    """Seed the random numbers by epoch and rank. Then checkpoints need not contain the generators of all ranks, and a
    resumed training is bit-identical to an uninterrupted one."""
    torch.manual_seed(hash((seed, epoch, rank)) & 0x7FFF_FFFF)  # the hash of integers is the same in every process
