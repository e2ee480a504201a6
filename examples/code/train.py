"""Fits sin(x) on all ranks with DistributedDataParallel."""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from net import make
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {size} runs {__file__}", flush=True)
    torch.manual_seed(0)
    model = DistributedDataParallel(make())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.linspace(-3, 3, 256)[rank::size].unsqueeze(1)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), torch.sin(x))
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
