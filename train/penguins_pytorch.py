"""PenguinNet on the Palmer penguins with PyTorch's DistributedDataParallel: every rank trains on its own share of the
rows, and after each backward pass the gradients are averaged, so that all ranks keep the same weights."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common.ddp import any_rank_terminated, join_group, leave, resume, stop
from common.journal import Journal
from common.models_pytorch import PenguinNet
from common.options import make_parser, parse_options
from common.penguins import Penguins, load_penguins
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
        totals = torch.zeros(3, device=device)  # loss, correct answers and samples of this rank
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
            loss, correct, samples = totals.tolist()
        progress.epoch += 1
        progress.losses.append(loss / samples)
        journal.end_epoch(
            progress,
            accuracy=correct / samples,
            seconds=time.monotonic() - started,
            samples=int(samples),
            checkpoint=lambda: pack(net, optimizer, progress),
        )
        termination.pause(options.pause)

    journal.finish(progress, evaluate(net, penguins, device), "Palmer penguins, PyTorch DDP")
    leave()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step on a batch of this rank. Returns summed loss, correct answers and samples: a tensor of shape (3,)."""
    optimizer.zero_grad()
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    loss.backward()  # DDP averages the gradients of all ranks here
    optimizer.step()
    return torch.stack([loss.detach() * len(y), (logits.argmax(1) == y).sum(), torch.tensor(len(y), device=x.device)])


@torch.no_grad()
def evaluate(net: nn.Module, penguins: Penguins, device: torch.device) -> float:
    """Accuracy on the held-out rows. Each rank evaluates a share, each row once: a DistributedSampler would repeat
    some rows to give all ranks the same number."""
    share = slice(dist.get_rank(), None, dist.get_world_size())
    answers = net(torch.from_numpy(penguins.test_x[share]).to(device)).argmax(1)
    correct = (answers == torch.from_numpy(penguins.test_y[share]).to(device)).sum()
    dist.all_reduce(correct)
    return correct.item() / len(penguins.test_y)


if __name__ == "__main__":
    main()
