"""PenguinNet on the Palmer penguins with a parameter server over PyTorch's RPC: rank 0 has the weights and the
optimizer, the other ranks compute gradients and send them. Updates are synchronous (one for all trainers) or
asynchronous (one for each gradient)."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch
import torch.distributed.rpc as rpc
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record

from common.journal import Journal, Progress
from common.models_pytorch import PenguinNet
from common.options import make_parser, parse_options
from common.penguins import load_penguins
from common.pytorch import SUFFIX, pack, unpack
from common.report import finish, waiting
from common.termination import Termination

EXAMPLE = """torchrun --standalone --nproc-per-node 3 rpc_parameter_server.py --updates async
(on one machine without allranks; the command of a manifest is [torchrun, train/rpc_parameter_server.py])"""

SERVER = "server"
NO_LIMIT = 0.0
"""Of calls that wait for other trainers or for an epoch. allranks detects hangs."""
Tensors = list[torch.Tensor]
Reply = tuple[int, bool, Tensors]
"""Updates so far, whether to stop, the weights."""


@record  # writes an exception to torchrun's error file: torchrun's own exit code does not show the cause
def main() -> None:
    parser = make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.01, batch_of="each trainer")
    parser.add_argument("--updates", choices=["sync", "async"], default="sync", help="default: %(default)s")
    options = parse_options(parser)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size < 2:
        parser.error("1 rank: a parameter server needs at least one trainer beside it")
    torch.set_num_threads(options.threads)
    network = rpc.TensorPipeRpcBackendOptions(init_method="env://", rpc_timeout=600)  # for the start and the end
    name = SERVER if rank == 0 else f"trainer-{rank}"
    rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=network)
    if rank == 0:
        serve(options, size)
    else:
        train(options, rank, size)


# The server


class Server:
    """The weights. Trainers call `push` and `train_epoch` through RPC, in threads of their own."""

    def __init__(self, options: argparse.Namespace, trainers: int, journal: Journal, termination: Termination) -> None:
        torch.manual_seed(options.seed)
        self.net = PenguinNet()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=options.lr)
        self.progress = Progress()
        self._needed = trainers if options.updates == "sync" else 1
        self._journal, self._termination = journal, termination
        self._lock = threading.Lock()
        self._stop = False
        self._pending: dict[int, tuple[Tensors, torch.futures.Future[Reply]]] = {}

    @property
    def weights(self) -> Tensors:
        """A copy: the optimizer changes the weights in place."""
        return [parameter.detach().clone() for parameter in self.net.parameters()]

    @property
    def stopping(self) -> bool:
        """Whether a rank got SIGTERM."""
        return self._stop

    def push(self, trainer: int, gradients: Tensors, stop: bool, loss: float) -> torch.futures.Future:
        """A reply that is ready after the update with these gradients."""
        reply: torch.futures.Future[Reply] = torch.futures.Future()
        with self._lock:
            self._stop = self._stop or stop or self._termination.requested
            self._pending[trainer] = gradients, reply
            if len(self._pending) == self._needed:
                self._update(loss)
        return reply

    def _update(self, loss: float) -> None:
        """One step with the mean of the gradients, in the order of the ranks: the result is the same every time."""
        arrived = [self._pending[trainer] for trainer in sorted(self._pending)]
        self._pending.clear()
        for parameter, *parts in zip(self.net.parameters(), *(gradients for gradients, _ in arrived), strict=True):
            parameter.grad = torch.stack(parts).mean(dim=0)
        self.optimizer.step()
        self.progress.step += 1
        self._journal.end_step(self.progress, 0, loss)
        weights = self.weights
        for _, reply in arrived:
            reply.set_result((self.progress.step, self._stop, weights))


server: Server | None = None


@rpc.functions.async_execution  # the thread of this call does not wait for the other trainers
def push(trainer: int, gradients: Tensors, stop: bool, loss: float) -> torch.futures.Future:
    """Trainers call this on rank 0."""
    assert server
    return server.push(trainer, gradients, stop, loss)


def serve(options: argparse.Namespace, size: int) -> None:
    """Rank 0: the weights, the epochs, the checkpoints."""
    global server
    journal = Journal(options, 0, size, SUFFIX, f"cpu (RPC), server of {size - 1} trainer(s), {options.updates}")
    termination = Termination(journal.save_alone)
    server = Server(options, size - 1, journal, termination)
    net, optimizer = server.net, server.optimizer
    content = journal.newest_checkpoint()
    if content:
        server.progress, _ = unpack(content, net, optimizer, torch.device("cpu"))
    progress = server.progress
    journal.begin(progress)
    penguins = load_penguins()
    trainers = range(1, size)
    batches = len(penguins.train_y) // ((size - 1) * options.batch_size)  # each trainer has as many
    updates = batches if options.updates == "sync" else batches * (size - 1)
    while progress.epoch < options.epochs:
        started = time.monotonic()
        journal.begin_epoch(progress, updates)
        task = Task(progress.epoch, progress.step, updates * options.epochs, batches, server.weights)
        epochs = [rpc.rpc_async(f"trainer-{number}", train_epoch, (task,), timeout=NO_LIMIT) for number in trainers]
        results = torch.futures.wait_all(epochs)  # raises if a trainer is gone
        if server.stopping:
            termination.agreed()
            journal.stop(progress, lambda: pack(net, optimizer, progress))
            end(143, termination)
        loss, samples = torch.tensor(results).sum(dim=0).tolist()
        validation_loss, accuracy = evaluate(net, penguins.validation_x, penguins.validation_y)
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

    _, accuracy = evaluate(net, penguins.test_x, penguins.test_y)
    torch.futures.wait_all([rpc.rpc_async(f"trainer-{number}", complete, args=(accuracy,)) for number in trainers])
    journal.finish(progress, accuracy, f"Palmer penguins, PyTorch RPC, {options.updates} updates")
    end(0, termination)


@torch.no_grad()
def evaluate(net: nn.Module, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Mean loss and accuracy on held-out rows."""
    logits, answers = net(torch.from_numpy(x)), torch.from_numpy(y)
    return nn.functional.cross_entropy(logits, answers).item(), (logits.argmax(1) == answers).float().mean().item()


