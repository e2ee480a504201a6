"""Start, resume and stop of all ranks of a DistributedDataParallel program."""

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
    """Join the process group at the address in the environment (from torchrun or the operator); alone without one.
    Each process uses one GPU, or `threads` cores. The backend is that of the job (`pytorch.backend`), or follows from
    the device."""
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")  # any free port: enough for a group of one
    torch.set_num_threads(threads)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    backend = os.environ.get("ALLRANKS_BACKEND") or ("nccl" if device.type == "cuda" else "gloo")
    dist.init_process_group(backend, device_id=device if backend == "nccl" else None)
    return device


def resume(
    journal: Journal, net: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[Progress, dict[str, Any]]:
    """Rank 0 reads its newest checkpoint and broadcasts it: the others may have another disk. Returns the progress and
    the program's own values in the checkpoint; both are empty at the first start."""
    content = [journal.newest_checkpoint()]
    dist.broadcast_object_list(content, src=0, device=device)
    progress, more = unpack(content[0], net, optimizer, device) if content[0] else (Progress(), {})
    journal.begin(progress)
    return progress, more


def any_rank_terminated(termination: Termination, device: torch.device) -> bool:
    """Whether any rank got SIGTERM, identical on all ranks. A large model would check only every few steps."""
    flag = torch.tensor(int(termination.requested), device=device)
    with waiting():  # waits for the slowest rank
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())


def stop(termination: Termination, journal: Journal, progress: Progress, checkpoint: Callable[[], bytes]) -> NoReturn:
    """Ends all ranks. None ends before rank 0 has saved, because torchrun ends all ranks after the first exit."""
    termination.agreed()
    journal.stop(progress, checkpoint)
    dist.barrier()
    dist.destroy_process_group()
    termination.exit()


def leave() -> NoReturn:
    """Close the group and exit without the interpreter's shutdown.

    During shutdown PyTorch 2.15 with gloo sometimes aborts (`terminate called without an active exception`), which
    makes a successful job fail.
    """
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    finish()
    os._exit(0)
