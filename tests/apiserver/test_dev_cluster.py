"""`allranks dev --cluster` with an operator on a real API server, and real supervisors that fetch code.

No container runs: the test unpacks the code of each pod as its init container does, and starts its supervisor as a
process, with the command and the variables of the pod's manifest.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from allranks.api.job import KIND
from allranks.core.objects.code import ARCHIVE
from allranks.frameworks.base import HELPER_DIR
from allranks.operator.app import Operator
from allranks.sdk.job import job as find_job
from support.api import Manifest
from support.commands import Commands, Running
from support.controlplane import ControlPlane
from support.kubelet_logs import LogKubelet
from support.live import eventually, job

from .test_reports import URL, World

PROGRAM = """
import os, time
from allranks.report import report
from model import NAME
print("code", NAME, "attempt", os.environ["ALLRANKS_ATTEMPT"], "process", os.getpid(), flush=True)
for step in range(1, 10_000):
    time.sleep(0.05)
    report(step=step, total_steps=10_000)
"""
PODS = ("demo-master-0-0", "demo-worker-0-0")


class Nodes:
    """Runs the pods of a job as processes of this machine, which have the code of their job."""

    def __init__(self, world: World, operator: Operator, kubelet: LogKubelet, folder: Path) -> None:
        assert operator.reports
        self._world, self._port, self._kubelet, self._folder = world, operator.reports.port, kubelet, folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, pod: str) -> None:
        """Place a pod, run its init container, and start its training container."""
        world = self._world
        manifest = eventually(lambda: world.api.find("Pod", world.namespace, pod))
        world.hand.place(pod, self._kubelet.node)
        folder = self._folder / pod
        folder.mkdir()
        self._inject(manifest, folder)
        [container] = manifest["spec"]["containers"]
        (folder / "token").write_text(world.token(pod))
        paths = {HELPER_DIR: str(folder / "helpers"), "/workspace": str(folder / "workspace")}

        def here(text: str) -> str:
            for path, directory in paths.items():
                text = re.sub(rf"(?<![\w/.-]){path}\b", directory, text)
            return text

        variables = {item["name"]: here(item["value"]) for item in container["env"] if "value" in item}
        assert variables["ALLRANKS_REPORT_URL"] == URL
        variables["ALLRANKS_REPORT_URL"] = f"http://127.0.0.1:{self._port}/v1/report"
        variables["ALLRANKS_REPORT_TOKEN_FILE"] = str(folder / "token")
        assert container["command"][0] == "python3"
        command = [sys.executable, *map(here, container["command"][1:]), *container.get("args", ())]
        self.running[pod] = process = subprocess.Popen(
            command,
            env={"PATH": os.environ["PATH"], **variables},
            cwd=here(container["workingDir"]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(pod, process), daemon=True).start()
        world.hand.start(pod)

    def _inject(self, manifest: Manifest, folder: Path) -> None:
        """What the init container does."""
        world = self._world
        [init] = [item for item in manifest["spec"]["initContainers"] if item["name"] == "allranks-helper"]
        volumes = {volume["name"]: volume for volume in manifest["spec"]["volumes"]}
        name = volumes["allranks-code-archive"]["configMap"]["name"]
        stored = world.api.get("ConfigMap", world.namespace, name)
        (folder / ARCHIVE).write_bytes(base64.b64decode(stored["binaryData"][ARCHIVE]))
        words = dict(zip(init["command"][3::2], init["command"][4::2], strict=True))
        words |= {"--code": str(folder / ARCHIVE), "--to": str(folder / "workspace")}
        arguments = [word for pair in words.items() for word in pair]
        command = [sys.executable, "-m", "allranks", "inject", str(folder / "helpers"), *arguments]
        subprocess.run(command, check=True, timeout=300)

    def _read(self, pod: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        with process.stdout as lines, (self._folder / f"{pod}.log").open("ab", buffering=0) as log:
            for line in lines:
                log.write(line)
                self._kubelet.write(self._world.namespace, pod, line.decode().rstrip("\n"))

    def output(self, pod: str) -> str:
        log = self._folder / f"{pod}.log"
        return log.read_text() if log.exists() else ""

    def until(self, pod: str, pattern: str) -> re.Match[str]:
        return eventually(lambda: re.search(pattern, self.output(pod)), what=f"{pattern} in {pod}")

    def stop(self) -> None:
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Developer:
    """Edits code, with `allranks dev --cluster` in the background."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world, self.folder, self.dev = world, folder, None
        folder.mkdir()
        (folder / "train.py").write_text(PROGRAM)
        self.edit("NAME = 'first'\n")
        (folder / "job.yaml").write_text(
            yaml.safe_dump(
                job(
                    command=["python3", "train.py"],
                    progress={},
                    code=".",
                    restart={"maxRestarts": 0, "graceSeconds": 1},
                )
            )
        )

    def start(self, *options: str) -> Running:
        kubeconfig = str(self._world.control_plane.kubeconfig)
        where = ["--kubeconfig", kubeconfig, "-n", self._world.namespace]
        self.dev = Running(["dev", "--cluster", *where, *options, str(self.folder / "job.yaml")])
        return self.dev

    def edit(self, text: str) -> None:
        """Save as editors do: a new file takes the place of the old one."""
        new = self.folder / ".model.py.swp"
        new.write_text(text)
        new.replace(self.folder / "model.py")


