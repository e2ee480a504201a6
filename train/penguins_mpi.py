"""PenguinNet on the Palmer penguins with mpi4py and numpy alone: every rank trains on its own share of the rows, and
one MPI_Allreduce in each step sums the gradients, so that all ranks keep the same weights."""

from __future__ import annotations

import io
import json
import time
from typing import NoReturn

import numpy as np
from mpi4py import MPI

from common.journal import Journal, Progress
from common.options import make_parser, parse_options
from common.penguins import FEATURES, SPECIES, load_penguins
from common.report import waiting
from common.termination import Termination

EXAMPLE = """mpirun -np 2 python -m mpi4py penguins_mpi.py --epochs 20 --checkpoint-dir /tmp/penguins
(`-m mpi4py` ends all ranks if one raises an exception; the others would wait for it forever)"""
WORLD = MPI.COMM_WORLD
SHAPES = ((FEATURES, 10), (10,), (10, 10), (10,), (10, len(SPECIES)), (len(SPECIES),))
SIZES = [int(np.prod(shape)) for shape in SHAPES]


def main() -> None:
    options = parse_options(make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.01))
    rank, size = WORLD.rank, WORLD.size
    journal = Journal(options, rank, size, ".npz", "cpu (MPI)")
    termination = Termination(journal.save_alone)

    penguins = load_penguins()
    adam, progress = resume(journal, Adam(initial_weights(options.seed), options.lr))
    rows = len(penguins.train_y)
    steps = -(-rows // (options.batch_size * size))
    while progress.epoch < options.epochs:
        started = time.monotonic()
        journal.begin_epoch(progress, steps)
        order = np.resize(
            np.random.default_rng((options.seed, progress.epoch)).permutation(rows), steps * size * options.batch_size
        )
        totals = np.zeros(2)  # loss and samples of this rank
        for step in order.reshape(steps, size, options.batch_size):
            if any_rank_terminated(termination):
                stop(termination, journal, progress, adam)
            journal.begin_step(progress)
            mine = step[rank]
            gradient, sums = gradients(adam.weights, penguins.train_x[mine], penguins.train_y[mine])
            with waiting():  # for the slowest rank
                WORLD.Allreduce(MPI.IN_PLACE, gradient)
            adam.step(gradient / size)
            totals += sums
            progress.step += 1
            journal.end_step(progress, len(mine), sums[0] / len(mine))
            journal.save_on_request(progress, lambda: pack(adam, progress))
        with waiting():
            WORLD.Allreduce(MPI.IN_PLACE, totals)
        loss, samples = totals
        validation_loss, accuracy = evaluate(adam.weights, penguins.validation_x, penguins.validation_y)
        progress.epoch += 1
        progress.losses.append(float(loss / samples))
        progress.validation_losses.append(validation_loss)
        journal.end_epoch(
            progress,
            accuracy=accuracy,
            seconds=time.monotonic() - started,
            samples=int(samples),
            checkpoint=lambda: pack(adam, progress),
        )
        termination.pause(options.pause)

    _, accuracy = evaluate(adam.weights, penguins.test_x, penguins.test_y)
    journal.finish(progress, accuracy, "Palmer penguins, MPI")


def split(weights: np.ndarray) -> list[np.ndarray]:
    """Views of the matrices and biases of the three layers in one vector: MPI sends it in one message."""
    parts = np.split(weights, np.cumsum(SIZES)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def initial_weights(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    parts = [random.normal(0, shape[0] ** -0.5, shape) if len(shape) == 2 else np.zeros(shape) for shape in SHAPES]
    return np.concatenate([part.ravel() for part in parts])


def forward(weights: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    """The input of each layer, and the logits."""
    w1, b1, w2, b2, w3, b3 = split(weights)
    first = np.maximum(x @ w1 + b1, 0)
    second = np.maximum(first @ w2 + b2, 0)
    return [x, first, second, second @ w3 + b3]


def gradients(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of the mean cross entropy of one batch, and its summed loss and samples."""
    _, _, w2, _, w3, _ = split(weights)
    x, first, second, logits = forward(weights, x)
    log_probabilities = log_softmax(logits)
    loss = -log_probabilities[np.arange(len(y)), y].sum()
    delta = (np.exp(log_probabilities) - np.eye(len(SPECIES))[y]) / len(y)
    parts = [second.T @ delta, delta.sum(0)]
    delta = delta @ w3.T * (second > 0)
    parts = [first.T @ delta, delta.sum(0), *parts]
    delta = delta @ w2.T * (first > 0)
    parts = [x.T @ delta, delta.sum(0), *parts]
    return np.concatenate([part.ravel() for part in parts]), np.array([loss, len(y)])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def evaluate(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Mean loss and accuracy on held-out rows. Each rank evaluates a share, each row once."""
    share = slice(WORLD.rank, None, WORLD.size)
    x, answers = x[share], y[share]
    log_probabilities = log_softmax(forward(weights, x)[-1])
    loss = -log_probabilities[np.arange(len(answers)), answers].sum()
    totals = np.array([loss, (log_probabilities.argmax(1) == answers).sum()])
    with waiting():
        WORLD.Allreduce(MPI.IN_PLACE, totals)
    loss, correct = totals / len(y)
    return float(loss), float(correct)


class Adam:
    """The optimizer of Kingma and Ba (https://arxiv.org/abs/1412.6980), with its usual constants."""

    def __init__(self, weights: np.ndarray, lr: float) -> None:
        self.weights, self.lr, self.steps = weights, lr, 0
        self.mean, self.square = np.zeros_like(weights), np.zeros_like(weights)

    def step(self, gradient: np.ndarray) -> None:
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        mean, square = self.mean / (1 - 0.9**self.steps), self.square / (1 - 0.999**self.steps)
        self.weights = self.weights - self.lr * mean / (np.sqrt(square) + 1e-8)


def pack(adam: Adam, progress: Progress) -> bytes:
    """The checkpoint."""
    header = json.dumps({"progress": progress.as_dict(), "steps": adam.steps}).encode()
    buffer = io.BytesIO()
    np.savez(buffer, header=np.frombuffer(header, np.uint8), state=np.stack([adam.weights, adam.mean, adam.square]))
    return buffer.getvalue()


def resume(journal: Journal, adam: Adam) -> tuple[Adam, Progress]:
    """Rank 0 reads its newest checkpoint and broadcasts it: the others may have another disk."""
    content = WORLD.bcast(journal.newest_checkpoint())
    progress = Progress()
    if content:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            adam.weights, adam.mean, adam.square = archive["state"]
        adam.steps, progress = header["steps"], Progress(**header["progress"])
    journal.begin(progress)
    return adam, progress


def any_rank_terminated(termination: Termination) -> bool:
    """Whether any rank got SIGTERM, identical on all ranks. A large model would check only every few steps."""
    with waiting():
        return bool(WORLD.allreduce(termination.requested, MPI.LOR))


def stop(termination: Termination, journal: Journal, progress: Progress, adam: Adam) -> NoReturn:
    """Ends all ranks. None ends before rank 0 has saved, because mpirun ends all ranks after the first exit."""
    termination.agreed()
    journal.stop(progress, lambda: pack(adam, progress))
    WORLD.Barrier()
    MPI.Finalize()  # `-m mpi4py` would take the exit for a failure
    termination.exit()


if __name__ == "__main__":
    main()
