"""PenguinNet on the Palmer penguins with Horovod and PyTorch: an optimizer that averages the gradients of all ranks
before it uses them, and weights and optimizer state that all ranks take from rank 0 at the start."""

from __future__ import annotations

import time

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common.horovod import require_expected_size
from common.journal import Journal, Progress
from common.models_pytorch import PenguinNet
from common.options import make_parser, parse_options
from common.penguins import Penguins, load_penguins
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
    termination = Termination(journal.last_words)

    penguins = load_penguins()
    torch.manual_seed(options.seed)
    net = PenguinNet().to(device)
    # N ranks see N times as many samples in a step, so the step may be N times as long.
    optimizer = torch.optim.Adam(net.parameters(), lr=options.lr * size)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())  # drops state: wrap first
    progress = resume(journal, net, optimizer, options.lr * size, device)
    instrument(net)

    train_rows = TensorDataset(torch.from_numpy(penguins.train_x), torch.from_numpy(penguins.train_y))
    sampler = DistributedSampler(train_rows, num_replicas=size, rank=rank, seed=options.seed)
    loader = DataLoader(train_rows, batch_size=options.batch_size, sampler=sampler)
    while progress.epoch < options.epochs:
        started = time.monotonic()
        sampler.set_epoch(progress.epoch)  # without it every epoch has the same order
        seed_epoch(options.seed, progress.epoch, rank)
        journal.begin_epoch(progress, len(loader))
        totals = torch.zeros(3, device=device)  # loss, correct answers and samples of this rank
        for x, y in loader:
            if any_rank_terminated(termination):
                termination.agreed()
                journal.stop(progress, lambda: pack(net, optimizer, progress))
                any_rank_terminated(termination)  # none ends before rank 0 has saved
                termination.exit()
            journal.begin_step(progress)
            sums = train_step(net, optimizer, x.to(device), y.to(device))
            totals += sums
            progress.step += 1
            journal.end_step(progress, len(y), sums[0] / len(y))
        with waiting():
            loss, correct, samples = hvd.allreduce(totals, op=hvd.Sum, name="totals").tolist()
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

    journal.finish(progress, evaluate(net, penguins, device), "Palmer penguins, Horovod")
    hvd.shutdown()


def choose_device(threads: int) -> torch.device:
    """One GPU for each process of this machine, or `threads` cores."""
    torch.set_num_threads(threads)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(hvd.local_rank())
    return torch.device("cuda", hvd.local_rank())


def resume(
    journal: Journal, net: nn.Module, optimizer: torch.optim.Optimizer, lr: float, device: torch.device
) -> Progress:
    """Rank 0 reads its newest checkpoint, and all take weights, optimizer state and progress from rank 0: the others
    may have another disk. At the first start they take rank 0's initial weights in the same way."""
    progress = Progress()
    content = journal.newest_checkpoint()
    if content:
        progress, _ = unpack(content, net, optimizer, device)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for group in optimizer.param_groups:
        group["lr"] = lr  # the checkpoint's is that of as many ranks as there were then
    progress = hvd.broadcast_object(progress, root_rank=0)
    journal.begin(progress)
    return progress


def train_step(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step on a batch of this rank; its summed loss, correct answers and samples, as a tensor of shape (3,)."""
    optimizer.zero_grad()
    logits = net(x)
    loss = nn.functional.cross_entropy(logits, y)
    loss.backward()  # the averaging of each gradient begins as soon as it is there
    optimizer.step()  # and this waits for all of them
    return torch.stack([loss.detach() * len(y), (logits.argmax(1) == y).sum(), torch.tensor(len(y), device=x.device)])


def any_rank_terminated(termination: Termination) -> bool:
    """Whether a rank got SIGTERM, the same answer on all ranks. A large model would ask only every few steps."""
    with waiting():  # for the slowest rank
        return bool(hvd.allreduce(torch.tensor([int(termination.requested)]), op=hvd.Max, name="terminated").item())


@torch.no_grad()
def evaluate(net: nn.Module, penguins: Penguins, device: torch.device) -> float:
    """Accuracy on the held-out rows. Each rank counts a share of them, each row once: a DistributedSampler would
    repeat some to give all ranks the same number."""
    share = slice(hvd.rank(), None, hvd.size())
    answers = net(torch.from_numpy(penguins.test_x[share]).to(device)).argmax(1)
    correct = (answers == torch.from_numpy(penguins.test_y[share]).to(device)).sum()
    return hvd.allreduce(correct, op=hvd.Sum, name="correct").item() / len(penguins.test_y)


if __name__ == "__main__":
    main()
