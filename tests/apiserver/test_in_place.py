"""Ranks that restart in their pods: an operator on a real API server, and real supervisors with tokens of their pods.

No container runs: the test starts the supervisor of each pod as a process, with the command and the variables of the
pod's manifest, and is the kubelet that says how it ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.api.job import KIND
from allranks.frameworks.base import HELPER_DIR
from allranks.pod_bundle import copy
from support import live
from support.api import Manifest
from support.controlplane import ControlPlane, free_ports
from support.live import eventually, job

from .test_reports import URL, World

PROGRAM = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))
signal.signal(signal.SIGUSR2, lambda *_: os._exit(0))
print("attempt", os.environ["ALLRANKS_ATTEMPT"], "of", os.environ["ALLRANKS_ROLE"], os.getpid(), flush=True)
while True:
    time.sleep(60)
"""

PATIENCE = 5.0
"""Seconds from the start of an operator to its orders, on a machine that may be slow: less than the pods wait."""


class Nodes:
    """Runs the supervisors of pods as processes of this machine."""

    def __init__(self, world: World, port: int, folder: Path) -> None:
        self._world, self._port, self._folder = world, port, folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        copy(folder / "helpers")

    def run(self, pod: str) -> None:
        """Place a pod, and run its training container."""
        world = self._world
        manifest = eventually(lambda: world.api.find("Pod", world.namespace, pod))
        world.hand.place(pod, "node-a")
        [container] = manifest["spec"]["containers"]
        token = self._folder / f"{pod}.token"
        token.write_text(world.token(pod))
        variables = {item["name"]: item["value"] for item in container["env"] if "value" in item}
        assert variables["ALLRANKS_REPORT_URL"] == URL
        variables["ALLRANKS_REPORT_URL"] = f"http://127.0.0.1:{self._port}/v1/report"
        variables["ALLRANKS_REPORT_TOKEN_FILE"] = str(token)
        assert container["command"][0] == "python3"
        command = [word.replace(HELPER_DIR, str(self._folder / "helpers")) for word in container["command"]]
        command = [sys.executable, *command[1:], *container.get("args", ())]
        with (self._folder / f"{pod}.log").open("ab") as log:
            self.running[pod] = subprocess.Popen(
                command, env={"PATH": os.environ["PATH"], **variables}, stdout=log, stderr=log, start_new_session=True
            )
        world.hand.start(pod)

    def output(self, pod: str) -> list[str]:
        return (self._folder / f"{pod}.log").read_text().splitlines()

    def pid(self, pod: str, attempt: int) -> int:
        """Return the process ID of the program, once it has started for this attempt."""
        [pid] = eventually(lambda: self.pids(pod, attempt), what=f"attempt {attempt} in {pod}")
        return pid

    def pids(self, pod: str, attempt: int) -> list[int]:
        """Return the process IDs of all programs that have started in the pod for this attempt."""
        return [int(line.split()[-1]) for line in self.output(pod) if line.startswith(f"attempt {attempt} of ")]

    def end(self, pod: str) -> int:
        """Wait for the end of the pod's supervisor, and say it as a kubelet does."""
        code = self.running.pop(pod).wait(300)
        self._world.hand.end(pod, code, "Error" if code else "Completed")
        return code

    def stop(self) -> None:
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def world(control_plane: ControlPlane, namespace: str) -> World:
    return World(control_plane, namespace)


@contextlib.contextmanager
def running(world: World, folder: Path, **restart: object) -> Iterator[Nodes]:
    """A job of two ranks whose programs run."""
    with created(world, folder, **restart) as nodes:
        for role in ("master", "worker"):
            nodes.run(f"demo-{role}-0-0")
        eventually(lambda: status(world)["phase"] == "Running")
        yield nodes


@contextlib.contextmanager
def created(world: World, folder: Path, **restart: object) -> Iterator[Nodes]:
    """A job of two ranks whose pods have no node yet."""
    [port] = free_ports(1)
    with life(world, port), nodes_of(world, port, folder, **restart) as nodes:
        yield nodes


@contextlib.contextmanager
def life(world: World, port: int) -> Iterator[None]:
    """An operator that listens for reports on this port, and is killed at the end."""
    with live.operator(world.connection, world.namespace, report_url=URL, report_port=port, pools=False) as operator:
        eventually(lambda: operator.session and operator.session.leading and operator.reports and operator.reports.port)
        yield


