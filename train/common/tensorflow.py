"""TensorFlow, quiet and modest; its place in the cluster; checkpoints of a TensorFlow training as bytes.

A checkpoint is one file, written by rank 0 and sent to the other ranks. `tf.train.Checkpoint` is several files, which
cannot be replaced together in one step, and in a multi-worker strategy every rank has to see the same directory.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# Both are read when TensorFlow is imported, so programs import `tf` from here.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no lines about CPU instructions and missing CUDA libraries
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # a GPU may be shared: do not take all its memory at once

import numpy as np
import tensorflow as tf

from common.journal import Journal, Progress
from common.report import waiting
from common.termination import Termination

SUFFIX = ".npz"
Arrays = Sequence[np.ndarray]


def set_threads(threads: int) -> None:
    """Cores for the mathematics of this process. Collectives wait in the other pool, which stays as large as it is."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)


def place_in_cluster() -> tuple[int, int]:
    """Rank and size by TF_CONFIG: the chief is rank 0 where there is one, else the first worker. (0, 1) without it."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster, task = config.get("cluster", {}), config.get("task", {})
    chiefs, workers = len(cluster.get("chief", [])), len(cluster.get("worker", []))
    index = int(task.get("index", 0))
    return (index if task.get("type") == "chief" else chiefs + index), max(1, chiefs + workers)


def describe_devices() -> str:
    """What this process computes on, for people."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    return f"{gpus} GPU(s)" if gpus else "cpu"


def pack(
    variables: Sequence[tf.Variable], progress: Progress, notes: dict[str, Any] | None = None, arrays: Arrays = ()
) -> bytes:
    """Everything that a training needs to go on: `variables` are those of the model and of the optimizer, `notes` are
    what else a program remembers, in JSON's types, and `arrays` the arrays of that."""
    named = {f"variable-{number:04d}": np.asarray(variable) for number, variable in enumerate(variables)}
    named |= {f"array-{number:04d}": array for number, array in enumerate(arrays)}
    header = json.dumps({"progress": progress.as_dict(), "notes": notes or {}})
    buffer = io.BytesIO()
    np.savez(buffer, header=np.frombuffer(header.encode(), np.uint8), **named)
    return buffer.getvalue()


def unpack(content: bytes, variables: Sequence[tf.Variable]) -> tuple[Progress, dict[str, Any], list[np.ndarray]]:
    """Fill the variables; progress, notes and arrays as `pack` was given them."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        header = json.loads(archive["header"].tobytes())
        arrays = [archive[name] for name in sorted(archive.files) if name.startswith("array-")]
        for number, variable in enumerate(variables):
            variable.assign(archive[f"variable-{number:04d}"])
    return Progress(**header["progress"]), header["notes"], arrays


def resume(
    journal: Journal, strategy: tf.distribute.Strategy, variables: Sequence[tf.Variable]
) -> tuple[Progress, dict[str, Any], list[np.ndarray]]:
    """Rank 0 reads its newest checkpoint and sends it to all: the others may have another disk. Returns what `unpack`
    does; at the first start there is no progress, and there are no notes and arrays."""
    content = broadcast_bytes(strategy, journal.newest_checkpoint())
    progress, notes, arrays = unpack(content, variables) if content else (Progress(), {}, [])
    journal.begin(progress)
    return progress, notes, arrays


def broadcast_bytes(strategy: tf.distribute.Strategy, content: bytes | None) -> bytes | None:
    """Rank 0's bytes, on all ranks."""
    broadcast = make_broadcast(strategy)
    own = np.frombuffer(content or b"", np.uint8)
    digits = np.frombuffer(len(own).to_bytes(8, "little"), np.uint8)  # of the length, as exact as the bytes
    size = int.from_bytes(broadcast(digits).astype(np.uint8), "little")
    if not size:
        return None
    return broadcast(own if content else np.zeros(size)).astype(np.uint8).tobytes()


def make_broadcast(strategy: tf.distribute.Strategy) -> Callable[[np.ndarray], np.ndarray]:
    """A function of a vector that returns the first replica's on all ranks, as float32. A strategy can only sum: the
    other replicas add zeros, which changes no bit."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def broadcast(values: tf.Tensor) -> tf.Tensor:
        def of_replica() -> tf.Tensor:
            first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
            return values if first else tf.zeros_like(values)

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(of_replica), axis=None)

    return lambda values: broadcast(tf.constant(values, tf.float32)).numpy()


def endless_batches(
    strategy: tf.distribute.Strategy,
    data: tuple[np.ndarray, np.ndarray],
    batch_size: int,
    seed: int,
    first_epoch: int,
) -> tuple[Iterator[Any], int]:
    """An endless iterator of this task's batches, and the number of steps of an epoch."""
    replicas = strategy.num_replicas_in_sync
    steps = max(1, len(data[1]) // (batch_size * replicas))  # a remainder stays out, another one in every epoch

    def batches_of_task(context: tf.distribute.InputContext) -> tf.data.Dataset:
        task, tasks = context.input_pipeline_id, context.num_input_pipelines
        return endless_share(data, task, tasks, batch_size, steps * replicas // tasks, seed, first_epoch)

    return iter(strategy.distribute_datasets_from_function(batches_of_task)), steps


def endless_share(
    data: tuple[np.ndarray, np.ndarray],
    rank: int,
    size: int,
    batch_size: int,
    batches_per_epoch: int,
    seed: int,
    first_epoch: int,
) -> tf.data.Dataset:
    """One rank's batches, epoch after epoch. Each epoch has an order of its own that depends on the seed and on nothing
    else: all ranks know it, and a resumed training sees what it would have seen."""
    x, y = map(tf.constant, data)  # outside of the function, whose graph would hold a copy

    def batches_of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        order = tf.random.experimental.stateless_shuffle(tf.range(len(y)), seed=[seed, epoch])
        share = order[rank::size]
        samples = tf.gather(x, share), tf.gather(y, share)
        return tf.data.Dataset.from_tensor_slices(samples).repeat().batch(batch_size).take(batches_per_epoch)

    batches = tf.data.Dataset.counter(start=first_epoch).flat_map(batches_of_epoch)
    # Else a strategy has all ranks agree before each batch that all of them have one.
    endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    return batches.apply(endless).prefetch(2)


def make_agreement(strategy: tf.distribute.Strategy, termination: Termination) -> Callable[[], bool]:
    """A function that tells whether a rank got SIGTERM, the same on all ranks."""

    @tf.function
    def count(flag: tf.Tensor) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: flag), axis=None)

    def any_rank_terminated() -> bool:
        with waiting():  # for the slowest rank
            return bool(count(tf.constant(float(termination.requested))) > 0)

    return any_rank_terminated
