"""The operator is replaced by a newer version and back, while jobs of every kind run, wait and have finished.

The previous version comes from this repository's history. Without it, as in a shallow clone, the test is skipped;
`tests/model/golden/test_statuses.py` covers statuses of earlier versions in any case. The control plane is one of its
own, because the CustomResourceDefinitions change with the version.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from allranks.api.job import API_VERSION, KIND
from allranks.frameworks import FRAMEWORKS
from support import kueue_api, live
from support.controlplane import ControlPlane, free_ports, install
from support.kubelet import Hand, Program
from support.largest import LARGEST
from support.live import eventually, job, phase

from .test_in_place import PROGRAM, Nodes, status
from .test_reports import URL, World

ROOT = Path(__file__).parents[2]
PREVIOUS = "bd1f7ba1"
"""Commit of the previous version."""
WITHOUT_IN_PLACE = "7c04e788~1"
"""Commit of the last version that begins each attempt with new pods."""
DEFINITIONS = sorted((ROOT / "crds").glob("*.yaml"))
OPTIONS = ("--data-claim=allranks-data", "--no-pools", "--queues")


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package and the CustomResourceDefinitions of the previous version."""
    return extracted(PREVIOUS, tmp_path_factory.mktemp("previous"))


def extracted(commit: str, folder: Path) -> Path:
    """A folder with the package and the CustomResourceDefinitions of a commit."""
    command = ["git", "-C", str(ROOT), "archive", commit, "operator", "crds"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history has no commit {commit}: {archive.stderr.decode().strip()}")
    folder.mkdir(exist_ok=True)
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


@contextlib.contextmanager
def operator(control_plane: ControlPlane, namespace: str, package: Path, log: Path, *options: str) -> Iterator[None]:
    """The operator of this package as a process."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "allranks", "operator", f"--kubeconfig={control_plane.kubeconfig}", *OPTIONS]
    command += [f"--namespaces={namespace}", "--address=127.0.0.1", f"--port={port}", *(options or ["--report-port=0"])]
    with log.open("ab") as out:
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(package)}, stdout=out, stderr=out)
    try:
        yield
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def control_plane(programs: Path, previous: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    cluster = ControlPlane(programs, tmp_path_factory.mktemp("versions"))
    try:
        folder = tmp_path_factory.mktemp("kueue")
        cluster.start([*sorted((previous / "crds").glob("*.yaml")), *kueue_api.definitions(folder)])
        yield cluster
    finally:
        cluster.stop()


def jobs() -> dict[str, tuple[dict[str, Any], str]]:
    """Name -> a job of each kind, and the phase in which it stays while all of its pods run."""
    manifests = {}
    for framework, elastic in itertools.product(FRAMEWORKS, (False, True)):
        shape = next((shape for shape in LARGEST if (shape.framework, shape.elastic) == (framework, elastic)), None)
        if shape:
            name = f"elastic-{framework}" if elastic else framework
            roles = {role: {"replicas": count} for role, count in shape.counts(2).items()}
            sizes = {"elastic": {"minReplicas": 1, "maxReplicas": 2}} if elastic else {}
            manifests[name] = job(name, framework=framework, roles=roles, **sizes)
    manifests |= {name: job(name) for name in ("suspended", "finished")}
    outputs = [{"name": "model", "path": "/out", "to": "claim://results/models"}]
    inputs = [{"name": "data", "from": "https://example.org/train.csv", "path": "/data"}]
    manifests |= {"uploading": job("uploading", outputs=outputs), "fetching": job("fetching", inputs=inputs)}
    manifests["queued"] = job("queued", scheduling={"queue": "team-a"})
    settled = {"queued": "Queued", "suspended": "Suspended", "finished": "Succeeded", "fetching": "Pending"}
    return {name: (manifest, settled.get(name, "Running")) for name, manifest in manifests.items()}


def sweep() -> dict[str, Any]:
    spec = {"parameters": {"lr": {"values": [1, 2, 3, 4]}}, "objective": {"metric": "loss", "goal": "Minimize"}}
    spec |= {"trials": 4, "parallel": 2, "template": {"spec": {**job()["spec"], "args": ["--lr=$(lr)"]}}}
    return {"apiVersion": API_VERSION, "kind": "TrainingSweep", "metadata": {"name": "search"}, "spec": spec}


class Cluster:
    """A namespace with jobs of every kind."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self.control_plane, self.api, self.namespace = control_plane, control_plane.api, namespace
        self.jobs = jobs()
        self.hand = Hand(self.api, namespace, lambda: datetime.now(UTC), lambda _: datetime.now(UTC))

    def create(self) -> None:
        """Return when each is in its phase."""
        queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "team-a"}}
        self.api.create({**queue, "spec": {"clusterQueue": "all"}}, self.namespace)
        for manifest, _ in self.jobs.values():
            self.api.create(manifest, self.namespace)
        self.api.create(sweep(), self.namespace)
        for name in ("suspended", "finished", "uploading"):
            self._until(name, "Running")
        self.api.patch(KIND, self.namespace, "suspended", {"spec": {"suspend": True}})
        for name in ("finished", "uploading"):
            for role in ("worker", "master"):
                self.hand.end(f"{name}-{role}-0-0", 0)
        for name, (_, settled) in self.jobs.items():
            self._until(name, settled)
        eventually(lambda: self._status("uploading")["outputs"][0]["state"] == "Uploading")
        eventually(lambda: len(self._trials()) == 2 and all(phase == "Running" for phase in self._trials().values()))

    def state(self) -> dict[str, Any]:
        """Return what an upgrade must not change: the pods, and the phase, attempt and restarts of each job."""
        pods = [pod["metadata"] for pod in self.api.list("Pod", self.namespace)]
        lasting = {
            pod["uid"]
            for pod in pods
            if "deletionTimestamp" not in pod and not pod["name"].startswith(("suspended-", "marker-"))
        }
        statuses = {name: self._status(name) for name in self.jobs}
        decided = ("phase", "attempt", "restarts", "outputs", "inputs", "elastic")
        state = {name: {key: status.get(key) for key in decided} for name, status in statuses.items()}
        return {"pods": lasting, "trials": self._trials(), **state}

    def is_served(self, name: str) -> None:
        """A new job shows that an operator serves the namespace."""
        self.api.create(job(name), self.namespace)
        self._until(name, "Running")
        self.api.delete(KIND, self.namespace, name)

    def restarts(self) -> None:
        """A restart is counted from the number that the other version stored."""
        counted = self._status("pytorch")["restarts"]["disruptions"]
        pod = next(
            pod["metadata"]["name"]
            for pod in self.api.list("Pod", self.namespace)
            if pod["metadata"]["name"].startswith("pytorch-worker") and "deletionTimestamp" not in pod["metadata"]
        )
        self.api.delete("Pod", self.namespace, pod)
        eventually(lambda: self._status("pytorch")["restarts"]["disruptions"] == counted + 1)
        self._until("pytorch", "Running")

    def resumes(self) -> None:
        self.api.patch(KIND, self.namespace, "suspended", {"spec": {"suspend": False}})
        self._until("suspended", "Running")
        self.api.patch(KIND, self.namespace, "suspended", {"spec": {"suspend": True}})
        self._until("suspended", "Suspended")

    def _status(self, name: str) -> dict[str, Any]:
        return self.api.get(KIND, self.namespace, name).get("status", {})

    def _trials(self) -> dict[str, str]:
        found = self.api.list(KIND, self.namespace, labelSelector="allranks.dev/sweep=search")
        return {trial["metadata"]["name"]: trial.get("status", {}).get("phase", "") for trial in found}

    def _until(self, name: str, settled: str) -> None:
        eventually(lambda: phase(self.control_plane, self.namespace, name) == settled, what=f"{name} is {settled}")