@contextlib.contextmanager
def nodes_of(world: World, port: int, folder: Path, **restart: object) -> Iterator[Nodes]:
    """Create a job of two ranks. Its supervisors outlive the operator."""
    command = ["python3", "-c", PROGRAM]
    manifest = job(command=command, progress={}, restart={"backoffSeconds": 0, **restart})
    world.api.create(manifest, world.namespace)
    nodes = Nodes(world, port, folder)
    try:
        yield nodes
    finally:
        nodes.stop()


def status(world: World) -> Manifest:
    return world.api.get(KIND, world.namespace, "demo")["status"]


def waits_for_a_pod(world: World) -> bool:
    [running] = [each for each in status(world)["conditions"] if each["type"] == "Running"]
    return str(running["message"]).startswith("1 of 2 pods are there")


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_a_failed_rank_costs_new_processes_and_no_pod(world: World, tmp_path: Path) -> None:
    with running(world, tmp_path) as nodes:
        master, worker = "demo-master-0-0", "demo-worker-0-0"
        before = [nodes.pid(pod, 0) for pod in (master, worker)]
        os.kill(before[1], signal.SIGUSR1)
        after = [nodes.pid(pod, 1) for pod in (master, worker)]
        assert not any(map(is_alive, before))
        eventually(lambda: status(world)["phase"] == "Running")
        [past] = status(world)["history"]
        assert (past["how"], past["counted"], past["failure"]["exitCode"]) == ("InPlace", True, 3)
        assert (past["failure"]["role"], past["failure"]["pod"]) == ("worker", worker)
        assert status(world)["podsOfAttempt"] == 0
        os.kill(after[0], signal.SIGKILL)
        last = [nodes.pid(pod, 2) for pod in (master, worker)]
        assert status(world)["lastFailure"]["signal"] == 9
        assert status(world)["restarts"]["counted"] == 2
        for pid in last:
            os.kill(pid, signal.SIGUSR2)
        assert [nodes.end(pod) for pod in (master, worker)] == [0, 0]
        eventually(lambda: status(world)["phase"] == "Succeeded")


def test_programs_start_when_all_pods_are_there(world: World, tmp_path: Path) -> None:
    with created(world, tmp_path) as nodes:
        nodes.run("demo-master-0-0")
        eventually(lambda: waits_for_a_pod(world))
        assert nodes.output("demo-master-0-0") == []
        assert status(world)["ready"] == "0/2"
        nodes.run("demo-worker-0-0")
        for role in ("master", "worker"):
            nodes.pid(f"demo-{role}-0-0", 0)
        eventually(lambda: status(world)["phase"] == "Running")
        assert status(world)["restarts"] == {"counted": 0, "disruptions": 0, "byReason": {}}


def test_a_pod_ends_with_the_exit_code_of_its_program_when_the_job_has_failed(world: World, tmp_path: Path) -> None:
    with running(world, tmp_path, maxRestarts=0) as nodes:
        os.kill(nodes.pid("demo-worker-0-0", 0), signal.SIGUSR1)
        assert nodes.end("demo-worker-0-0") == 3
        eventually(lambda: status(world)["phase"] == "Failed")
        assert status(world)["lastFailure"]["exitCode"] == 3


def test_with_never_a_failed_rank_ends_its_pod(world: World, tmp_path: Path) -> None:
    with running(world, tmp_path, inPlace="Never") as nodes:
        os.kill(nodes.pid("demo-worker-0-0", 0), signal.SIGUSR1)
        assert nodes.end("demo-worker-0-0") == 3
        eventually(lambda: world.api.find("Pod", world.namespace, "demo-worker-0-1"))
        [past] = status(world)["history"]
        assert "how" not in past


def test_a_supervisor_that_dies_costs_new_pods(world: World, tmp_path: Path) -> None:
    with running(world, tmp_path) as nodes:
        nodes.pid("demo-master-0-0", 0)
        os.killpg(nodes.running["demo-master-0-0"].pid, signal.SIGKILL)
        world.hand.end("demo-master-0-0", 137, "Error")
        eventually(lambda: world.api.find("Pod", world.namespace, "demo-master-0-1"))
        [past] = status(world)["history"]
        assert past["how"] == "NewPods"
        assert "container of master-0" in past["whyNewPods"]


