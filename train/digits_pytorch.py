"""A small VGG on images with PyTorch's DistributedDataParallel: the handwritten digits of scikit-learn, or CIFAR-10.
All ranks stop early after the same epoch and restore the best weights."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common.ddp import any_rank_terminated, join_group, leave, resume, stop
from common.early_stopping import EarlyStopping
from common.images import load_images
from common.journal import Journal
from common.models_pytorch import DigitNet
from common.options import make_parser, parse_options, positive_int
from common.pytorch import SUFFIX, pack, seed_epoch
from common.report import instrument, waiting
from common.schedules import cosine
from common.termination import Termination

EXAMPLE = """torchrun --standalone --nproc-per-node 2 digits_pytorch.py --checkpoint-dir /tmp/digits
torchrun --standalone --nproc-per-node 8 digits_pytorch.py --data ~/cifar-10-batches-py --batch-size 128
(on one machine without allranks; the command of a manifest is [torchrun, train/digits_pytorch.py])"""


@record  # writes an exception to torchrun's error file: torchrun's own exit code does not show the cause
def main() -> None:
    parser = make_parser(__doc__, EXAMPLE, epochs=20, batch_size=32, lr=0.003)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="CIFAR-10, unpacked (default: the digits)")
    parser.add_argument(
        "--patience", type=positive_int, default=5, help="epochs without progress (default %(default)s)"
    )
    options = parse_options(parser)
    device = join_group(options.threads)
    rank, size = dist.get_rank(), dist.get_world_size()
    journal = Journal(options, rank, size, SUFFIX, f"{device} ({dist.get_backend()})")
    termination = Termination(journal.save_alone)

    images = load_images(options.data)
    torch.manual_seed(options.seed)
    net = DigitNet(images.train_x.shape[1], images.train_x.shape[3], images.classes, images.peak).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=options.lr)
    progress, more = resume(journal, net, optimizer, device)
    early = EarlyStopping(options.patience, **more.get("early", {}))
    best = more.get("best") or snapshot(net)
    model = DistributedDataParallel(net)
    instrument(model)

    def checkpoint() -> bytes:
        return pack(net, optimizer, progress, early=early.as_dict(), best=best)

    train_images = TensorDataset(torch.from_numpy(images.train_x), torch.from_numpy(images.train_y))
    sampler = DistributedSampler(train_images, seed=options.seed)
    loader = DataLoader(train_images, batch_size=options.batch_size, sampler=sampler)
    while progress.epoch < options.epochs and not early.exhausted:
        started = time.monotonic()
        sampler.set_epoch(progress.epoch)  # otherwise every epoch has the same order
        seed_epoch(options.seed, progress.epoch, rank)
        for group in optimizer.param_groups:
            group["lr"] = cosine(options.lr, progress.epoch, options.epochs)
        net.train()
        journal.begin_epoch(progress, len(loader))
        totals = torch.zeros(2, device=device)  # loss and samples of this rank
        for x, y in loader:
            if any_rank_terminated(termination, device):
                stop(termination, journal, progress, checkpoint)
            journal.begin_step(progress)
            sums = train_step(model, optimizer, x.to(device), y.to(device))
            totals += sums
            progress.step += 1
            journal.end_step(progress, len(y), sums[0] / len(y))
            journal.save_on_request(progress, checkpoint)
        with waiting():
            dist.all_reduce(totals)
            loss, samples = totals.tolist()
        seconds = time.monotonic() - started

        validation_loss, accuracy = evaluate(net, images.validation_x, images.validation_y, options.batch_size, device)
        progress.epoch += 1
        progress.losses.append(loss / samples)
        progress.validation_losses.append(validation_loss)
        if early.update(validation_loss, progress.epoch):
            best = snapshot(net)
        journal.end_epoch(progress, accuracy, seconds, int(samples), checkpoint)
        termination.pause(options.pause)

    net.load_state_dict(best)
    journal.best(early)
    _, accuracy = evaluate(net, images.test_x, images.test_y, options.batch_size, device)
    journal.finish(progress, accuracy, "CIFAR-10, PyTorch DDP" if options.data else "Digits, PyTorch DDP")
    leave()


def snapshot(net: nn.Module) -> dict[str, Any]:
    """A copy of the current weights."""
    return {name: value.clone() for name, value in net.state_dict().items()}


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step on a batch of this rank. Returns the summed loss and the number of samples: a tensor of shape (2,)."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()  # DDP averages the gradients of all ranks here
    optimizer.step()
    return torch.stack([loss.detach() * len(y), torch.tensor(len(y), device=x.device)])


@torch.no_grad()
def evaluate(
    net: nn.Module, pixels: np.ndarray, labels: np.ndarray, batch_size: int, device: torch.device
) -> tuple[float, float]:
    """Mean loss and accuracy on all of these images, bit-identical on all ranks, so that all ranks decide the same.
    Each rank evaluates a share of the images, each image once."""
    net.eval()
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    share = slice(dist.get_rank(), None, dist.get_world_size())
    x, y = torch.from_numpy(pixels[share]), torch.from_numpy(labels[share])
    for batch, answers in zip(x.split(batch_size), y.split(batch_size), strict=True):
        logits, answers = net(batch.to(device)), answers.to(device)
        totals[0] += nn.functional.cross_entropy(logits, answers, reduction="sum")
        totals[1] += (logits.argmax(1) == answers).sum()
    dist.all_reduce(totals)
    dist.broadcast(totals, src=0)  # the order of the sum, and so its last bit, may differ between ranks
    loss, correct = totals.tolist()
    return loss / len(labels), correct / len(labels)


if __name__ == "__main__":
    main()
