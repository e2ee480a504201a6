"""PenguinNet on the Palmer penguins with PyTorch's DistributedDataParallel: every rank trains on its own share of the
rows, and after each backward pass the gradients are averaged, so that all ranks keep the same weights."""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common.ddp import any_rank_terminated, join_group, leave, resume, stop
from common.export_pytorch import export_and_predict
from common.journal import Journal
from common.models_pytorch import PenguinNet
from common.options import make_parser, parse_options
from common.penguins import load_penguins
from common.pytorch import SUFFIX, pack, seed_epoch
from common.report import instrument, waiting
from common.termination import Termination

EXAMPLE = """torchrun --standalone --nproc-per-node 2 penguins_pytorch.py --epochs 20 --checkpoint-dir /tmp/penguins
(on one machine without allranks; the command of a manifest is [torchrun, train/penguins_pytorch.py])"""


@record  # writes an exception to torchrun's error file: torchrun's own exit code does not show the cause
def main() -> None:
    options = parse_options(make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.01))
    device = join_group(options.threads)
    rank, size = dist.get_rank(), dist.get_world_size()
    journal = Journal(options, rank, size, SUFFIX, f"{device} ({dist.get_backend()})")
    termination = Termination(journal.save_alone)

    penguins = load_penguins()
    torch.manual_seed(options.seed)
    net = PenguinNet().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=options.lr)
    progress, _ = resume(journal, net, optimizer, device)
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
            if any_rank_terminated(termination, device):
                stop(termination, journal, progress, lambda: pack(net, optimizer, progress))
            journal.begin_step(progress)
            sums = train_step(model, optimizer, x.to(device), y.to(device))
            totals += sums
            progress.step += 1
            journal.end_step(progress, len(y), sums[0] / len(y))
            journal.save_on_request(progress, lambda: pack(net, optimizer, progress))
        with waiting():
            dist.all_reduce(totals)
            loss, samples = totals.tolist()
            validation_loss, accuracy = evaluate(net, penguins.validation_x, penguins.validation_y, device)
        progress.epoch += 1
        progress.losses.append(loss / samples)
        progress.validation_losses.append(validation_loss)
        journal.end_epoch(
            progress,
            accuracy=accuracy,
            seconds=time.monotonic() - started,
            samples=int(samples),
            checkpoint=lambda: pack(net, optimizer, progress),
        )
        termination.pause(options.pause)

    _, accuracy = evaluate(net, penguins.test_x, penguins.test_y, device)
    journal.finish(progress, accuracy, "Palmer penguins, PyTorch DDP")
    export_and_predict(journal, net, penguins)
    leave()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step on a batch of this rank. Returns the summed loss and the number of samples: a tensor of shape (2,)."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()  # DDP averages the gradients of all ranks here
    optimizer.step()
    return torch.stack([loss.detach() * len(y), torch.tensor(len(y), device=x.device)])


@torch.no_grad()
def evaluate(net: nn.Module, x: np.ndarray, y: np.ndarray, device: torch.device) -> tuple[float, float]:
    """Mean loss and accuracy on held-out rows. Each rank evaluates a share, each row once: a DistributedSampler would
    repeat some rows to give all ranks the same number."""
    share = slice(dist.get_rank(), None, dist.get_world_size())
    logits, answers = net(torch.from_numpy(x[share]).to(device)), torch.from_numpy(y[share]).to(device)
    loss = nn.functional.cross_entropy(logits, answers, reduction="sum")
    totals = torch.stack([loss, (logits.argmax(1) == answers).sum()])
    dist.all_reduce(totals)
    loss, correct = totals.tolist()
    return loss / len(y), correct / len(y)


if __name__ == "__main__":
    main()
