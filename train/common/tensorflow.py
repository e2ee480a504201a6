"""TensorFlow with less logging and on-demand GPU memory, TF_CONFIG, and checkpoints as bytes.

A checkpoint is one file that rank 0 writes and broadcasts. `tf.train.Checkpoint` has several files, which cannot be
replaced atomically, and in a multi-worker strategy every rank needs the same directory.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# TensorFlow reads both at its import, so programs import `tf` from here.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no lines about CPU instructions and missing CUDA libraries
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # do not allocate all memory of a GPU that may be shared

import numpy as np
import tensorflow as tf

from common.journal import Journal, Progress
from common.report import waiting
from common.termination import Termination

SUFFIX = ".npz"
Arrays = Sequence[np.ndarray]


def set_threads(threads: int) -> None:
    """Set the number of intra-op threads. Collectives wait in the inter-op pool, which keeps its size."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)


def place_in_cluster() -> tuple[int, int]:
    """Rank and size from TF_CONFIG: rank 0 is the chief, or the first worker without one. (0, 1) without TF_CONFIG."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster, task = config.get("cluster", {}), config.get("task", {})
    chiefs, workers = len(cluster.get("chief", [])), len(cluster.get("worker", []))
    index = int(task.get("index", 0))
    return (index if task.get("type") == "chief" else chiefs + index), max(1, chiefs + workers)


def describe_devices() -> str:
    """The devices of this process, for messages."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    return f"{gpus} GPU(s)" if gpus else "cpu"


def pack(
    variables: Sequence[tf.Variable], progress: Progress, notes: dict[str, Any] | None = None, arrays: Arrays = ()
) -> bytes:
    """The checkpoint: `variables` of the model and the optimizer, and the program's own state as `notes` (JSON types)
    and `arrays`."""
    named = {f"variable-{number:04d}": np.asarray(variable) for number, variable in enumerate(variables)}
    named |= {f"array-{number:04d}": array for number, array in enumerate(arrays)}
    header = json.dumps({"progress": progress.as_dict(), "notes": notes or {}})
    buffer = io.BytesIO()
    np.savez(buffer, header=np.frombuffer(header.encode(), np.uint8), **named)
    return buffer.getvalue()


def unpack(content: bytes, variables: Sequence[tf.Variable]) -> tuple[Progress, dict[str, Any], list[np.ndarray]]:
    """Restore the variables; returns progress, notes and arrays."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        header = json.loads(archive["header"].tobytes())
        arrays = [archive[name] for name in sorted(archive.files) if name.startswith("array-")]
        for number, variable in enumerate(variables):
            variable.assign(archive[f"variable-{number:04d}"])
    return Progress(**header["progress"]), header["notes"], arrays


def resume(
    journal: Journal, strategy: tf.distribute.Strategy, variables: Sequence[tf.Variable]
) -> tuple[Progress, dict[str, Any], list[np.ndarray]]:
    """Rank 0 reads its newest checkpoint and broadcasts it: the others may have another disk. Returns what `unpack`
    returns; all empty at the first start."""
    content = broadcast_bytes(strategy, journal.newest_checkpoint())
    progress, notes, arrays = unpack(content, variables) if content else (Progress(), {}, [])
    journal.begin(progress)
    return progress, notes, arrays


def broadcast_bytes(strategy: tf.distribute.Strategy, content: bytes | None) -> bytes | None:
    """Rank 0's bytes, on all ranks."""
    broadcast = make_broadcast(strategy)
    own = np.frombuffer(content or b"", np.uint8)
    digits = np.frombuffer(len(own).to_bytes(8, "little"), np.uint8)  # of the length: exact as float32
    size = int.from_bytes(broadcast(digits).astype(np.uint8), "little")
    if not size:
        return None
    return broadcast(own if content else np.zeros(size)).astype(np.uint8).tobytes()


def make_broadcast(strategy: tf.distribute.Strategy) -> Callable[[np.ndarray], np.ndarray]:
    """A function that returns the vector of the first replica on all ranks, as float32. A strategy can only sum, so the
    other replicas add zeros, which is exact."""

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
    steps = max(1, len(data[1]) // (batch_size * replicas))  # drops a remainder, a different one in every epoch

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
    """The batches of one rank, epoch after epoch. The order of each epoch depends on the seed only: it is the same on
    all ranks, and after a resume."""
    x, y = map(tf.constant, data)  # outside the function: its graph would contain a copy

    def batches_of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        order = tf.random.experimental.stateless_shuffle(tf.range(len(y)), seed=[seed, epoch])
        share = order[rank::size]
        samples = tf.gather(x, share), tf.gather(y, share)
        return tf.data.Dataset.from_tensor_slices(samples).repeat().batch(batch_size).take(batches_per_epoch)

    batches = tf.data.Dataset.counter(start=first_epoch).flat_map(batches_of_epoch)
    # Otherwise a strategy synchronizes all ranks before each batch to check that all have one.
    endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    return batches.apply(endless).prefetch(2)


def make_agreement(strategy: tf.distribute.Strategy, termination: Termination) -> Callable[[], bool]:
    """A function that returns whether any rank got SIGTERM, identical on all ranks."""

    @tf.function
    def count(flag: tf.Tensor) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.identity(flag)), axis=None)

    def any_rank_terminated() -> bool:
        with waiting():  # waits for the slowest rank
            return bool(count(tf.constant(float(termination.requested))) > 0)

    return any_rank_terminated
