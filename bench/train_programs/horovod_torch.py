"""Horovod with PyTorch over gloo, for bench/train.py."""

# ruff: noqa: E402
from __future__ import annotations

import time

BEGAN = time.time()

import threading
from collections.abc import Callable
from pathlib import Path

import horovod.torch as hvd
import torch

from clock import measure, over, parse_options
from torch_net import instrument, make_net, make_step


def main() -> None:
    options = parse_options()
    hvd.init()
    rank = hvd.rank()
    torch.manual_seed(0)
    net = make_net(options.width)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    instrument(net)
    own = make_net(options.width)
    alone = make_step(own, torch.optim.SGD(own.parameters(), lr=0.01), options.batch, rank)

    def save(folder: Path) -> Callable[[], None]:
        if rank == 0:
            torch.save(net.state_dict(), folder / "net.pt")
        return over

    def save_in_a_thread(folder: Path) -> Callable[[], None]:
        """Horovod has no asynchronous checkpoints: copies the tensors, and a thread writes them."""
        if rank != 0:
            return over
        copy = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        thread = threading.Thread(target=torch.save, args=(copy, folder / "net.pt"))
        thread.start()
        return thread.join

    step = make_step(net, optimizer, options.batch, rank)
    measure(options, BEGAN, rank, step, alone, {"torch.save": save, "torch.save in a thread": save_in_a_thread})
    hvd.shutdown()


if __name__ == "__main__":
    main()
