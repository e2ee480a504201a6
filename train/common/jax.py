"""JAX processes that train together: their group, the global mesh, and checkpoints as bytes."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from common.journal import Journal, Progress
from common.report import waiting
from common.termination import Termination

SUFFIX = ".npz"


def join_group() -> tuple[int, int]:
    """Rank and number of processes. Without the variables this process trains alone."""
    jax.config.update("jax_enable_preemption_service", False)  # would replace the SIGTERM handler of `Termination`
    variables = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    if all(name in os.environ for name in variables):
        # In an allranks job the arguments can be omitted.
        address, size, rank = (os.environ[name] for name in variables)
        jax.distributed.initialize(address, int(size), int(rank))
    return jax.process_index(), jax.process_count()


def describe_devices() -> str:
    """The devices of this process, for messages."""
    devices = jax.local_devices()
    return f"{len(devices)} {devices[0].platform} device(s)"


def data_mesh() -> Mesh:
    """All devices of all processes in one row: each has all weights and a share of every batch."""
    return Mesh(np.array(jax.devices()), ("data",))


def replicated(mesh: Mesh, tree: Any) -> Any:
    """The arrays of `tree` on all devices. Every process must pass equal values."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def share_batch(mesh: Mesh, array: np.ndarray) -> jax.Array:
    """A global batch of which this process contributes `array`, split between its devices along the first axis."""
    return jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("data")), array)


def make_agreement(mesh: Mesh, termination: Termination) -> Callable[[], bool]:
    """A function that returns whether any rank got SIGTERM, identical on all ranks."""
    count = jax.jit(lambda flags: flags.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))

    def any_rank_terminated() -> bool:
        flags = np.full(len(mesh.local_devices), float(termination.requested), np.float32)
        with waiting():  # waits for the slowest rank
            return bool(count(share_batch(mesh, flags)) > 0)

    return any_rank_terminated


def pack(state: Any, progress: Progress, notes: dict[str, Any] | None = None) -> bytes:
    """The checkpoint: the arrays of `state`, any tree, and the program's own state as `notes` (JSON types)."""
    leaves = {f"leaf-{number:04d}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(state))}
    header = json.dumps({"progress": progress.as_dict(), "notes": notes or {}})
    buffer = io.BytesIO()
    np.savez(buffer, header=np.frombuffer(header.encode(), np.uint8), **leaves)
    return buffer.getvalue()


def unpack(content: bytes, state: Any) -> tuple[Any, Progress, dict[str, Any]]:
    """A tree like `state` with the saved arrays, the progress and the notes."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        header = json.loads(archive["header"].tobytes())
        leaves: Sequence[np.ndarray] = [archive[name] for name in sorted(archive.files) if name.startswith("leaf-")]
    return jax.tree.unflatten(jax.tree.structure(state), leaves), Progress(**header["progress"]), header["notes"]


def resume(journal: Journal, state: Any) -> tuple[Any, Progress, dict[str, Any]]:
    """Rank 0 reads its newest checkpoint and broadcasts it: the others may have another disk. Returns `state` itself at
    the first start."""
    content = broadcast_bytes(journal.newest_checkpoint())
    state, progress, notes = unpack(content, state) if content else (state, Progress(), {})
    journal.begin(progress)
    return state, progress, notes


def broadcast_bytes(content: bytes | None) -> bytes:
    """Rank 0's bytes, on all ranks; empty if it has none."""
    own = np.frombuffer(content or b"", np.uint8)
    if jax.process_count() == 1:
        return own.tobytes()
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(own))))
    if not size:
        return b""
    padded = own if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(padded)).astype(np.uint8).tobytes()