@pytest.fixture
def world(control_plane: ControlPlane, namespace: str) -> World:
    return World(control_plane, namespace)


@contextlib.contextmanager
def developing(world: World, kubelet: LogKubelet, folder: Path, *options: str) -> Iterator[tuple[Developer, Nodes]]:
    """A job of two ranks that run the first code."""
    with world.operator() as operator:
        eventually(lambda: operator.session and operator.session.leading and operator.reports and operator.reports.port)
        developer = Developer(world, folder / "code")
        dev = developer.start(*options)
        nodes = Nodes(world, operator, kubelet, folder)
        try:
            for pod in PODS:
                nodes.run(pod)
            for pod in PODS:
                nodes.until(pod, "code first attempt 0")
            eventually(lambda: status(world)["phase"] == "Running")
            said(dev, "each save below")
            yield developer, nodes
        finally:
            dev.__exit__()
            nodes.stop()


def said(dev: Running, pattern: str) -> None:
    eventually(lambda: any(re.search(pattern, line) for line in dev.lines), 120, f"{pattern} in {dev.lines}")


def stored_code(world: World) -> set[str]:
    """The names of the ConfigMaps with code."""
    listed = world.api.list("ConfigMap", world.namespace, labelSelector="allranks.dev/code")
    return {item["metadata"]["name"] for item in listed}


def status(world: World) -> Manifest:
    return world.api.get(KIND, world.namespace, "demo")["status"]


def test_a_saved_file_runs_in_the_same_pods_and_a_syntax_error_waits_there(
    world: World, kubelet: LogKubelet, tmp_path: Path
) -> None:
    with developing(world, kubelet, tmp_path) as (developer, nodes):
        dev = developer.dev
        assert dev
        developer.edit("NAME = 'second'\n")
        for pod in PODS:
            nodes.until(pod, "code second attempt 1")
        said(dev, r"edit 1: all ranks run after .* in the same pods")
        said(dev, r"step \d+ of edit 1 after")
        [past] = status(world)["history"]
        assert (past["reason"], past["how"], past["counted"]) == ("CodeChanged", "InPlace", False)
        developer.edit("NAME = 'broken\n")
        said(dev, "SyntaxError: unterminated string literal")
        said(dev, "edit 2 failed")
        eventually(lambda: status(world).get("code", {}).get("awaitsChange"))
        assert status(world)["phase"] == "Restarting"
        developer.edit("NAME = 'third'\n")
        for pod in PODS:
            nodes.until(pod, "code third")
        said(dev, r"step \d+ of edit 3 after")
        assert status(world)["podsOfAttempt"] == 0
        assert status(world)["restarts"]["counted"] == 0
        assert all(process.poll() is None for process in nodes.running.values())
        eventually(
            lambda: stored_code(world) == {status(world)["code"]["configMap"]}, what="only the last code is left"
        )
        dev.interrupt()
        said(dev, "demo is suspended")
        eventually(lambda: status(world)["phase"] == "Suspended")
        assert "allranks.dev/developed-until" not in world.api.get(KIND, world.namespace, "demo")["metadata"].get(
            "annotations", {}
        )


