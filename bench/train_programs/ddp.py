"""PyTorch's DistributedDataParallel over gloo, for bench/train.py."""

# ruff: noqa: E402
from __future__ import annotations

import time

BEGAN = time.time()

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.nn.parallel import DistributedDataParallel

from clock import measure, over, parse_options
from torch_net import instrument, make_net, make_step


def main() -> None:
    options = parse_options()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = make_net(options.width)
    model = DistributedDataParallel(net)
    instrument(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    own = make_net(options.width)
    alone = make_step(own, torch.optim.SGD(own.parameters(), lr=0.01), options.batch, rank)
    savers = dist.new_group(backend="gloo")  # its collectives run beside the training's

    def save(folder: Path) -> Callable[[], None]:
        if rank == 0:
            torch.save(net.state_dict(), folder / "net.pt")
        return over

    def async_save(folder: Path) -> Callable[[], None]:
        saving = checkpoint.async_save(net.state_dict(), checkpoint_id=folder, process_group=savers)

        def wait() -> None:
            saving.result()

        return wait

    step = make_step(model, optimizer, options.batch, rank)
    measure(options, BEGAN, rank, step, alone, {"torch.save": save, "checkpoint.async_save": async_save})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
