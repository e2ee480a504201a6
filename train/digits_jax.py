"""A small VGG on images with JAX: the handwritten digits of scikit-learn, or CIFAR-10. Every device has all weights and
a share of each batch. All ranks stop early after the same epoch and restore the best weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

from common.early_stopping import EarlyStopping
from common.images import load_images
from common.jax import (
    SUFFIX,
    data_mesh,
    describe_devices,
    join_group,
    make_agreement,
    pack,
    replicated,
    resume,
    share_batch,
)
from common.journal import Journal
from common.models_jax import Parameters, digit_net, logits
from common.options import make_parser, parse_options, positive_int
from common.report import mark_in_jax, waiting
from common.schedules import cosine
from common.termination import Termination

EXAMPLE = """python digits_jax.py --checkpoint-dir /tmp/digits      # this process alone
export JAX_COORDINATOR_ADDRESS=localhost:8476 JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=0    # 1 in another terminal
python digits_jax.py --data ~/cifar-10-batches-py --batch-size 128"""


def main() -> None:
    parser = make_parser(__doc__, EXAMPLE, epochs=20, batch_size=32, lr=0.003, batch_of="each device")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="CIFAR-10, unpacked (default: the digits)")
    parser.add_argument(
        "--patience", type=positive_int, default=5, help="epochs without progress (default %(default)s)"
    )
    options = parse_options(parser)
    rank, size = join_group()
    journal = Journal(options, rank, size, SUFFIX, describe_devices())
    termination = Termination(journal.save_alone)

    images = load_images(options.data)
    mesh = data_mesh()
    net = digit_net(jax.random.key(options.seed), images.train_x.shape[1], images.train_x.shape[3], images.classes)
    optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=options.lr)
    # Parameters, the optimizer's state, and the parameters of the best epoch.
    state = (net, optimizer.init(net), net)
    state, progress, notes = resume(journal, state)
    net, momenta, best = replicated(mesh, state)
    early = EarlyStopping(options.patience, **notes.get("early", {}))

    def checkpoint() -> bytes:
        return pack((net, momenta, best), progress, {"early": early.as_dict()})

    train_step = make_train_step(mesh, optimizer, images.peak)
    evaluate = make_evaluation(mesh, images.peak)
    any_rank_terminated = make_agreement(mesh, termination)
    samples_per_step = options.batch_size * mesh.size
    steps = max(1, len(images.train_y) // samples_per_step)  # drops a remainder, a different one in every epoch
    while progress.epoch < options.epochs and not early.exhausted:
        started = time.monotonic()
        momenta.hyperparams["learning_rate"] = replicated(
            mesh, jnp.float32(cosine(options.lr, progress.epoch, options.epochs))
        )
        losses = 0.0
        journal.begin_epoch(progress, steps)
        share = options.batch_size * len(mesh.local_devices)
        for chosen in batches(len(images.train_y), share, steps, options.seed + progress.epoch):
            if any_rank_terminated():
                termination.agreed()
                journal.stop(progress, checkpoint)
                any_rank_terminated()  # no rank ends before rank 0 has saved
                termination.exit()
            journal.begin_step(progress)
            x, y = share_batch(mesh, images.train_x[chosen]), share_batch(mesh, images.train_y[chosen])
            net, momenta, loss = train_step(net, momenta, x, y)
            losses += loss
            progress.step += 1
            journal.end_step(progress, share, loss)
            journal.save_on_request(progress, checkpoint)
        with waiting():
            mean_loss = float(losses) / steps
        seconds = time.monotonic() - started

        validation_loss, accuracy = evaluate(net, images.validation_x, images.validation_y)
        progress.epoch += 1
        progress.losses.append(mean_loss)
        progress.validation_losses.append(validation_loss)
        if early.update(validation_loss, progress.epoch):
            best = net
        journal.end_epoch(progress, accuracy, seconds, steps * samples_per_step, checkpoint)
        termination.pause(options.pause)

    journal.best(early)
    _, accuracy = evaluate(best, images.test_x, images.test_y)
    journal.finish(progress, accuracy, "CIFAR-10, JAX" if options.data else "Digits, JAX")
    if size > 1:
        jax.distributed.shutdown()  # waits for the others: the coordinator must not end first


def batches(count: int, share: int, steps: int, seed: int) -> Iterator[np.ndarray]:
    """The samples of this process in each step of one epoch: `share` indices below `count`. All processes draw the same
    order, and take different parts of it."""
    order = np.random.default_rng(seed).permutation(count)
    needed = steps * share * jax.process_count()
    order = np.resize(order, needed)  # repeats samples if there are fewer than one step needs
    for step in order.reshape(steps, jax.process_count(), share):
        yield step[jax.process_index()]


def make_train_step(
    mesh: Mesh, optimizer: optax.GradientTransformation, peak: int
) -> Callable[..., tuple[Any, Any, jax.Array]]:
    """A function that makes a step with one global batch, and returns parameters, the optimizer's state and the mean
    loss. Each device has a share of the batch and computes its own gradients; all use the mean."""

    def mean_loss(net: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits(net, x, peak), y).mean()

    def on_each_device(net: Parameters, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Parameters]:
        loss, gradients = jax.value_and_grad(mean_loss)(net, x, y)
        return jax.lax.pmean(loss, "data"), mark_in_jax(lambda each: jax.lax.pmean(each, "data"), gradients)

    everywhere, share = PartitionSpec(), PartitionSpec("data")
    # With check_vma, JAX would sum the gradients itself, as a part of value_and_grad.
    mean_of_all = jax.shard_map(
        on_each_device, mesh=mesh, in_specs=(everywhere, share, share), out_specs=everywhere, check_vma=False
    )

    @partial(jax.jit, donate_argnums=1)
    def train_step(net: Parameters, momenta: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, gradients = mean_of_all(net, x, y)
        updates, momenta = optimizer.update(gradients, momenta, net)
        return optax.apply_updates(net, updates), momenta, loss

    return train_step


def make_evaluation(mesh: Mesh, peak: int) -> Callable[[Parameters, np.ndarray, np.ndarray], tuple[float, float]]:
    """A function that returns mean loss and accuracy on all of these images, identical on all ranks. Each device
    evaluates a share."""

    @jax.jit
    def sums(net: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
        guesses = logits(net, x, peak)
        loss = optax.softmax_cross_entropy_with_integer_labels(guesses, jnp.maximum(y, 0))
        counted = y >= 0
        return jnp.stack([(loss * counted).sum(), (counted & (guesses.argmax(1) == y)).sum()])

    def evaluate(net: Parameters, pixels: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        padding = -len(labels) % mesh.size  # every device needs as many images: a label of -1 does not count
        x = np.concatenate([pixels, np.zeros((padding, *pixels.shape[1:]), pixels.dtype)])
        y = np.concatenate([labels, np.full(padding, -1)])
        own = slice(
            len(y) // jax.process_count() * jax.process_index(),
            len(y) // jax.process_count() * (jax.process_index() + 1),
        )
        with waiting():
            loss, correct = sums(net, share_batch(mesh, x[own]), share_batch(mesh, y[own])).tolist()
        return loss / len(labels), correct / len(labels)

    return evaluate


if __name__ == "__main__":
    main()