@pytest.mark.nightly
def test_jobs_continue_with_the_next_version_and_with_the_previous_one_again(
    control_plane: ControlPlane, namespace: str, previous: Path, tmp_path: Path
) -> None:
    cluster = Cluster(control_plane, namespace)
    with live.kubelet(live.connection(control_plane), Program(seconds=None, stop_seconds=0.1), namespace=namespace):
        with operator(control_plane, namespace, previous / "operator", tmp_path / "first.log"):
            cluster.create()
        before = cluster.state()
        for number, version in enumerate((ROOT, previous)):
            install(control_plane.api, sorted((version / "crds").glob("*.yaml")))
            assert cluster.state() == before, "the definitions alone change nothing"
            with operator(control_plane, namespace, version / "operator", tmp_path / f"next-{number}.log"):
                cluster.is_served(f"marker-{number}")
                eventually(lambda before=before: cluster.state() == before)
                cluster.restarts()
                cluster.resumes()
            before = cluster.state()


def definitions_to_come(folder: Path) -> list[Path]:
    """Definitions of a version to come: one more field in the spec and in the status of a job, and fewer rules."""
    files = []
    for file in DEFINITIONS:
        definition = yaml.safe_load(file.read_text())
        if definition["spec"]["names"]["kind"] == KIND:
            schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            for part in (schema, schema["properties"]["spec"]):
                part.pop("x-kubernetes-validations", None)  # the spec of a running job can be changed
            for part in ("spec", "status"):
                schema["properties"][part]["properties"]["tomorrow"] = {"type": "string", "maxLength": 64}
        files.append(folder / file.name)
        files[-1].write_text(yaml.safe_dump(definition))
    return files


