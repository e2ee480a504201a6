"""TensorFlow's MultiWorkerMirroredStrategy, for bench/train.py."""

# ruff: noqa: E402
from __future__ import annotations

import time

BEGAN = time.time()

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from clock import CLASSES, LAYERS, PIXELS, Step, measure, over, parse_options

try:
    from allranks.report.keras import mark_gradients_ready
except ImportError:

    def mark_gradients_ready(gradients: Any) -> Any:
        """Does nothing: reports are disabled."""
        return gradients


def main() -> None:
    options = parse_options()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        net, optimizer = make_net(options.width)
    step_of_replica = make_step(net, optimizer, options.batch, rank, strategy.num_replicas_in_sync)
    alone = tf.function(make_step(*make_net(options.width), options.batch, rank, 1))

    @tf.function
    def step() -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step_of_replica), axis=None)

    # Keras' own variables cannot be saved in the background: their copies would be made within a tf.function.
    state = tf.train.Checkpoint(weights=[variable.value for variable in net.weights])
    in_background = tf.train.CheckpointOptions(enable_async=True)

    # All ranks take part, as the strategy requires; only the file of rank 0 counts.
    def save(folder: Path) -> Callable[[], None]:
        state.write(str(folder / f"rank-{rank}"))
        return over

    def async_save(folder: Path) -> Callable[[], None]:
        state.write(str(folder / f"rank-{rank}"), options=in_background)
        return state.sync

    measure(options, BEGAN, rank, step, alone, {"Checkpoint.write": save, "Checkpoint.write, enable_async": async_save})


def make_net(width: int) -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer]:
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    hidden = [layers.Dense(width, "relu") for _ in range(LAYERS)]
    net = tf.keras.Sequential([layers.Input((PIXELS,)), *hidden, layers.Dense(CLASSES)])
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build(net.trainable_variables)
    return net, optimizer


def make_step(
    net: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer, batch: int, rank: int, replicas: int
) -> Step:
    """A step on a fixed batch of random numbers, different on each rank."""
    x = tf.random.stateless_normal((batch, PIXELS), seed=(rank, 0))
    y = tf.random.stateless_uniform((batch,), seed=(rank, 1), maxval=CLASSES, dtype=tf.int32)

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=net(x, training=True))
            loss = tf.reduce_mean(losses) / replicas  # the optimizer sums the gradients of all ranks
        gradients = tape.gradient(loss, net.trainable_variables)
        if replicas > 1:
            gradients = mark_gradients_ready(gradients)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        return loss

    return step


if __name__ == "__main__":
    main()
