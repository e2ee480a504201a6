"""TensorFlow, quiet and modest; its place in the cluster; checkpoints of a TensorFlow training as bytes.

A checkpoint is one file, written by rank 0 and sent to the other ranks. `tf.train.Checkpoint` is several files, which
cannot be replaced together in one step, and in a multi-worker strategy every rank has to see the same directory.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from typing import Any

# Both are read when TensorFlow is imported, so programs import `tf` from here.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no lines about CPU instructions and missing CUDA libraries
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # a GPU may be shared: do not take all its memory at once

import numpy as np
import tensorflow as tf

from common.journal import Progress

__all__ = ["SUFFIX", "broadcast_bytes", "describe_devices", "pack", "place_in_cluster", "set_threads", "tf", "unpack"]

SUFFIX = ".npz"


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


def pack(variables: Sequence[tf.Variable], progress: Progress, **more: np.ndarray) -> bytes:
    """Everything that a training needs to go on: `variables` are those of the model and of the optimizer."""
    arrays = {f"variable-{number:04d}": np.asarray(variable) for number, variable in enumerate(variables)}
    arrays["progress"] = np.frombuffer(json.dumps(progress.as_dict()).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays, **more)
    return buffer.getvalue()


def unpack(content: bytes, variables: Sequence[tf.Variable]) -> tuple[Progress, dict[str, np.ndarray]]:
    """Fill the variables; the progress, and what `pack` was given as `more`."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = dict(archive)
    progress = Progress(**json.loads(arrays.pop("progress").tobytes()))
    for number, variable in enumerate(variables):
        variable.assign(arrays.pop(f"variable-{number:04d}"))
    return progress, arrays


def broadcast_bytes(strategy: tf.distribute.Strategy, content: bytes | None) -> bytes | None:
    """Rank 0's bytes, on all ranks. A strategy has no broadcast, so they are summed with the zeros of the others."""
    size = int(sum_with_zeros(strategy, np.array([len(content or b"")], np.int32))[0])
    if not size:
        return None
    words = np.zeros(-(-size // 4), np.int32)
    if content:
        words.view(np.uint8)[:size] = np.frombuffer(content, np.uint8)
    return sum_with_zeros(strategy, words).tobytes()[:size]


def sum_with_zeros(strategy: tf.distribute.Strategy, values: np.ndarray) -> np.ndarray:
    """The values of the first replica. Whole numbers, so that the sum is exact."""

    @tf.function
    def of_the_first(values: tf.Tensor) -> Any:
        def of_one() -> tf.Tensor:
            first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
            return values if first else tf.zeros_like(values)

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(of_one), axis=None)

    return of_the_first(tf.constant(values)).numpy()
