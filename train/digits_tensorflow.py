"""A small VGG on images with TensorFlow's MultiWorkerMirroredStrategy: the handwritten digits of scikit-learn, or
CIFAR-10. All ranks stop early after the same epoch and restore the best weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common.early_stopping import EarlyStopping
from common.images import load_images
from common.journal import Journal
from common.models_tensorflow import digit_net
from common.options import make_parser, parse_options, positive_int
from common.report import mark_gradients_ready
from common.schedules import cosine
from common.tensorflow import (
    SUFFIX,
    describe_devices,
    endless_batches,
    make_agreement,
    make_broadcast,
    pack,
    place_in_cluster,
    resume,
    set_threads,
    tf,
)
from common.termination import Termination

EXAMPLE = """export TF_CONFIG='{"cluster": {"worker": ["localhost:2222", "localhost:2223"]},
                   "task": {"type": "worker", "index": 0}}'    # index 1 in another terminal
python digits_tensorflow.py --checkpoint-dir /tmp/digits
python digits_tensorflow.py --data ~/cifar-10-batches-bin --batch-size 128"""


def main() -> None:
    parser = make_parser(__doc__, EXAMPLE, epochs=20, batch_size=32, lr=0.003, batch_of="each replica")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="CIFAR-10, unpacked (default: the digits)")
    parser.add_argument(
        "--patience", type=positive_int, default=5, help="epochs without progress (default %(default)s)"
    )
    options = parse_options(parser)
    set_threads(options.threads)
    rank, size = place_in_cluster()
    # Connects to the other tasks. NCCL between GPUs, gRPC rings between CPUs.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    journal = Journal(options, rank, size, SUFFIX, describe_devices())
    termination = Termination(journal.save_alone)

    images = load_images(options.data)
    tf.keras.utils.set_random_seed(options.seed)
    with strategy.scope():
        net = digit_net(images.train_x.shape[1], images.train_x.shape[3], images.classes, images.peak)
        optimizer = tf.keras.optimizers.Adam(options.lr)
        optimizer.build(net.trainable_variables)
    variables = [*net.variables, *optimizer.variables]
    progress, notes, best = resume(journal, strategy, variables)
    early = EarlyStopping(options.patience, **notes.get("early", {}))

    def checkpoint() -> bytes:
        return pack(variables, progress, {"early": early.as_dict()}, best)

    train_step = make_train_step(strategy, net, optimizer, options.batch_size)
    evaluate = make_evaluation(strategy, net, options.batch_size)
    any_rank_terminated = make_agreement(strategy, termination)
    batches, steps = endless_batches(
        strategy, (images.train_x, images.train_y), options.batch_size, options.seed, progress.epoch
    )
    batch = options.batch_size * strategy.num_replicas_in_sync  # of all ranks
    while progress.epoch < options.epochs and not early.exhausted:
        started = time.monotonic()
        optimizer.learning_rate.assign(cosine(options.lr, progress.epoch, options.epochs))
        loss = tf.zeros(())  # the sum over all ranks
        journal.begin_epoch(progress, steps)
        for _ in range(steps):
            if any_rank_terminated():
                termination.agreed()
                journal.stop(progress, checkpoint)
                any_rank_terminated()  # no rank ends before rank 0 has saved
                termination.exit()
            journal.begin_step(progress)
            sum_of_step = train_step(next(batches))
            loss += sum_of_step
            progress.step += 1
            journal.end_step(progress, batch // size, sum_of_step / batch)
            journal.save_on_request(progress, checkpoint)
        samples = steps * batch
        mean_loss = float(loss) / samples
        seconds = time.monotonic() - started

        validation_loss, accuracy = evaluate(images.validation_x, images.validation_y)
        progress.epoch += 1
        progress.losses.append(mean_loss)
        progress.validation_losses.append(validation_loss)
        if early.update(validation_loss, progress.epoch):
            best = [variable.numpy() for variable in net.variables]
        journal.end_epoch(progress, accuracy, seconds, samples, checkpoint)
        termination.pause(options.pause)

    for variable, value in zip(net.variables, best, strict=True):
        variable.assign(value)
    journal.best(early)
    _, accuracy = evaluate(images.test_x, images.test_y)
    title = "CIFAR-10" if options.data else "Digits"
    journal.finish(progress, accuracy, f"{title}, MultiWorkerMirroredStrategy")
    any_rank_terminated()  # no task ends before rank 0: TensorFlow would call it crashed


def make_train_step(
    strategy: tf.distribute.Strategy, net: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer, batch_size: int
) -> Callable[[Any], tf.Tensor]:
    """A function that makes a step with one batch on all ranks, and returns the summed loss of all ranks."""
    samples = batch_size * strategy.num_replicas_in_sync

    def step_of_replica(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = net(tf.cast(x, tf.float32), training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.reduce_sum(losses) / samples  # the optimizer sums the gradients of all ranks
        gradients = mark_gradients_ready(tape.gradient(loss, net.trainable_variables))
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        return tf.reduce_sum(losses)

    @tf.function
    def train_step(batch: Any) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step_of_replica, args=batch), axis=None)

    return train_step


def make_evaluation(
    strategy: tf.distribute.Strategy, net: tf.keras.Model, batch_size: int
) -> Callable[[np.ndarray, np.ndarray], tuple[float, float]]:
    """A function that returns mean loss and accuracy on all images, bit-identical on all ranks, so that all ranks
    decide the same. Each replica evaluates a share of the images, each image once."""

    @tf.function(reduce_retracing=True)
    def totals(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        def of_replica() -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            first, step = replica.replica_id_in_sync_group, replica.num_replicas_in_sync
            result = tf.zeros(2)
            for batch, labels in tf.data.Dataset.from_tensor_slices((x[first::step], y[first::step])).batch(batch_size):
                logits = net(tf.cast(batch, tf.float32), training=False)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
                correct = tf.cast(tf.equal(tf.argmax(logits, axis=1), labels), tf.float32)
                result += tf.stack([tf.reduce_sum(losses), tf.reduce_sum(correct)])
            return result

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(of_replica), axis=None)

    broadcast = make_broadcast(strategy)

    def evaluate(pixels: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        sums = totals(tf.constant(pixels), tf.constant(labels)).numpy()
        # The order of the sum, and so its last bit, may differ between ranks.
        loss, correct = broadcast(sums).tolist()
        return loss / len(labels), correct / len(labels)

    return evaluate


if __name__ == "__main__":
    main()
