"""JAX with the batch split between two processes, for bench/train.py."""

# ruff: noqa: E402
from __future__ import annotations

import time

BEGAN = time.time()

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # one thread, as the other programs have

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from clock import CLASSES, LAYERS, PIXELS, Step, measure, over, parse_options

Net = list[tuple[jax.Array, jax.Array]]


def main() -> None:
    options = parse_options()
    number, size = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"])
    jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], size, number)
    rank = jax.process_index()
    draw = np.random.default_rng(rank)
    x = draw.normal(size=(options.batch, PIXELS)).astype(np.float32)
    y = draw.integers(CLASSES, size=options.batch)

    mesh = Mesh(np.array(jax.devices()), ("data",))
    split, same = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    shares = [jax.make_array_from_process_local_data(split, each) for each in (x, y)]
    net = make_net(options.width)
    step = make_step(jax.device_put(net, same), *shares)
    alone = make_step(net, jnp.asarray(x), jnp.asarray(y))

    def save(folder: Path) -> Callable[[], None]:
        if rank == 0:
            np.savez(folder / "net.npz", *map(np.asarray, jax.tree.leaves(net)))
        return over

    measure(options, BEGAN, rank, step, alone, {"numpy.savez": save})
    jax.distributed.shutdown()


def make_net(width: int) -> Net:
    draw = np.random.default_rng(0)
    sizes = [PIXELS, *[width] * LAYERS, CLASSES]
    layers = itertools.pairwise(sizes)
    return [(jnp.asarray(draw.normal(size=(i, o)) * (2 / i) ** 0.5, jnp.float32), jnp.zeros(o)) for i, o in layers]


def make_step(net: Net, x: jax.Array, y: jax.Array) -> Step:
    """A step on a fixed batch."""
    optimizer = optax.sgd(0.01)

    def mean_loss(net: Net, x: jax.Array, y: jax.Array) -> jax.Array:
        hidden = x
        for weights, bias in net[:-1]:
            hidden = jax.nn.relu(hidden @ weights + bias)
        logits = hidden @ net[-1][0] + net[-1][1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jax.jit
    def train(net: Net, state: Any, x: jax.Array, y: jax.Array) -> tuple[Net, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(mean_loss)(net, x, y)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(net, updates), state, loss

    current = [net, optimizer.init(net)]

    def step() -> jax.Array:
        current[0], current[1], loss = train(*current, x, y)
        return loss.block_until_ready()

    return step


if __name__ == "__main__":
    main()
