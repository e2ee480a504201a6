"""PenguinNet on the Palmer penguins with Ray Train: a driver starts the ranks on the nodes of a Ray cluster, and starts
them again from the last checkpoint when a node is lost. Elastic: the number of ranks follows that of the nodes."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common.journal import Journal, Progress
from common.models_pytorch import PenguinNet
from common.options import make_parser, parse_options, positive_int
from common.penguins import load_penguins
from common.pytorch import SUFFIX, pack, seed_epoch, unpack
from common.report import instrument, report, waiting

EXAMPLE = (
    "python penguins_ray.py --workers 2 --checkpoint-dir /tmp/penguins      # starts a Ray cluster on this machine"
)
FILE = f"penguins{SUFFIX}"


def main() -> None:
    """The driver. Ray Train finds the checkpoints of an earlier attempt by the name of the run and its storage path."""
    parser = make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.01)
    parser.add_argument(
        "--workers",
        type=positive_int,
        default=int(os.environ.get("ALLRANKS_RAY_WORKERS") or 1),
        help="ranks of a job that is not elastic (default: the workers of the allranks job, else 1)",
    )
    parser.add_argument(
        "--max-failures", type=int, default=3, help="restarts of the ranks by Ray Train (default %(default)s)"
    )
    options = parse_options(parser)
    ray.init()  # the cluster at RAY_ADDRESS, or a new one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # Ray's own handler exits with 15
    gpus = ray.cluster_resources().get("GPU", 0) > 0
    storage = options.checkpoint_dir.absolute() / "ray" if options.checkpoint_dir else None
    trainer = TorchTrainer(
        train,
        train_loop_config=vars(options),
        scaling_config=ScalingConfig(num_workers=ranks(options), use_gpu=gpus),
        run_config=RunConfig(
            name="penguins",
            storage_path=str(storage) if storage else tempfile.mkdtemp(),
            failure_config=FailureConfig(max_failures=options.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    trainer.fit()


def ranks(options: Namespace) -> int | tuple[int, int]:
    """The number of ranks, or the smallest and the largest one in an elastic job."""
    least = os.environ.get("ALLRANKS_RAY_MIN_WORKERS")
    return (int(least), int(os.environ["ALLRANKS_RAY_MAX_WORKERS"])) if least else options.workers


def train(config: dict[str, Any]) -> None:
    """One rank. Ray Train has joined the process group and set RANK, WORLD_SIZE and the like."""
    options = Namespace(**config)
    rank, size = dist.get_rank(), dist.get_world_size()
    device = ray.train.torch.get_device()
    torch.set_num_threads(options.threads)
    journal = Journal(options, rank, size, None, f"{device} ({dist.get_backend()})")

    penguins = load_penguins()
    torch.manual_seed(options.seed)
    net = PenguinNet().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=options.lr)
    progress = resume(net, optimizer, device)
    journal.begin(progress)
    model = DistributedDataParallel(net)
    instrument(model)

    train_rows = TensorDataset(torch.from_numpy(penguins.train_x), torch.from_numpy(penguins.train_y))
    sampler = DistributedSampler(train_rows, seed=options.seed)
    loader = DataLoader(train_rows, batch_size=options.batch_size, sampler=sampler)
    while progress.epoch < options.epochs:
        started = time.monotonic()
        sampler.set_epoch(progress.epoch)  # otherwise every epoch has the same order
        seed_epoch(options.seed, progress.epoch, rank)
        journal.begin_epoch(progress, len(loader))
        totals = torch.zeros(2, device=device)  # loss and samples of this rank
        for x, y in loader:
            journal.begin_step(progress)
            sums = train_step(model, optimizer, x.to(device), y.to(device))
            totals += sums
            progress.step += 1
            journal.end_step(progress, len(y), sums[0] / len(y))
        with waiting():
            dist.all_reduce(totals)
            loss, samples = totals.tolist()
            validation_loss, accuracy = evaluate(net, penguins.validation_x, penguins.validation_y, device)
        seconds = time.monotonic() - started
        progress.epoch += 1
        progress.losses.append(loss / samples)
        progress.validation_losses.append(validation_loss)
        metrics = {"loss": loss / samples, "validation_loss": validation_loss, "accuracy": accuracy}
        save(net, optimizer, progress, rank, metrics)
        journal.end_epoch(progress, accuracy, seconds, int(samples), checkpoint=bytes)
        time.sleep(options.pause)

    _, accuracy = evaluate(net, penguins.test_x, penguins.test_y, device)
    journal.finish(progress, accuracy, "Palmer penguins, Ray Train")


def resume(net: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Progress:
    """Every rank reads the last checkpoint from the storage, which all nodes reach."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return Progress()
    with checkpoint.as_directory() as folder:
        return unpack((Path(folder) / FILE).read_bytes(), net, optimizer, device)[0]


def save(
    net: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, rank: int, metrics: dict[str, float]
) -> None:
    """Every rank must call `ray.train.report`. The checkpoint of rank 0 is stored when it returns; Ray Train resumes
    from it after its controller has recorded it, which takes another second or two."""
    with waiting(), tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if rank == 0:
            (Path(folder) / FILE).write_bytes(pack(net, optimizer, progress))
            checkpoint = Checkpoint.from_directory(folder)
        ray.train.report({"epoch": progress.epoch, "step": progress.step, **metrics}, checkpoint=checkpoint)
    if rank == 0:
        report(step=progress.step, checkpoint=True)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step on a batch of this rank. Returns the summed loss and the number of samples: a tensor of shape (2,)."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()  # DDP averages the gradients of all ranks here
    optimizer.step()
    return torch.stack([loss.detach() * len(y), torch.tensor(len(y), device=x.device)])


@torch.no_grad()
def evaluate(net: nn.Module, x: np.ndarray, y: np.ndarray, device: torch.device) -> tuple[float, float]:
    """Mean loss and accuracy on held-out rows, each of which one rank evaluates."""
    share = slice(dist.get_rank(), None, dist.get_world_size())
    logits, answers = net(torch.from_numpy(x[share]).to(device)), torch.from_numpy(y[share]).to(device)
    loss = nn.functional.cross_entropy(logits, answers, reduction="sum")
    totals = torch.stack([loss, (logits.argmax(1) == answers).sum()])
    dist.all_reduce(totals)
    loss, correct = totals.tolist()
    return loss / len(y), correct / len(y)


if __name__ == "__main__":
    main()
