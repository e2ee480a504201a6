"""Makes `jax.distributed.initialize()` find the variables of allranks. `sitecustomize.py` calls `install`.

A process that fails also leaves its group at once: at exit, JAX waits up to 300 s for the other processes to end, which
hang in a collective with this one. `jax` itself is not imported here: most processes of a program, such as those of
data loaders, do not need it.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

MODULE = "jax._src.clusters"


def install() -> None:
    """Adds the class when JAX imports its own."""
    atexit.register(_end_if_failed)  # the first one that is registered runs last
    sys.meta_path.insert(0, _Finder())


def add_cluster(clusters: Any) -> None:
    """Registers the class, ahead of those that look at Kubernetes or MPI."""

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


def _failed() -> bool:
    return hasattr(sys, "last_value")  # an exception ends this process


def _leave_if_failed() -> None:
    if _failed():
        sys.modules["jax._src.distributed"].global_state.shutdown = lambda: None


def _end_if_failed() -> None:
    """Ends the process before Python deletes the client of the coordinator, whose destructor waits as well."""
    if _failed() and "jax._src.distributed" in sys.modules:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # none, or closed
                stream.flush()
        os._exit(1)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        try:
            add_cluster(module)
        except (AttributeError, IndexError) as error:  # an internal interface: another version of JAX may differ
            print(f"allranks: jax.distributed.initialize() needs arguments with this JAX: {error}", file=sys.stderr)