def test_code_that_is_too_large_is_refused_and_the_ranks_keep_running(
    world: World, kubelet: LogKubelet, tmp_path: Path
) -> None:
    with developing(world, kubelet, tmp_path) as (developer, nodes):
        assert developer.dev
        large = [developer.folder / f"table{number}.txt" for number in range(20)]
        for file in large:
            file.write_bytes(base64.b64encode(os.urandom(100_000)))
        said(developer.dev, "error: .* after compression, and a ConfigMap takes")
        for file in large:
            file.unlink()
        developer.edit("NAME = 'second'\n")
        for pod in PODS:
            nodes.until(pod, "code second attempt 1")
        assert status(world)["podsOfAttempt"] == 0


def test_a_pod_that_is_lost_while_ranks_wait_for_code_is_replaced_by_one_with_the_next_code(
    world: World, kubelet: LogKubelet, tmp_path: Path
) -> None:
    with developing(world, kubelet, tmp_path, "--on-exit", "keep") as (developer, nodes):
        assert developer.dev
        developer.edit("NAME = 'broken\n")
        eventually(lambda: status(world).get("code", {}).get("awaitsChange"))
        eventually(lambda: status(world)["roles"]["worker"].get("active") is not None)
        os.killpg(nodes.running["demo-worker-0-0"].pid, signal.SIGKILL)
        world.hand.end("demo-worker-0-0", 137, "Error")
        eventually(lambda: "podsOfAttempt" not in status(world))
        attempt = status(world)["attempt"]
        developer.edit("NAME = 'third'\n")
        eventually(lambda: status(world)["attempt"] == attempt + 1)
        pods = [f"demo-{role}-0-{attempt + 1}" for role in ("master", "worker")]
        for pod in pods:
            nodes.run(pod)
        for pod in pods:
            nodes.until(pod, f"code third attempt {attempt + 1}")
        assert status(world)["restarts"]["counted"] == 0
        developer.dev.interrupt()
        said(developer.dev, "demo continues")
        eventually(
            lambda: (
                "allranks.dev/developed-until"
                not in (world.api.get(KIND, world.namespace, "demo")["metadata"].get("annotations") or {})
            )
        )


def test_python_and_a_command_restart_a_job_with_other_code(
    world: World, kubelet: LogKubelet, allranks: Commands, tmp_path: Path
) -> None:
    with developing(world, kubelet, tmp_path) as (developer, nodes):
        others = {}
        for name in ("python", "command"):
            others[name] = Path(shutil.copytree(developer.folder, tmp_path / name))
            (others[name] / "model.py").write_text(f"NAME = '{name}'\n")
        kubeconfig = str(world.control_plane.kubeconfig)
        find_job("demo", namespace=world.namespace, kubeconfig=kubeconfig).restart(code=others["python"])
        for pod in PODS:
            nodes.until(pod, "code python attempt 1")
        eventually(lambda: status(world).get("runningTime"))
        result = allranks("restart", "demo", "--code", str(others["command"]))
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.endswith("attempt 2 replaces 1\n")
        for pod in PODS:
            nodes.until(pod, "code command attempt 2")
        described = allranks("describe", "demo").stdout
        assert re.search(rf"^Code: +{status(world)['code']['sha256'][:12]}, since ", described, re.MULTILINE)
        assert "CodeChanged" in described
