"""PenguinNet on the Palmer penguins with Elastic Horovod and PyTorch: ranks join and leave during the training. Each
step is committed in the memory of all ranks. When a rank is lost, the others return to the last commit."""

from __future__ import annotations

import argparse
import math
import time

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common.export_pytorch import export_and_predict
from common.journal import Journal, Progress, say
from common.models_pytorch import PenguinNet
from common.options import make_parser, parse_options
from common.penguins import Penguins, load_penguins
from common.pytorch import SUFFIX, pack, unpack
from common.report import instrument, waiting
from common.termination import Termination
from penguins_horovod import choose_device, evaluate, train_step

EXAMPLE = "allranks run examples/penguins-horovod-elastic.yaml"


def main() -> None:
    options = parse_options(make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.005))
    hvd.init()
    device = choose_device(options.threads)
    journal = Journal(options, hvd.rank(), hvd.size(), SUFFIX, f"{device} (Elastic Horovod)")
    termination = Termination(journal.save_alone)

    penguins = load_penguins()
    torch.manual_seed(options.seed)
    net = PenguinNet().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=options.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    build_state(net, optimizer)
    instrument(net)
    progress, content = Progress(), journal.newest_checkpoint()  # of rank 0; `train` broadcasts it
    if content:
        progress, _ = unpack(content, net, optimizer, device)
    rows = TensorDataset(torch.from_numpy(penguins.train_x), torch.from_numpy(penguins.train_y))
    state = hvd.elastic.TorchState(
        net,
        optimizer,
        sampler=hvd.elastic.ElasticSampler(rows, shuffle=True, seed=options.seed),
        epoch=progress.epoch,
        step=progress.step,
        losses=tuple(progress.losses),
        validation_losses=tuple(progress.validation_losses),
        rounds=0,
    )
    accuracy = train(state, options, journal, termination, rows, penguins, device)
    journal.finish(progress_of(state), accuracy, "Palmer penguins, Elastic Horovod")
    export_and_predict(journal, state.model, penguins)
    hvd.shutdown()


@hvd.elastic.run  # starts again from the last commit whenever ranks were lost or have joined
def train(
    state: hvd.elastic.TorchState,
    options: argparse.Namespace,
    journal: Journal,
    termination: Termination,
    rows: TensorDataset,
    penguins: Penguins,
    device: torch.device,
) -> float:
    """The accuracy on the test rows. `state` holds everything that ranks must share; rank 0 broadcasts it."""
    start_round(state, options, journal)
    loader = DataLoader(rows, batch_size=options.batch_size, sampler=state.sampler)
    steps = math.ceil(len(rows) / (options.batch_size * hvd.size()))
    while state.epoch < options.epochs:
        started = time.monotonic()
        journal.begin_epoch(progress_of(state), steps, left=len(loader))
        totals = torch.zeros(2, device=device)  # of this rank, since the last rendezvous
        for number, (x, y) in enumerate(loader):
            if termination.requested:
                leave(state, journal, termination)
            journal.begin_step(progress_of(state))
            sums = train_step(state.model, state.optimizer, x.to(device), y.to(device))
            totals += sums
            state.step += 1
            journal.end_step(progress_of(state), len(y), sums[0] / len(y))
            journal.save_on_request(progress_of(state), lambda: pack(state.model, state.optimizer, progress_of(state)))
            state.sampler.record_batch(number, options.batch_size)  # the rest of the epoch is distributed again
            with waiting():  # for notices of ranks that join or leave
                state.commit()  # a large model would commit only every few steps
        with waiting():
            loss, samples = hvd.allreduce(totals, op=hvd.Sum, name="totals").tolist()
            validation_loss, accuracy = evaluate(state.model, penguins.validation_x, penguins.validation_y, device)
        state.epoch += 1
        state.losses = (*state.losses, loss / max(samples, 1))
        state.validation_losses = (*state.validation_losses, validation_loss)
        state.sampler.set_epoch(state.epoch)
        journal.end_epoch(
            progress_of(state),
            accuracy=accuracy,
            seconds=time.monotonic() - started,
            samples=int(samples),
            checkpoint=lambda: pack(state.model, state.optimizer, progress_of(state)),
        )
        termination.pause(options.pause)
        state.commit()
    return evaluate(state.model, penguins.test_x, penguins.test_y, device)[1]


def start_round(state: hvd.elastic.TorchState, options: argparse.Namespace, journal: Journal) -> None:
    """Starts or continues with the present ranks. Rank 0 stays rank 0; other ranks may get another number."""
    for group in state.optimizer.param_groups:
        group["lr"] = options.lr * hvd.size()
    journal.regroup(hvd.rank(), hvd.size())
    state.rounds += 1
    if state.rounds == 1:
        journal.begin(progress_of(state))
    elif hvd.rank() == 0 and state.losses:
        where = f"epoch {state.epoch} of the last commit, step {state.step}"
        say(f"resumed from {where}, with {hvd.size()} ranks (loss {state.losses[-1]:.4f})")


def build_state(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Creates Adam's averages with a step that does not use an all-reduce, because a rank that joins later makes this
    step alone. With zero gradients the step changes nothing."""
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    super(optimizer.__class__, optimizer).step()


def leave(state: hvd.elastic.TorchState, journal: Journal, termination: Termination) -> None:
    """Ends this rank after SIGTERM. The others have been notified. Rank 0 is signaled last, when all ranks end."""
    termination.agreed()
    journal.stop(progress_of(state), lambda: pack(state.model, state.optimizer, progress_of(state)))
    termination.exit()


def progress_of(state: hvd.elastic.TorchState) -> Progress:
    return Progress(state.epoch, state.step, list(state.losses), list(state.validation_losses))


if __name__ == "__main__":
    main()