@pytest.mark.nightly
def test_a_field_of_a_version_to_come_is_named_and_running_jobs_continue(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """The definitions are newer than the operator, and then older again, as after a rollback."""
    api, package = control_plane.api, ROOT / "operator"

    def reason(name: str) -> tuple[str, str]:
        conditions = api.get(KIND, namespace, name).get("status", {}).get("conditions") or ()
        marks = [(c["reason"], c["message"]) for c in conditions if c["reason"] == "InvalidSpec"]
        return marks[0] if marks else ("", "")

    def pods(name: str) -> set[str]:
        return {p["metadata"]["uid"] for p in api.list("Pod", namespace, labelSelector=f"allranks.dev/job-name={name}")}

    with live.kubelet(live.connection(control_plane), Program(seconds=None, stop_seconds=0.1), namespace=namespace):
        install(api, definitions_to_come(tmp_path))
        with operator(control_plane, namespace, package, tmp_path / "older.log"):
            for name in ("runs", "restarts"):
                api.create(job(name), namespace)
                eventually(lambda name=name: phase(control_plane, namespace, name) == "Running")
            before = pods("runs")
            api.patch(KIND, namespace, "runs", {"spec": {"tomorrow": "x"}})
            eventually(lambda: "spec.tomorrow" in reason("runs")[1])
            api.create(job("new", tomorrow="x"), namespace)
            eventually(lambda: phase(control_plane, namespace, "new") == "Failed")
            assert "spec.tomorrow" in reason("new")[1]
            assert (phase(control_plane, namespace, "runs"), pods("runs")) == ("Running", before)
            api.patch(KIND, namespace, "restarts", {"status": {"tomorrow": "y"}}, "status")
            api.delete("Pod", namespace, "restarts-worker-0-0")
            eventually(lambda: api.get(KIND, namespace, "restarts")["status"].get("attempt") == 1)
            # The fields of the status are derived from other ones, or decided again.
            assert "tomorrow" not in api.get(KIND, namespace, "restarts")["status"]
        install(api, DEFINITIONS)
        with operator(control_plane, namespace, package, tmp_path / "same.log"):
            eventually(lambda: reason("runs") == ("", ""))
            assert (phase(control_plane, namespace, "runs"), pods("runs")) == ("Running", before)
            eventually(lambda: phase(control_plane, namespace, "restarts") == "Running")


@pytest.mark.nightly
def test_a_version_without_restarts_in_place_replaces_the_pods_of_an_earlier_attempt_once(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    older = extracted(WITHOUT_IN_PLACE, tmp_path / "older")
    world, [port] = World(control_plane, namespace), free_ports(1)
    options = (f"--report-url={URL}", f"--report-port={port}")
    nodes = Nodes(world, port, tmp_path)
    former, replaced = [{f"demo-{role}-0-{attempt}" for role in ("master", "worker")} for attempt in (0, 2)]

    def pods() -> set[str]:
        return {
            pod["metadata"]["name"]
            for pod in world.api.list("Pod", namespace, labelSelector="allranks.dev/job-name=demo")
        }

    install(world.api, DEFINITIONS)
    try:
        with operator(control_plane, namespace, ROOT / "operator", tmp_path / "newer.log", *options):
            command = ["python3", "-c", PROGRAM]
            world.api.create(job(command=command, progress={}, restart={"backoffSeconds": 0}), namespace)
            for pod in sorted(former):
                nodes.run(pod)
            os.kill(nodes.pid("demo-worker-0-0", 0), signal.SIGUSR1)
            for pod in former:
                nodes.pid(pod, 1)
            eventually(lambda: (status(world)["phase"], status(world)["podsOfAttempt"]) == ("Running", 0))
        install(world.api, sorted((older / "crds").glob("*.yaml")))
        with operator(control_plane, namespace, older / "operator", tmp_path / "older.log", *options):
            eventually(lambda: pods() == former | replaced)  # no kubelet ends the former ones
            for pod in sorted(replaced):
                world.hand.place(pod, "node-a")
                world.hand.start(pod)
            eventually(lambda: status(world)["phase"] == "Running")
            for pod in former:
                assert "deletionTimestamp" in world.api.get("Pod", namespace, pod)["metadata"]
                nodes.running[pod].terminate()
                nodes.end(pod)
            world.runs("marker")  # the operator has handled what it observed
            assert (status(world)["phase"], status(world)["attempt"], pods() - former) == ("Running", 2, replaced)
            restarts = status(world)["restarts"]
            assert (restarts["counted"], restarts["disruptions"]) == (1, 1)
            assert restarts["byReason"] == {"Error": 1, "Deleted": 1}
    finally:
        nodes.stop()