def test_an_operator_that_is_killed_before_the_order_to_start_gives_it_in_its_next_life(
    world: World, tmp_path: Path
) -> None:
    [port] = free_ports(1)
    pods = ("demo-master-0-0", "demo-worker-0-0")
    with nodes_of(world, port, tmp_path) as nodes:
        with life(world, port):
            for pod in pods:
                nodes.run(pod)
            before = [nodes.pid(pod, 0) for pod in pods]
            eventually(lambda: status(world)["phase"] == "Running")
            os.kill(before[0], signal.SIGSTOP)  # it does not end yet
            os.kill(before[1], signal.SIGUSR1)
            eventually(lambda: status(world)["attempt"] == 1)
        assert not any(line.startswith("attempt 1") for pod in pods for line in nodes.output(pod))
        os.kill(before[0], signal.SIGCONT)
        with life(world, port):
            begin = time.monotonic()
            after = [nodes.pid(pod, 1) for pod in pods]
            print(f"both programs started within {time.monotonic() - begin:.2f} s")
            assert time.monotonic() - begin < PATIENCE
            assert not any(map(is_alive, before))
            eventually(lambda: status(world)["phase"] == "Running")
        assert all(map(is_alive, after))
        assert [past["how"] for past in status(world)["history"]] == ["InPlace"]
        assert status(world)["restarts"]["counted"] == 1


def test_programs_that_wait_for_each_other_start_when_the_operator_is_back(world: World, tmp_path: Path) -> None:
    [port] = free_ports(1)
    with nodes_of(world, port, tmp_path) as nodes:
        with life(world, port):
            nodes.run("demo-master-0-0")
            eventually(lambda: waits_for_a_pod(world))
        nodes.run("demo-worker-0-0")
        with life(world, port):
            begin = time.monotonic()
            for role in ("master", "worker"):
                nodes.pid(f"demo-{role}-0-0", 0)
            print(f"both programs started within {time.monotonic() - begin:.2f} s")
            assert time.monotonic() - begin < PATIENCE
            eventually(lambda: status(world)["phase"] == "Running")
        assert not any("no answer" in line for line in nodes.output("demo-master-0-0"))


def test_a_rank_that_restarts_alone_costs_one_process_and_no_pod(world: World, tmp_path: Path) -> None:
    with running(world, tmp_path, scope="Pod") as nodes:
        master, worker = "demo-master-0-0", "demo-worker-0-0"
        others, before = nodes.pid(master, 0), nodes.pid(worker, 0)
        os.kill(before, signal.SIGUSR1)
        after = eventually(lambda: [pid for pid in nodes.pids(worker, 0) if pid != before], what="the next process")
        assert not is_alive(before)
        assert is_alive(others)
        eventually(lambda: status(world)["replicaRestarts"]["worker-0"].get("launched"))
        entry = status(world)["replicaRestarts"]["worker-0"]
        assert (entry["count"], entry["inPod"], entry["failure"]["exitCode"]) == (1, 1, 3)
        assert (status(world)["attempt"], status(world)["restarts"]["counted"]) == (0, 1)
        assert "allranks: restart 1 in attempt 0 begins in this pod" in nodes.output(worker)
        for pid in (others, *after):
            os.kill(pid, signal.SIGUSR2)
        assert [nodes.end(pod) for pod in (master, worker)] == [0, 0]
        eventually(lambda: status(world)["phase"] == "Succeeded")


def test_a_rank_that_cannot_restart_alone_in_its_pod_gets_a_new_pod(world: World, tmp_path: Path) -> None:
    """The operator is away between the failure and the end of the pod."""
    [port] = free_ports(1)
    with nodes_of(world, port, tmp_path, scope="Pod") as nodes:
        with life(world, port):
            for role in ("master", "worker"):
                nodes.run(f"demo-{role}-0-0")
            worker = nodes.pid("demo-worker-0-0", 0)
            eventually(lambda: status(world)["phase"] == "Running")
        os.kill(worker, signal.SIGUSR1)
        assert nodes.end("demo-worker-0-0") == 3
        with life(world, port):
            eventually(lambda: world.api.find("Pod", world.namespace, "demo-worker-0-0-1"))
        entry = status(world)["replicaRestarts"]["worker-0"]
        assert entry["count"] == 1
        assert "inPod" not in entry
