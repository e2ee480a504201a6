"""PenguinNet on the Palmer penguins, split over ranks with PyTorch's RPC: rank 0 has a reference (RRef) to the part of
the network on each other rank. Distributed autograd runs the backward pass through all parts, and a distributed
optimizer updates the parameters where they are."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import OrderedDict

import numpy as np
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.optim import DistributedOptimizer

from common.export_pytorch import export_and_predict
from common.journal import Journal, Progress
from common.models_pytorch import PenguinNet
from common.options import make_parser, parse_options
from common.penguins import load_penguins
from common.pytorch import SUFFIX, pack, unpack
from common.report import finish
from common.termination import Termination

EXAMPLE = """torchrun --standalone --nproc-per-node 3 rpc_model_parallel.py --checkpoint-dir /tmp/penguins
(on one machine without allranks; the command of a manifest is [torchrun, train/rpc_model_parallel.py])"""
State = dict[str, torch.Tensor]


@record  # writes an exception to torchrun's error file: torchrun's own exit code does not show the cause
def main() -> None:
    parser = make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.2, batch_of="the network")
    options = parse_options(parser)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size < 2:
        parser.error("1 rank: the parts of the network need at least one rank beside rank 0")
    torch.set_num_threads(options.threads)
    network = rpc.TensorPipeRpcBackendOptions(init_method="env://", rpc_timeout=600)
    rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=size, rpc_backend_options=network)
    journal = Journal(options, rank, size, SUFFIX, "cpu (RPC)")
    termination = Termination(journal.save_alone)
    if rank == 0:
        train(options, size, journal, termination)
    rpc.shutdown()  # the other ranks answer calls here until rank 0 has arrived as well
    if termination.requested:
        termination.agreed()
        termination.exit()
    sys.stdout.flush()
    finish()
    os._exit(0)  # without the interpreter's shutdown, which PyTorch sometimes aborts


class Part(nn.Module):
    """Some layers of the network. Rank 0 creates it on another rank, and calls its methods through RPC."""

    def __init__(self, seed: int, first: int, end: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        # The names of the parameters are those of the whole network.
        self.layers = nn.Sequential(OrderedDict([*PenguinNet().named_children()][first:end]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def references(self) -> list[rpc.RRef]:
        return [rpc.RRef(parameter) for parameter in self.parameters()]

    def state(self) -> State:
        return self.layers.state_dict()

    def load(self, state: State) -> None:
        self.layers.load_state_dict({name: state[name] for name in self.layers.state_dict()})


class SplitNet:
    """The network, whose linear layers are shared among the ranks from 1 on."""

    def __init__(self, seed: int, ranks: int) -> None:
        children = [*PenguinNet().children()]
        linear = [number for number, layer in enumerate(children) if isinstance(layer, nn.Linear)]
        starts = [int(part[0]) for part in np.array_split(linear, min(ranks, len(linear)))]
        bounds = zip(starts, [*starts[1:], len(children)], strict=True)
        self.parts = [rpc.remote(f"rank-{rank}", Part, (seed, *bound)) for rank, bound in enumerate(bounds, 1)]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part.rpc_sync().forward(x)  # distributed autograd records each transfer
        return x

    def parameters(self) -> list[rpc.RRef]:
        """References to all parameters, for the optimizer."""
        return [reference for part in self.parts for reference in part.rpc_sync().references()]

    def state(self) -> State:
        return {name: value for part in self.parts for name, value in part.rpc_sync().state().items()}

    def load(self, state: State) -> None:
        for part in self.parts:
            part.rpc_sync().load(state)


def train(options: argparse.Namespace, size: int, journal: Journal, termination: Termination) -> None:
    """Rank 0: the data, the epochs and the checkpoints."""
    split = SplitNet(options.seed, size - 1)
    optimizer = DistributedOptimizer(torch.optim.SGD, split.parameters(), lr=options.lr)
    # For checkpoints and the export: a copy of the whole network. SGD has no state of its own.
    net, device = PenguinNet(), torch.device("cpu")
    sgd = torch.optim.SGD(net.parameters(), lr=options.lr)
    content, progress = journal.newest_checkpoint(), Progress()
    if content:
        progress, _ = unpack(content, net, sgd, device)
        split.load(net.state_dict())
    journal.begin(progress)

    def checkpoint() -> bytes:
        net.load_state_dict(split.state())
        return pack(net, sgd, progress)

    penguins = load_penguins()
    x, y = torch.from_numpy(penguins.train_x), torch.from_numpy(penguins.train_y)
    while progress.epoch < options.epochs:
        started = time.monotonic()
        generator = torch.Generator().manual_seed(hash((options.seed, progress.epoch)) & 0x7FFF_FFFF)
        batches = torch.randperm(len(y), generator=generator).split(options.batch_size)
        journal.begin_epoch(progress, len(batches))
        total = 0.0
        for batch in batches:
            if termination.requested:
                termination.agreed()
                return journal.stop(progress, checkpoint)
            journal.begin_step(progress)
            with dist_autograd.context() as context:
                loss = nn.functional.cross_entropy(split(x[batch]), y[batch])
                dist_autograd.backward(context, [loss])  # the gradients are in the context, on each rank
                optimizer.step(context)
            total += loss.item() * len(batch)
            progress.step += 1
            journal.end_step(progress, len(batch), loss.item())
            journal.save_on_request(progress, checkpoint)
        validation_loss, accuracy = evaluate(split, penguins.validation_x, penguins.validation_y)
        progress.epoch += 1
        progress.losses.append(total / len(y))
        progress.validation_losses.append(validation_loss)
        journal.end_epoch(progress, accuracy, time.monotonic() - started, len(y), checkpoint)
        termination.pause(options.pause)

    _, accuracy = evaluate(split, penguins.test_x, penguins.test_y)
    net.load_state_dict(split.state())
    journal.finish(progress, accuracy, "Palmer penguins, PyTorch RPC, split over ranks")
    export_and_predict(journal, net, penguins)
    return None


@torch.no_grad()
def evaluate(split: SplitNet, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Mean loss and accuracy on held-out rows."""
    logits, answers = split(torch.from_numpy(x)), torch.from_numpy(y)
    return nn.functional.cross_entropy(logits, answers).item(), (logits.argmax(1) == answers).float().mean().item()


if __name__ == "__main__":
    main()
