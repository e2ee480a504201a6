"""The API server is away at the worst moments: nothing is decided twice, lost, or left behind.

ALLRANKS_OUTAGE_SECONDS is the duration of each outage. `-rP` shows how soon afterwards the work was done.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.api.job import KIND
from allranks.api.sweep import KIND as SWEEP
from allranks.operator.apply import Executor
from allranks.operator.sweep_controller import SweepController
from support import live
from support.api import Manifest
from support.controlplane import ControlPlane
from support.kubelet import Program
from support.live import eventually, job
from support.process_kubelet import process_kubelet

SECONDS = float(os.environ.get("ALLRANKS_OUTAGE_SECONDS", 6))
REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.nightly


class Outage:
    """One outage of the API server."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane, self._lock = control_plane, threading.Lock()
        self._begun = threading.Event()
        self._ended = 0.0

    def begin(self) -> None:
        """Kill the API server, unless this outage has begun."""
        with self._lock:
            if not self._begun.is_set():
                self._control_plane.stop_api_server(signal.SIGKILL)
                self._begun.set()

    def before(self, monkeypatch: pytest.MonkeyPatch, kind: type, method: str, due: Callable[..., bool]) -> None:
        """Begin right before the first call of a method that is `due`."""
        original = getattr(kind, method)

        async def call(*arguments: Any) -> Any:
            if due(*arguments[1:]):
                await asyncio.to_thread(self.begin)
            return await original(*arguments)

        monkeypatch.setattr(kind, method, call)

    def pass_by(self) -> None:
        """Wait for the beginning, and start the API server after `SECONDS`.

        It ends with the thread that starts it, so this is called in the thread of the test.
        """
        assert self._begun.wait(600), "the moment of the outage did not come"
        time.sleep(SECONDS)
        self.end()

    def end(self) -> None:
        """Start the API server if it is away."""
        if self._begun.is_set() and "kube-apiserver" not in self._control_plane.pids:
            self._control_plane.start_api_server()
            self._ended = time.monotonic()

    def done(self, work: str) -> None:
        print(f"{work} was done {time.monotonic() - self._ended:.0f} s after an outage of {SECONDS:.0f} s")


@pytest.fixture
def outage(control_plane: ControlPlane, namespace: str) -> Iterator[Outage]:
    planned = Outage(control_plane)
    yield planned
    planned.end()  # before the namespace is deleted


def _creates_the_second_attempt(_: Manifest, manifests: Any, *__: Any) -> bool:
    labels = [manifest["metadata"]["labels"] for manifest in manifests if manifest["kind"] == "Pod"]
    return any(of_pod["allranks.dev/attempt"] == "1" for of_pod in labels)


MOMENTS: dict[str, tuple[str, Callable[..., bool]]] = {
    "before the decision is written": ("status", lambda _, status: status.get("attempt") == 1),
    "between the decision and the deletion of the old pods": ("delete", lambda _, pods, *__: bool(pods)),
    "between the deletion and the creation of the pods": ("create", _creates_the_second_attempt),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_job_restarts_once_when_the_api_server_is_away(
    control_plane: ControlPlane, namespace: str, outage: Outage, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    outage.before(monkeypatch, Executor, *MOMENTS[moment])
    connection, api = live.connection(control_plane), control_plane.api
    restart = {"maxRestarts": 1, "backoffSeconds": 0, "rules": [{"exitCodes": [3], "action": "Restart"}]}
    with (
        live.operator(connection, namespace) as operator,
        live.kubelet(connection, Program(seconds=1, code=3), namespace=namespace),
    ):
        api.create(job(restart=restart), namespace)
        eventually(lambda: operator.session)
        session = operator.session
        outage.pass_by()
        eventually(lambda: live.phase(control_plane, namespace) == "Failed")
        outage.done("the restart")
        status = api.get(KIND, namespace, "demo")["status"]
        assert (status["attempt"], status["restarts"]["counted"]) == (1, 1)
        assert [past["attempt"] for past in status["history"]] == [0, 1]
        attempts = {pod["metadata"]["labels"]["allranks.dev/attempt"] for pod in api.list("Pod", namespace)}
        assert attempts <= {"1"}
        assert operator.session is session, "the session continues"


def test_a_sweep_creates_each_trial_once_when_the_api_server_is_away(
    control_plane: ControlPlane, namespace: str, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after the parameters of the trials are written, and before their jobs are created."""
    outage.before(monkeypatch, SweepController, "_create", lambda _, manifests, __: bool(manifests))
    connection, api = live.connection(control_plane), control_plane.api
    sweep = {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": SWEEP,
        "metadata": {"name": "search"},
        "spec": {
            "parameters": {"lr": {"logUniform": {"min": 0.001, "max": 1}}},
            "trials": 3,
            "parallel": 2,
            "template": {"spec": job(roles={"worker": {"replicas": 1}}, args=["--lr=$(lr)"])["spec"]},
        },
    }
    with (
        live.operator(connection, namespace),
        live.kubelet(connection, Program(seconds=0.5), namespace=namespace),
    ):
        api.create(sweep, namespace)
        outage.pass_by()

        def succeeded() -> Manifest | None:
            status: Manifest = api.get(SWEEP, namespace, "search").get("status", {})
            return status if status.get("phase") == "Succeeded" else None

        status = eventually(succeeded)
        outage.done("the sweep")
        assert [(trial["number"], trial["runs"]) for trial in status["trials"]] == [(0, 0), (1, 0), (2, 0)]
        assert len(api.list(KIND, namespace)) == 3


def test_an_upload_that_ends_while_the_api_server_is_away_is_recorded(
    control_plane: ControlPlane, namespace: str, outage: Outage, tmp_path: Path
) -> None:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY / "operator")}
    program = tmp_path / "train.py"
    program.write_text("import os, pathlib; pathlib.Path(os.environ['ALLRANKS_OUTPUT_MODEL'], 'model').write_text('m')")
    (tmp_path / "pods").mkdir()
    with (
        process_kubelet(control_plane, namespace, tmp_path / "pods", environ) as kubelet,
        live.operator(live.connection(control_plane), namespace, data_claim="allranks-data", pools=False),
    ):
        kubelet.claims["allranks-data"], kubelet.claims["results"] = tmp_path / "data", tmp_path / "results"
        spec = {"framework": "spmd", "roles": {"worker": {"replicas": 1}}, "command": [sys.executable, str(program)]}
        outputs = [{"name": "model", "path": "/out", "to": "claim://results/models"}]
        control_plane.api.create(job(**spec, outputs=outputs, restart={"maxRestarts": 0}), namespace)

        def output() -> Manifest:
            status = control_plane.api.get(KIND, namespace, "demo").get("status", {})
            return (status.get("outputs") or [{}])[0]

        eventually(lambda: output().get("state") == "Uploading")
        outage.begin()
        outage.pass_by()
        eventually(lambda: output().get("state") in ("Uploaded", "Failed"))
        outage.done("the upload")
        assert output()["state"] == "Uploaded", output()
        assert (tmp_path / "results" / "models" / "model").read_text() == "m"
        eventually(lambda: live.phase(control_plane, namespace) == "Succeeded")
