"""PenguinNet on the Palmer penguins as TensorFlow's tutorials write it: `compile` and `fit` of Keras in the scope of
MultiWorkerMirroredStrategy. Needs legacy Keras (TF_USE_LEGACY_KERAS=1), which an allranks job of several tasks sets."""

from __future__ import annotations

import time
from typing import Any

from common.journal import say
from common.models_tensorflow import penguin_net
from common.options import make_parser, parse_options
from common.penguins import load_penguins
from common.tensorflow import describe_devices, place_in_cluster, set_threads, tf
from common.termination import Termination

EXAMPLE = """export TF_USE_LEGACY_KERAS=1
export TF_CONFIG='{"cluster": {"worker": ["localhost:2222", "localhost:2223"]},
                   "task": {"type": "worker", "index": 0}}'    # index 1 in another terminal
python penguins_tensorflow_fit.py --epochs 20 --checkpoint-dir /tmp/penguins"""


def main() -> None:
    options = parse_options(make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.01, batch_of="each replica"))
    set_threads(options.threads)
    rank, size = place_in_cluster()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # connects to the other tasks
    say(f"rank {rank} of {size}: started on {describe_devices()}, {strategy.num_replicas_in_sync} replica(s)")
    Termination(lambda: say(f"rank {rank} of {size}: SIGTERM: stopped"), agree_within=0)

    penguins = load_penguins()
    tf.keras.utils.set_random_seed(options.seed)
    with strategy.scope():
        net = penguin_net()
        net.compile(
            tf.keras.optimizers.Adam(options.lr),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    batch = options.batch_size * strategy.num_replicas_in_sync  # of all replicas
    rows = len(penguins.train_y)
    train = dataset(penguins.train_x, penguins.train_y).shuffle(rows, seed=options.seed).repeat().batch(batch)
    validation = dataset(penguins.validation_x, penguins.validation_y).batch(batch)
    callbacks: list[tf.keras.callbacks.Callback] = [Watch(rank, options.pause)]
    if options.checkpoint_dir:  # all tasks need this directory: the first one saves, all of them restore
        callbacks.append(tf.keras.callbacks.BackupAndRestore(str(options.checkpoint_dir / "backup")))
    net.fit(
        train,
        validation_data=validation,
        epochs=options.epochs,
        steps_per_epoch=rows // batch,
        callbacks=callbacks,
        verbose=2 if rank == 0 else 0,
    )
    loss, accuracy = net.evaluate(dataset(penguins.test_x, penguins.test_y).batch(batch), verbose=0)
    say(f"rank {rank} of {size}: test accuracy {accuracy:.4f} (loss {loss:.4f})")


class Watch(tf.keras.callbacks.Callback):
    """Says where a training continues, and pauses after each epoch."""

    def __init__(self, rank: int, pause: float) -> None:
        super().__init__()
        self.first, self.pause = rank == 0, pause

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.first and epoch:
            say(f"resumed from epoch {epoch}")
        self.first = False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        time.sleep(self.pause)


def dataset(*arrays: object) -> tf.data.Dataset:
    """The rows, of which each task takes a share."""
    rows = tf.data.Dataset.from_tensor_slices(arrays)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return rows.with_options(options)


if __name__ == "__main__":
    main()
