"""Makes `jax.distributed.initialize()` find the variables of allranks. `sitecustomize.py` calls `install`.

A process that fails also leaves its group at once: at exit, JAX waits up to 300 s for the other processes to end, which
hang in a collective with this one. `jax` itself is not imported here: most processes of a program, such as data
loaders, do not need it.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import Any

import allranks_import_hooks as hooks  # type: ignore[import-not-found]  # in the same directory

MODULE = "jax._src.clusters"


def install() -> None:
    """Add the class when JAX imports its own."""
    atexit.register(_end_if_failed)  # the first one that is registered runs last
    hooks.after_import(MODULE, _add_cluster_if_possible)


def add_cluster(clusters: Any) -> None:
    """Register the class, ahead of those that look at Kubernetes or MPI."""

    class AllranksCluster(clusters.ClusterEnv):  # type: ignore[misc]
        name = "allranks"

        @classmethod
        def is_env_present(cls) -> bool:
            # `initialize` asks this. Functions that JAX registered when it was imported run later.
            atexit.register(_leave_if_failed)
            return {"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"} <= os.environ.keys()

        @classmethod
        def get_coordinator_address(cls, timeout_secs: int | None, override_coordinator_port: str | None) -> str:
            return os.environ["JAX_COORDINATOR_ADDRESS"]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ["JAX_NUM_PROCESSES"])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ["JAX_PROCESS_ID"])

    types = clusters.ClusterEnv._cluster_types
    types.insert(0, types.pop())


def _add_cluster_if_possible(clusters: Any) -> None:
    try:
        add_cluster(clusters)
    except (AttributeError, IndexError) as error:  # an internal interface: another version of JAX may differ
        hooks.write_line(f"jax.distributed.initialize() needs arguments with this JAX: {error}")


def _failed() -> bool:
    return hasattr(sys, "last_value")  # an exception ends this process


def _leave_if_failed() -> None:
    if _failed():
        sys.modules["jax._src.distributed"].global_state.shutdown = lambda: None


def _end_if_failed() -> None:
    """End the process before Python deletes the client of the coordinator, whose destructor waits as well."""
    if _failed() and "jax._src.distributed" in sys.modules:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # none, or closed
                stream.flush()
        os._exit(1)
