"""PenguinNet on the Palmer penguins with Horovod and Keras: `model.fit` with an optimizer that averages the gradients
of all ranks, and callbacks that coordinate the ranks."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Horovod's optimizers do not support Keras 3

import horovod.tensorflow.keras as hvd
import numpy as np
from horovod.tensorflow import broadcast_object

from common.export_tensorflow import export_and_predict
from common.horovod import require_expected_size
from common.journal import Journal, Progress
from common.models_tensorflow import penguin_net
from common.options import make_parser, parse_options
from common.penguins import Penguins, load_penguins
from common.tensorflow import SUFFIX, describe_devices, endless_share, pack, set_threads, tf, unpack
from common.termination import Termination

EXAMPLE = "horovodrun -np 2 --gloo python penguins_horovod_keras.py --epochs 20 --checkpoint-dir /tmp/penguins"


def main() -> None:
    options = parse_options(make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.005))
    hvd.init()
    require_expected_size(hvd.size())
    use_one_gpu()
    set_threads(options.threads)
    rank, size = hvd.rank(), hvd.size()
    journal = Journal(options, rank, size, SUFFIX, f"{describe_devices()} (Horovod)")
    termination = Termination(journal.save_alone)

    penguins = load_penguins()
    tf.keras.utils.set_random_seed(options.seed)
    net = penguin_net()
    # N ranks use N times as many samples in a step, so the learning rate may be N times as high.
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(options.lr * size))
    optimizer.build(net.trainable_variables)
    variables = [*net.variables, *optimizer.variables]
    progress = resume(journal, variables)
    optimizer.learning_rate = options.lr * size  # the checkpoint has that of its own number of ranks

    net.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    steps = max(1, len(penguins.train_y) // (options.batch_size * size))
    data = penguins.train_x, penguins.train_y
    net.fit(
        endless_share(data, rank, size, options.batch_size, steps, options.seed, progress.epoch),
        steps_per_epoch=steps,
        initial_epoch=progress.epoch,
        epochs=options.epochs,
        validation_data=(penguins.validation_x, penguins.validation_y),  # all rows on each rank: there are few
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # initial weights from rank 0
            hvd.callbacks.MetricAverageCallback(),  # before the callback that reports the metrics
            Coordination(options, journal, termination, progress, steps, lambda: pack(variables, progress)),
        ],
    )
    journal.finish(progress, evaluate(net, penguins), "Palmer penguins, Horovod with Keras")
    export_and_predict(journal, net, penguins)
    hvd.shutdown()


def use_one_gpu() -> None:
    """One GPU for each process on this machine."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")


def resume(journal: Journal, variables: list[tf.Variable]) -> Progress:
    """Rank 0 reads its newest checkpoint and broadcasts it: the others may have another disk."""
    content = broadcast_object(journal.newest_checkpoint(), root_rank=0)
    progress = unpack(content, variables)[0] if content else Progress()
    journal.begin(progress)
    return progress


class Coordination(tf.keras.callbacks.Callback):
    """Writes the journal, and stops all ranks in the same step after one of them got SIGTERM."""

    def __init__(
        self,
        options: argparse.Namespace,
        journal: Journal,
        termination: Termination,
        progress: Progress,
        steps: int,
        checkpoint: Callable[[], bytes],
    ) -> None:
        super().__init__()
        self.options, self.journal, self.termination = options, journal, termination
        self.progress, self.steps, self.checkpoint = progress, steps, checkpoint
        self.started = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.started = time.monotonic()
        self.journal.begin_epoch(self.progress, self.steps)

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if self.any_rank_terminated():
            self.termination.agreed()
            self.journal.stop(self.progress, self.checkpoint)
            self.any_rank_terminated()  # no rank ends before rank 0 has saved
            self.termination.exit()
        self.journal.begin_step(self.progress)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.progress.step += 1
        self.journal.end_step(self.progress, self.options.batch_size, logs["loss"])
        self.journal.save_on_request(self.progress, self.checkpoint)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.progress.epoch = epoch + 1
        self.progress.losses.append(float(logs["loss"]))
        self.progress.validation_losses.append(float(logs["val_loss"]))
        self.journal.end_epoch(
            self.progress,
            accuracy=float(logs["val_accuracy"]),
            seconds=time.monotonic() - self.started,
            samples=self.steps * self.options.batch_size * hvd.size(),
            checkpoint=self.checkpoint,
        )
        self.termination.pause(self.options.pause)

    def any_rank_terminated(self) -> bool:
        """Whether any rank got SIGTERM, identical on all ranks. A large model would check only every few steps."""
        flag = tf.constant(float(self.termination.requested))
        return bool(hvd.allreduce(flag, op=hvd.Sum, name="terminated") > 0)


def evaluate(net: tf.keras.Model, penguins: Penguins) -> float:
    """Accuracy on the test rows; each rank evaluates a share."""
    share = slice(hvd.rank(), None, hvd.size())
    answers = np.argmax(net(penguins.test_x[share], training=False), axis=1)
    correct = tf.constant(float(np.sum(answers == penguins.test_y[share])))
    return float(hvd.allreduce(correct, op=hvd.Sum, name="correct")) / len(penguins.test_y)


if __name__ == "__main__":
    main()
