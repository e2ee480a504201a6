"""PenguinNet on the Palmer penguins with TensorFlow's ParameterServerStrategy: the ps tasks hold the weights, the
workers compute gradients asynchronously, and the chief schedules the steps and does everything else."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import numpy as np

from common.export_tensorflow import export_and_predict
from common.journal import Journal, Progress, say
from common.models_tensorflow import penguin_net
from common.options import make_parser, parse_options
from common.penguins import Penguins, load_penguins
from common.tensorflow import SUFFIX, pack, set_threads, tf, unpack
from common.termination import Termination

EXAMPLE = """export TF_CONFIG='{"cluster": {"chief": ["localhost:2222"], "ps": ["localhost:2223"],
                               "worker": ["localhost:2224", "localhost:2225"]},
                   "task": {"type": "chief", "index": 0}}'     # and one terminal for each other task
python penguins_tensorflow_ps.py --epochs 20 --checkpoint-dir /tmp/penguins

The chief ends with the training. The ps and worker tasks never end by themselves: end them after the chief."""


def main() -> None:
    parser = make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.01, batch_of="one worker")
    run(parser, parse_options(parser))


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """The task that TF_CONFIG gives to this process."""
    if "TF_CONFIG" not in os.environ:
        parser.error("TF_CONFIG is not set: parameter servers need a cluster of chief, ps and worker tasks")
    set_threads(options.threads)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("ps", "worker"):
        serve(resolver)
    elif resolver.task_type == "chief":
        train(resolver, options)
    else:
        parser.error(f"task type {resolver.task_type!r} in TF_CONFIG: this program supports chief, ps and worker")


def serve(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Execute the requests of the chief until this process is ended."""
    name = f"{resolver.task_type} {resolver.task_id}"
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    # The first process of a container ignores SIGTERM unless it has a handler.
    Termination(lambda: say(f"{name}: SIGTERM: stopped"), agree_within=0)
    say(f"{name}: serving at {resolver.cluster_spec().task_address(resolver.task_type, resolver.task_id)}")
    server.join()


def train(resolver: tf.distribute.cluster_resolver.ClusterResolver, options: argparse.Namespace) -> None:
    """The chief: controls the whole training."""
    cluster = resolver.cluster_spec().as_dict()
    workers, servers = len(cluster.get("worker", [])), len(cluster.get("ps", []))
    strategy = tf.distribute.ParameterServerStrategy(resolver)  # waits for the other tasks
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    journal = Journal(options, 0, workers, SUFFIX, f"{workers} worker(s) and {servers} ps", name="chief")
    termination = Termination(journal.save_alone)

    penguins = load_penguins()
    tf.keras.utils.set_random_seed(options.seed)
    with strategy.scope():  # variables are placed on the ps tasks, round-robin
        net = penguin_net()
        optimizer = tf.keras.optimizers.Adam(options.lr)
        optimizer.build(net.trainable_variables)
    variables = [*net.variables, *optimizer.variables]
    content = journal.newest_checkpoint()
    progress = unpack(content, variables)[0] if content else Progress()
    journal.begin(progress)

    train_step = make_train_step(strategy, net, optimizer, penguins)
    while progress.epoch < options.epochs:
        started = time.monotonic()
        batches = batches_of_rows(len(penguins.train_y), options.batch_size, options.seed, progress.epoch)
        results = []
        journal.begin_epoch(progress, len(batches))
        for rows in batches:
            if termination.requested:
                break
            journal.begin_step(progress)
            results.append(coordinator.schedule(train_step, args=(rows,)))  # any free worker executes it
            progress.step += 1
        coordinator.join()  # steps of a lost worker are executed by another one
        if len(results) < len(batches):
            termination.agreed()
            journal.stop(progress, lambda: pack(variables, progress))
            termination.exit()
        loss = float(np.sum(coordinator.fetch(results)))
        samples = len(penguins.train_y)
        journal.end_step(progress, samples, loss / samples)  # of all workers: they are not synchronized
        progress.epoch += 1
        progress.losses.append(loss / samples)
        validation_loss, accuracy = evaluate(net, penguins.validation_x, penguins.validation_y)
        progress.validation_losses.append(validation_loss)
        journal.end_epoch(
            progress,
            accuracy=accuracy,
            seconds=time.monotonic() - started,
            samples=samples,
            checkpoint=lambda: pack(variables, progress),
        )
        termination.pause(options.pause)

    _, accuracy = evaluate(net, penguins.test_x, penguins.test_y)
    journal.finish(progress, accuracy, "Palmer penguins, ParameterServerStrategy")
    export_and_predict(journal, net, penguins)


def make_train_step(
    strategy: tf.distribute.Strategy, net: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer, penguins: Penguins
) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function of row indices that runs on a worker: one asynchronous step with the current weights. Returns the
    summed loss. Here the data is a constant of the function; use
    `coordinator.create_per_worker_dataset` for larger data."""

    @tf.function
    def train_step(rows: tf.Tensor) -> tf.Tensor:
        def step_of_replica() -> tf.Tensor:
            replica = tf.distribute.get_replica_context()  # one for each GPU of the worker
            mine = rows[replica.replica_id_in_sync_group :: replica.num_replicas_in_sync]
            x, y = tf.gather(penguins.train_x, mine), tf.gather(penguins.train_y, mine)
            with tf.GradientTape() as tape:
                logits = net(x, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
                loss = tf.reduce_sum(losses) / tf.cast(tf.size(rows), tf.float32)
            gradients = tape.gradient(loss, net.trainable_variables)
            optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
            return tf.reduce_sum(losses)

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step_of_replica), axis=None)

    return train_step


def batches_of_rows(count: int, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The indices of all rows in batches. The order depends on seed and epoch only."""
    order = np.random.default_rng((seed, epoch)).permutation(count)
    return np.split(order, range(batch_size, count, batch_size))


def evaluate(net: tf.keras.Model, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Mean loss and accuracy on held-out rows, computed by the chief with the weights of the ps tasks."""
    logits = net(x, training=False)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return float(tf.reduce_mean(losses)), float(np.mean(np.argmax(logits, axis=1) == y))


if __name__ == "__main__":
    main()
