"""PenguinNet on the Palmer penguins with Horovod and PyTorch: the optimizer averages the gradients of all ranks, and at
the start all ranks receive weights and optimizer state from rank 0."""

from __future__ import annotations

import time

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common.export_pytorch import export_and_predict
from common.horovod import require_expected_size
from common.journal import Journal, Progress
from common.models_pytorch import PenguinNet
from common.options import make_parser, parse_options
from common.penguins import load_penguins
from common.pytorch import SUFFIX, pack, seed_epoch, unpack
from common.report import instrument, waiting
from common.termination import Termination

EXAMPLE = "horovodrun -np 2 --gloo python penguins_horovod.py --epochs 20 --checkpoint-dir /tmp/penguins"


def main() -> None:
    options = parse_options(make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.005))
    hvd.init()
    require_expected_size(hvd.size())
    rank, size = hvd.rank(), hvd.size()
    device = choose_device(options.threads)
    journal = Journal(options, rank, size, SUFFIX, f"{device} (Horovod)")
    termination = Termination(journal.save_alone)

    penguins = load_penguins()
    torch.manual_seed(options.seed)
    net = PenguinNet().to(device)
    # N ranks use N times as many samples in a step, so the learning rate may be N times as high.
    optimizer = torch.optim.Adam(net.parameters(), lr=options.lr * size)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())  # drops state: wrap first
    progress = resume(journal, net, optimizer, options.lr * size, device)
    instrument(net)

    train_rows = TensorDataset(torch.from_numpy(penguins.train_x), torch.from_numpy(penguins.train_y))
    sampler = DistributedSampler(train_rows, num_replicas=size, rank=rank, seed=options.seed)
    loader = DataLoader(train_rows, batch_size=options.batch_size, sampler=sampler)
    while progress.epoch < options.epochs:
        started = time.monotonic()
        sampler.set_epoch(progress.epoch)  # otherwise every epoch has the same order
        seed_epoch(options.seed, progress.epoch, rank)
        journal.begin_epoch(progress, len(loader))
        totals = torch.zeros(2, device=device)  # loss and samples of this rank
        for x, y in loader:
            if any_rank_terminated(termination):
                termination.agreed()
                journal.stop(progress, lambda: pack(net, optimizer, progress))
                any_rank_terminated(termination)  # no rank ends before rank 0 has saved
                termination.exit()
            journal.begin_step(progress)
            sums = train_step(net, optimizer, x.to(device), y.to(device))
            totals += sums
            progress.step += 1
            journal.end_step(progress, len(y), sums[0] / len(y))
            journal.save_on_request(progress, lambda: pack(net, optimizer, progress))
        with waiting():
            loss, samples = hvd.allreduce(totals, op=hvd.Sum, name="totals").tolist()
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
    journal.finish(progress, accuracy, "Palmer penguins, Horovod")
    export_and_predict(journal, net, penguins)
    hvd.shutdown()


def choose_device(threads: int) -> torch.device:
    """One GPU for each process on this machine, or `threads` cores."""
    torch.set_num_threads(threads)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(hvd.local_rank())
    return torch.device("cuda", hvd.local_rank())


def resume(
    journal: Journal, net: nn.Module, optimizer: torch.optim.Optimizer, lr: float, device: torch.device
) -> Progress:
    """Rank 0 reads its newest checkpoint and broadcasts weights, optimizer state and progress, because the others may
    have another disk. At the first start it broadcasts its initial weights."""
    progress = Progress()
    content = journal.newest_checkpoint()
    if content:
        progress, _ = unpack(content, net, optimizer, device)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for group in optimizer.param_groups:
        group["lr"] = lr  # the checkpoint has that of its own number of ranks
    progress = hvd.broadcast_object(progress, root_rank=0)
    journal.begin(progress)
    return progress


def train_step(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step on a batch of this rank. Returns the summed loss and the number of samples: a tensor of shape (2,)."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()  # averages each gradient as soon as it is ready
    optimizer.step()  # waits for all averages
    return torch.stack([loss.detach() * len(y), torch.tensor(len(y), device=x.device)])


def any_rank_terminated(termination: Termination) -> bool:
    """Whether any rank got SIGTERM, identical on all ranks. A large model would check only every few steps."""
    with waiting():  # waits for the slowest rank
        return bool(hvd.allreduce(torch.tensor([int(termination.requested)]), op=hvd.Max, name="terminated").item())


@torch.no_grad()
def evaluate(net: nn.Module, x: np.ndarray, y: np.ndarray, device: torch.device) -> tuple[float, float]:
    """Mean loss and accuracy on held-out rows. Each rank evaluates a share, each row once: a DistributedSampler would
    repeat some rows to give all ranks the same number."""
    share = slice(hvd.rank(), None, hvd.size())
    logits, answers = net(torch.from_numpy(x[share]).to(device)), torch.from_numpy(y[share]).to(device)
    loss = nn.functional.cross_entropy(logits, answers, reduction="sum")
    totals = torch.stack([loss, (logits.argmax(1) == answers).sum()])
    loss, correct = hvd.allreduce(totals, op=hvd.Sum, name="evaluation").tolist()
    return loss / len(y), correct / len(y)


if __name__ == "__main__":
    main()
