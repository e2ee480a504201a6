"""What every DistributedDataParallel program does around its training: meet, resume together and stop together."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from common.journal import Journal, Progress
from common.pytorch import unpack
from common.report import finish, waiting
from common.termination import Termination


def join_group(threads: int) -> torch.device:
    """Meet the other ranks, at the address that torchrun or an operator put into the environment; alone where there is
    none. One process has one GPU, or `threads` cores."""
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")  # any free one, which only a group of one can do with
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return device


def resume(
    journal: Journal, net: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[Progress, dict[str, Any]]:
    """Rank 0 reads its newest checkpoint and sends it to all: the others may have another disk. Returns the progress,
    and what else the program has put into its checkpoints; nothing of it at the first start."""
    content = [journal.newest_checkpoint()]
    dist.broadcast_object_list(content, src=0, device=device)
    progress, more = unpack(content[0], net, optimizer, device) if content[0] else (Progress(), {})
    journal.begin(progress)
    return progress, more


def any_rank_terminated(termination: Termination, device: torch.device) -> bool:
    """Whether a rank got SIGTERM, the same answer on all ranks. A large model would ask only every few steps."""
    flag = torch.tensor(int(termination.requested), device=device)
    with waiting():  # for the slowest rank
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())


def stop(termination: Termination, journal: Journal, progress: Progress, checkpoint: Callable[[], bytes]) -> NoReturn:
    """All ranks end here; none before rank 0 has saved, because torchrun ends the others when one is gone."""
    termination.agreed()
    journal.stop(progress, checkpoint)
    dist.barrier()
    dist.destroy_process_group()
    termination.exit()


def leave() -> NoReturn:
    """All is done and saved: close the group and end, without the interpreter's own shutdown.

    In that, PyTorch 2.15 with gloo now and then aborts (`terminate called without an active exception`), and a job that
    has succeeded looks failed.
    """
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    finish()
    os._exit(0)
