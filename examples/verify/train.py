"""Trains a network on shuffled batches, and resumes from its newest checkpoint, without or with a mistake."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from allranks.report import report

parser = argparse.ArgumentParser()
parser.add_argument("--mistake", choices=["none", "optimizer", "sampler", "in-place"], default="none")
parser.add_argument("--steps", type=int, default=60)
options = parser.parse_args()

EVERY, BATCH, WIDTH = 5, 16, 1024
path = Path(os.environ["ALLRANKS_CHECKPOINT_DIR"]) / "last.pt"

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(4000, 64)
targets = inputs[:, :8].sum(1, keepdim=True).sin()
layers = (torch.nn.Linear(64, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1))
network = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.Adam(network.parameters(), lr=0.001)


def save(step: int) -> None:
    """Replace the checkpoint. A kill leaves the old one or the new one."""
    state = {"step": step, "network": network.module.state_dict(), "optimizer": optimizer.state_dict()}
    if options.mistake == "in-place":
        torch.save(state, path)  # a kill leaves a part of the file
    else:
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)


def load() -> int:
    """Return the step of the checkpoint; 0 without one."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    network.module.load_state_dict(state["network"])
    if options.mistake != "optimizer":  # without its state, Adam begins with new averages of the gradients
        optimizer.load_state_dict(state["optimizer"])
    return state["step"]


begin = load()
order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))
for step in range(begin, options.steps):
    batch = step - begin if options.mistake == "sampler" else step  # or it begins with the first batch again
    rows = order[(batch * size + rank) * BATCH :][:BATCH]
    loss = torch.nn.functional.mse_loss(network(inputs[rows]), targets[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step=step + 1, total_steps=options.steps, loss=loss)
    if (step + 1) % EVERY == 0:
        if rank == 0:
            save(step + 1)
            report(checkpoint=True)
        dist.barrier()
dist.destroy_process_group()
