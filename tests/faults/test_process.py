"""The operator as a separate process, killed by SIGKILL after its Nth write and restarted, in real time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from allranks.core.facts.naming import ATTEMPT_LABEL
from allranks.kube.auth import Connection
from support.api import ApiError
from support.controlplane import ControlPlane
from support.fault_proxy import ObjectKey, Proxy, Threads
from support.kubelet import Hand, Kubelet
from support.simulator.kubelets import Program

JOB = {
    "apiVersion": "allranks.dev/v1alpha1",
    "kind": "DistributedTraining",
    "metadata": {"name": "demo"},
    "spec": {
        "framework": "pytorch",
        "image": "example.org/train:1",
        "command": ["python", "train.py"],
        # A pod that the restarted operator creates ends late: nothing is cleaned up until all are done.
        "success": "All",
        "roles": {"master": {"replicas": 1}, "worker": {"replicas": 2}},
    },
}
WAITS_SECONDS = 600.0


def program(pod: dict[str, Any]) -> Program:
    """The first attempt runs until the test fails a worker; the second one succeeds."""
    first = pod["metadata"]["labels"][ATTEMPT_LABEL] == "0"
    return Program(seconds=None if first else 0.3, stop_seconds=0.1)


@dataclass(frozen=True)
class Ending:
    """The outcome without times, because the clock is real."""

    status: dict[str, Any]
    pods: list[str]
    creates: Counter[ObjectKey]
    deletes: Counter[ObjectKey]


class Life:
    """The operator's process, restarted after each kill."""

    def __init__(self, proxy: Proxy, namespace: str, folder: Path) -> None:
        self._proxy, self._namespace, self._folder = proxy, namespace, folder
        self.deaths = 0
        self._process = self._begin()

    def check(self) -> None:
        """Restarts a killed process. Raises AssertionError when it ended by itself."""
        if self._proxy.dead.is_set():
            assert self._process.wait(300) == -9
            self.deaths += 1
            self._proxy.revive()
            self._process = self._begin()
        assert self._process.poll() is None, (self._folder / "operator.log").read_text()[-4000:]

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(300)

    def _begin(self) -> subprocess.Popen[bytes]:
        kubeconfig = self._folder / "kubeconfig"
        options = [f"--kubeconfig={kubeconfig}", f"--namespaces={self._namespace}", "--address=127.0.0.1", "--port=0"]
        with (self._folder / "operator.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "allranks", "operator", "--log-format=text", *options],
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def play(control_plane: ControlPlane, threads: Threads, folder: Path, kill_after: int | None) -> Ending:
    """A job that is restarted once and then succeeds."""
    api, namespace = control_plane.api, f"faults-{secrets.token_hex(4)}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    with contextlib.suppress(ApiError):
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, namespace)
    proxy = Proxy(threads, control_plane.url, str(control_plane.ca_file), control_plane.admin_token)
    config = json.loads(control_plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": proxy.url}
    folder.mkdir()
    (folder / "kubeconfig").write_text(json.dumps(config))
    with (
        contextlib.closing(proxy),
        _kubelet(control_plane, namespace),
        contextlib.closing(Life(proxy, namespace, folder)) as life,
    ):
        if kill_after:
            proxy.kill_after(kill_after, "together", life.kill)
        api.create(JOB, namespace)

        def job() -> dict[str, Any]:
            life.check()
            return api.get("DistributedTraining", namespace, "demo").get("status", {})

        _until(lambda: job().get("phase") == "Running" and job().get("launched"))
        hand = Hand(api, namespace, lambda: datetime.now(UTC), lambda _: datetime.now(UTC))
        hand.end("demo-worker-1-0", 137, others=137)
        _until(lambda: job()["phase"] == "Succeeded" and job()["roles"]["worker"]["succeeded"] == 2)
        _until(lambda: all("-1" in p["metadata"]["name"][-2:] for p in api.list("Pod", namespace)))
        assert life.deaths == bool(kill_after)
        status = job()
        conditions = {(c["type"], c["status"], c["reason"]) for c in status["conditions"]}
        kept = ("phase", "attempt", "restarts", "roles", "ready", "launched", "replicaRestarts")
        return Ending(
            {**{name: status.get(name) for name in kept}, "conditions": conditions},
            sorted(f"{p['metadata']['name']} {p['status']['phase']}" for p in api.list("Pod", namespace)),
            proxy.record.creates,
            proxy.record.deletes,
        )


@contextlib.contextmanager
def _kubelet(control_plane: ControlPlane, namespace: str) -> Iterator[None]:
    """Runs all pods, in a thread."""
    connection = Connection(control_plane.url, str(control_plane.ca_file), control_plane.admin_token)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    work = Kubelet(connection, program, namespace=namespace).run(stop)

    def live() -> None:
        loop.run_until_complete(work)
        loop.run_until_complete(asyncio.sleep(0.25))  # connections end in the next iterations of the loop

    thread = threading.Thread(target=live, name="kubelet", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(600)
        loop.close()


def _until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAITS_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def reference(control_plane: ControlPlane, proxies: Threads, tmp_path_factory: pytest.TempPathFactory) -> Ending:
    if control_plane.has_nodes:
        pytest.skip("this cluster's kubelets would run the pods that the tests play")
    return play(control_plane, proxies, tmp_path_factory.mktemp("reference") / "operator", None)


@pytest.mark.parametrize("writes", [6, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 3, 9, 12))])
def test_sigkill_after_the_nth_write_does_not_change_the_outcome(
    writes: int, reference: Ending, control_plane: ControlPlane, proxies: Threads, tmp_path: Path
) -> None:
    assert play(control_plane, proxies, tmp_path / "operator", writes) == reference
