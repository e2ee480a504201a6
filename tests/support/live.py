"""The operator in real time, with a fake kubelet that runs every pod."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from allranks.api.job import KIND
from allranks.kube.auth import Connection
from allranks.operator.app import Operator
from allranks.operator.settings import Settings
from allranks.operator.timing import Timing

from .api import Api, ApiError, Manifest
from .controlplane import ControlPlane
from .kubelet import Kubelet, Program
from .kubernetes_world import SETTINGS
from .operators import RunningOperator

TIMING = Timing(progress_min_interval=0.5)
"""Tests wait for progress in real time."""


def connection(control_plane: ControlPlane) -> Connection:
    return Connection(control_plane.url, str(control_plane.ca_file), control_plane.admin_token)


@contextlib.contextmanager
def operator(connection: Connection, *namespaces: str, timing: Timing = TIMING, **settings: Any) -> Iterator[Operator]:
    running = RunningOperator(Settings(namespaces=namespaces, **{**SETTINGS, **settings}), connection, timing)
    try:
        yield running.operator
    finally:
        running.kill()


@contextlib.contextmanager
def kubelet(connection: Connection, program: Program, **how: Any) -> Iterator[Kubelet]:
    """Runs `program` in all pods of all namespaces, in a thread."""
    fake = Kubelet(connection, lambda _: program, **how)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stop = asyncio.Event()
    work = asyncio.run_coroutine_threadsafe(fake.run(stop), loop)
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(stop.set)
        with contextlib.suppress(Exception):
            work.result(600)
            # Connections need a moment to close.
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.1), loop).result(600)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(600)
        loop.close()


def job(name: str = "demo", **spec: Any) -> Manifest:
    """Two PyTorch ranks, unless `spec` says otherwise."""
    common = {"framework": "pytorch", "image": "example.org/x:1", "command": ["x"]}
    roles = {"master": {"replicas": 1}, "worker": {"replicas": 1}}
    return {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {**common, "roles": roles, **spec},
    }


def eventually(condition: Callable[[], Any], seconds: float = 600, what: str = "") -> Any:
    """Returns the first true value. Fails after the timeout with the last value."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or condition}: {answer!r}"
        time.sleep(0.05)
    return answer


def phase(control_plane: ControlPlane, namespace: str, name: str = "demo") -> str:
    found = control_plane.api.find(KIND, namespace, name) or {}
    return found.get("status", {}).get("phase", "")


def wait_until_served(api: Api) -> None:
    """A CRD that is deleted before its objects were listed may stay Terminating forever (Kubernetes 1.36 and 1.37:
    "could not list instances: storage is (re)initializing")."""

    def listed(name: str, objects: str) -> bool:
        present = api.find("CustomResourceDefinition", None, name)
        if present is None or "deletionTimestamp" in present["metadata"]:
            return True  # it is terminating
        try:
            api.request("GET", objects)
        except ApiError:
            return False
        return True

    for definition in api.list("CustomResourceDefinition"):
        name, spec = definition["metadata"]["name"], definition["spec"]
        version = next(each["name"] for each in spec["versions"] if each["served"])
        objects = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
        eventually(lambda name=name, objects=objects: listed(name, objects), what=f"{name} is served")  # type: ignore[misc]
