"""PenguinNet on the Palmer penguins with Horovod and PyTorch: the optimizer averages the gradients of all ranks, and at
the start all ranks receive weights and optimizer state from rank 0."""

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
        totals = torch.zeros(3, device=device)  # loss, correct answers and samples of this rank
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
    """One step on a batch of this rank. Returns summed loss, correct answers and samples: a tensor of shape (3,)."""
    optimizer.zero_grad()
    logits = net(x)
    loss = nn.functional.cross_entropy(logits, y)
    loss.backward()  # averages each gradient as soon as it is ready
    optimizer.step()  # waits for all averages
    return torch.stack([loss.detach() * len(y), (logits.argmax(1) == y).sum(), torch.tensor(len(y), device=x.device)])


def any_rank_terminated(termination: Termination) -> bool:
    """Whether any rank got SIGTERM, identical on all ranks. A large model would check only every few steps."""
    with waiting():  # waits for the slowest rank
        return bool(hvd.allreduce(torch.tensor([int(termination.requested)]), op=hvd.Max, name="terminated").item())


@torch.no_grad()
def evaluate(net: nn.Module, penguins: Penguins, device: torch.device) -> float:
    """Accuracy on the held-out rows. Each rank evaluates a share, each row once: a DistributedSampler would repeat
    some rows to give all ranks the same number."""
    share = slice(hvd.rank(), None, hvd.size())
    answers = net(torch.from_numpy(penguins.test_x[share]).to(device)).argmax(1)
    correct = (answers == torch.from_numpy(penguins.test_y[share]).to(device)).sum()
    return hvd.allreduce(correct, op=hvd.Sum, name="correct").item() / len(penguins.test_y)


if __name__ == "__main__":
    main()