# The trainers


@dataclass(frozen=True)
class Task:
    """An epoch for all trainers."""

    epoch: int
    step: int
    total_steps: int
    batches: int
    weights: Tensors


class Trainer:
    """A copy of the network, and this trainer's share of the rows."""

    def __init__(
        self, options: argparse.Namespace, rank: int, size: int, journal: Journal, termination: Termination
    ) -> None:
        self.options, self.rank, self.size = options, rank, size
        self.journal, self.termination = journal, termination
        penguins = load_penguins()
        self.x, self.y = torch.from_numpy(penguins.train_x), torch.from_numpy(penguins.train_y)
        self.device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        self.net = PenguinNet().to(self.device)
        self.accuracy: float | None = None
        self._begun = False

    def train_epoch(self, task: Task) -> tuple[float, float]:
        """Returns the summed loss and the number of samples."""
        options = self.options
        generator = torch.Generator().manual_seed(hash((options.seed, task.epoch)) & 0x7FFF_FFFF)
        share = torch.randperm(len(self.y), generator=generator)[self.rank - 1 :: self.size - 1]
        progress = Progress(epoch=task.epoch, step=task.step)
        if task.epoch and not self._begun:
            self.journal.begin(progress)
        self._begun = True
        self.journal.begin_epoch(progress, task.total_steps // options.epochs)
        weights, totals = task.weights, torch.zeros(2)
        for batch in share[: task.batches * options.batch_size].split(options.batch_size):
            self.journal.begin_step(progress)
            self._load(weights)
            x, y = self.x[batch].to(self.device), self.y[batch].to(self.device)
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.net.zero_grad()
            loss.backward()
            gradients = [parameter.grad.cpu() for parameter in self.net.parameters()]
            value, stop = loss.item(), self.termination.requested
            with waiting():
                sent = (self.rank, gradients, stop, value)
                progress.step, stop, weights = rpc.rpc_sync(SERVER, push, sent, timeout=NO_LIMIT)
            self.journal.end_step(progress, len(y), value)
            totals += torch.tensor([value * len(y), len(y)])
            if stop:
                self.termination.agreed()
                break
        loss_sum, samples = totals.tolist()
        return loss_sum, samples

    @torch.no_grad()
    def _load(self, weights: Tensors) -> None:
        for parameter, weight in zip(self.net.parameters(), weights, strict=True):
            parameter.copy_(weight)


trainer: Trainer | None = None
ready = threading.Event()


def train_epoch(task: Task) -> tuple[float, float]:
    """Rank 0 calls this on each trainer."""
    ready.wait()  # the server may be faster than the trainer
    assert trainer
    return trainer.train_epoch(task)


def complete(accuracy: float) -> None:
    """Rank 0 calls this on each trainer at the end."""
    assert trainer
    trainer.accuracy = accuracy


def train(options: argparse.Namespace, rank: int, size: int) -> None:
    """Other ranks: their calls come through RPC, until rank 0 ends."""
    global trainer
    journal = Journal(options, rank, size, SUFFIX, "cpu (RPC), trainer")
    termination = Termination(journal.save_alone)
    trainer = Trainer(options, rank, size, journal, termination)
    ready.set()
    rpc.shutdown()  # waits for the other ranks
    if trainer.accuracy is None:
        termination.agreed()
        termination.exit()
    journal.finish(Progress(), trainer.accuracy, "")
    leave(0)


def end(code: int, termination: Termination) -> NoReturn:
    """Rank 0 ends after the trainers have had their last answer."""
    rpc.shutdown()
    if code:
        termination.exit()
    leave(code)


def leave(code: int) -> NoReturn:
    """Exit without the interpreter's shutdown, which PyTorch sometimes aborts."""
    sys.stdout.flush()
    sys.stderr.flush()
    finish()
    os._exit(code)


if __name__ == "__main__":
    main()
