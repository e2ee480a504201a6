"""PenguinNet on the Palmer penguins with TensorFlow. `--strategy` chooses how: by default each task in TF_CONFIG has
all weights and a share of the rows, and every step sums the gradients of all tasks."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import penguins_tensorflow_ps
from common.export_tensorflow import export_and_predict
from common.journal import Journal
from common.models_tensorflow import penguin_net
from common.options import make_parser, parse_options, positive_int
from common.penguins import load_penguins
from common.report import mark_gradients_ready
from common.strategies import make_strategy
from common.tensorflow import (
    SUFFIX,
    describe_devices,
    endless_batches,
    make_agreement,
    pack,
    place_in_cluster,
    resume,
    set_threads,
    tf,
)
from common.termination import Termination

EXAMPLE = """export TF_CONFIG='{"cluster": {"worker": ["localhost:2222", "localhost:2223"]},
                   "task": {"type": "worker", "index": 0}}'    # index 1 in another terminal
python penguins_tensorflow.py --epochs 20 --checkpoint-dir /tmp/penguins
python penguins_tensorflow.py --strategy mirrored        # all GPUs of one machine, without TF_CONFIG"""

STRATEGIES = {
    "multiworker": "MultiWorkerMirroredStrategy",
    "mirrored": "MirroredStrategy",
    "central": "CentralStorageStrategy",
    "onedevice": "OneDeviceStrategy",
    "tpu": "TPUStrategy",
    "ps": "ParameterServerStrategy",
}


def main() -> None:
    parser = make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.01, batch_of="each replica")
    add = parser.add_argument
    add("--strategy", choices=STRATEGIES, default="multiworker", help="default: %(default)s")
    add("--replicas", type=positive_int, default=2, help="of mirrored and central without GPUs (default %(default)s)")
    add("--devices", nargs="+", metavar="DEVICE", help="such as GPU:0 GPU:1, of mirrored, central and onedevice")
    options = parse_options(parser)
    if options.strategy == "ps":  # asynchronous, with another loop: that program's own
        penguins_tensorflow_ps.run(parser, options)
        return
    set_threads(options.threads)
    rank, size = place_in_cluster()
    strategy = make_strategy(options.strategy, options.replicas, options.devices)
    replicas = strategy.num_replicas_in_sync
    devices = f"{describe_devices()}, {STRATEGIES[options.strategy]}, {replicas} replica(s)"
    journal = Journal(options, rank, size, SUFFIX, devices)
    termination = Termination(journal.save_alone)

    penguins = load_penguins()
    tf.keras.utils.set_random_seed(options.seed)
    with strategy.scope():
        net = penguin_net()
        optimizer = tf.keras.optimizers.Adam(options.lr)
        optimizer.build(net.trainable_variables)
    variables = [*net.variables, *optimizer.variables]
    progress, _, _ = resume(journal, strategy, variables)

    train_step = make_train_step(strategy, net, optimizer, options.batch_size)
    evaluate = make_evaluation(strategy, net)
    any_rank_terminated = make_agreement(strategy, termination)
    rows, steps = endless_batches(
        strategy, (penguins.train_x, penguins.train_y), options.batch_size, options.seed, progress.epoch
    )
    batch = options.batch_size * strategy.num_replicas_in_sync  # of all ranks
    while progress.epoch < options.epochs:
        started = time.monotonic()
        loss = tf.zeros(())  # the sum over all ranks
        journal.begin_epoch(progress, steps)
        for _ in range(steps):
            if any_rank_terminated():
                termination.agreed()
                journal.stop(progress, lambda: pack(variables, progress))
                any_rank_terminated()  # no rank ends before rank 0 has saved
                termination.exit()
            journal.begin_step(progress)
            sum_of_step = train_step(next(rows))
            loss += sum_of_step
            progress.step += 1
            journal.end_step(progress, batch // size, sum_of_step / batch)
            journal.save_on_request(progress, lambda: pack(variables, progress))
        samples = steps * batch
        validation_loss, accuracy = evaluate(penguins.validation_x, penguins.validation_y)
        progress.epoch += 1
        progress.losses.append(float(loss) / samples)
        progress.validation_losses.append(validation_loss)
        journal.end_epoch(
            progress,
            accuracy=accuracy,
            seconds=time.monotonic() - started,
            samples=samples,
            checkpoint=lambda: pack(variables, progress),
        )
        termination.pause(options.pause)

    _, accuracy = evaluate(penguins.test_x, penguins.test_y)
    journal.finish(progress, accuracy, f"Palmer penguins, {STRATEGIES[options.strategy]}")
    export_and_predict(journal, net, penguins)
    any_rank_terminated()  # no task ends before rank 0: TensorFlow would call it crashed


def make_train_step(
    strategy: tf.distribute.Strategy, net: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer, batch_size: int
) -> Callable[[object], tf.Tensor]:
    """A function that makes a step with one batch on all ranks, and returns the summed loss of all ranks."""
    samples = batch_size * strategy.num_replicas_in_sync

    def step_of_replica(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = net(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.reduce_sum(losses) / samples  # the optimizer sums the gradients of all ranks
        gradients = mark_gradients_ready(tape.gradient(loss, net.trainable_variables))
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        return tf.reduce_sum(losses)

    @tf.function
    def train_step(batch: object) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step_of_replica, args=batch), axis=None)

    return train_step


def make_evaluation(
    strategy: tf.distribute.Strategy, net: tf.keras.Model
) -> Callable[[np.ndarray, np.ndarray], tuple[float, float]]:
    """A function that returns mean loss and accuracy on held-out rows; each replica evaluates a share."""

    @tf.function(reduce_retracing=True)
    def totals(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        def of_replica() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            share = slice(context.replica_id_in_sync_group, None, context.num_replicas_in_sync)
            logits, answers = net(x[share], training=False), y[share]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=answers, logits=logits)
            correct = tf.cast(tf.equal(tf.argmax(logits, axis=1), answers), tf.float32)
            return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(correct)])

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(of_replica), axis=None)

    def evaluate(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        loss, correct = (totals(tf.constant(x), tf.constant(y)) / len(y)).numpy().tolist()
        return loss, correct

    return evaluate


if __name__ == "__main__":
    main()
