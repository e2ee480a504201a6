"""A node of tools/cluster.sh, as its administrator sees it: programs, settings of the kubelet, disk, power."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from .cluster import KEPT_FREE, PATIENCE, REPOSITORY, Cluster

GPUS = "4"
"""What tools/e2e.sh gives each node."""


class Node:
    """A node that no other test uses."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.folder = cluster.folder / name

    def processes(self, *command: str) -> list[int]:
        """Process IDs on this machine whose command line begins so."""
        namespace = Path(f"/proc/{self._init}/ns/pid").readlink()
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = file.read_text(errors="replace").split("\0")[: len(command)]
                words[0] = Path(words[0]).name
                if tuple(words) == command and (file.parent / "ns" / "pid").readlink() == namespace:
                    found.append(int(file.parent.name))
        return found

    def ranks(self, job: str, attempt: int = 0, uid: str = "") -> list[int]:
        """Process IDs on this machine of the programs of an attempt on the node. Jobs of several namespaces can have
        the same name; the UID selects one of them."""
        wanted = {f"ALLRANKS_JOB={job}".encode(), f"ALLRANKS_ATTEMPT={attempt}".encode()}
        wanted |= {f"ALLRANKS_JOB_UID={uid}".encode()} if uid else set()
        cgroup, found = f"allranks-{self.cluster.mark}/{self.name}/", []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                ours = wanted <= set((file.parent / "environ").read_bytes().split(b"\0"))
                if ours and "train/" in file.read_text() and cgroup in (file.parent / "cgroup").read_text():
                    found.append(int(file.parent.name))
        return found

    def send(self, number: signal.Signals, processes: list[int]) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def run(self, *command: str) -> str:
        """The output of a command in the namespaces of the node."""
        return subprocess.run([*self._enter, *command], capture_output=True, text=True, timeout=300, check=True).stdout

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Starts a program that ends with the node."""
        with (self.folder / "log" / "tests.log").open("ab") as log:
            return subprocess.Popen([*self._enter, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def configure(self, **settings: Any) -> None:
        """Changes settings of the kubelet and restarts it. They last until the node starts again."""
        file = self.folder / "kubelet.yaml"
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | settings))
        self.restart_kubelet()

    def restart_kubelet(self) -> None:
        """The node's first process starts it again, as a service manager does."""
        before, (_, heartbeat) = self.processes("kubelet"), self._condition("Ready")
        self.send(signal.SIGTERM, before)
        until(lambda: set(self.processes("kubelet")) - set(before), "another kubelet")
        until(lambda: self._condition("Ready") > ("True", heartbeat), "a heartbeat of the new kubelet")
        self.cluster.has(self.name, {"nvidia.com/gpu": GPUS})  # a new kubelet resets it

    def give_small_disk(self, megabytes: int) -> None:
        """The kubelet's files (pods, volumes) are on a file system of their own from its next start on."""
        self.run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", "/var/lib/kubelet")

    def power_off(self) -> None:
        done = self.cluster.script("stop", self.name)
        assert done.returncode == 0, done.stderr

    def power_on(self) -> None:
        done = self.cluster.script("start", self.name)
        assert done.returncode == 0, done.stderr

    def restore(self) -> None:
        """The node as tools/e2e.sh started it: settings, mounts and programs of a test end with its power."""
        labels = (f"allranks.dev/pretended-gpus={GPUS}", "--overwrite")
        self.cluster.kubectl("uncordon", self.name)
        self.cluster.kubectl("taint", "node", self.name, f"{KEPT_FREE}={self.name}:NoSchedule", "--overwrite")
        self.cluster.kubectl("label", "node", self.name, *labels)  # for `start`
        self.power_off()
        self.power_on()

    def has_condition(self, kind: str, value: str) -> None:
        self.cluster.wait(f"node/{self.name}", f"--for=condition={kind}={value}")

    def _condition(self, kind: str) -> tuple[str, str]:
        """Its status and its last heartbeat."""
        answer = self.cluster.ask("get", "node", self.name, "-o", "json").stdout
        conditions = json.loads(answer)["status"]["conditions"] if answer else []
        return next(((c["status"], c["lastHeartbeatTime"]) for c in conditions if c["type"] == kind), ("", ""))

    @property
    def _init(self) -> int:
        """The first process of the node."""
        holder = (self.folder / "pid").read_text().split()[0]
        return int(Path(f"/proc/{holder}/task/{holder}/children").read_text().split()[0])

    @property
    def _enter(self) -> list[str]:
        return ["nsenter", "--mount", "--pid", "--net", "--uts", "--ipc", f"--target={self._init}", "--"]


LOGIND = """
[Login]
InhibitDelayMaxSec=60
NAutoVTs=0
ReserveVT=0
HandlePowerKey=ignore
"""


@contextlib.contextmanager
def logind(node: Node) -> Iterator[Path]:
    """Runs D-Bus and systemd-logind on the node; yields a file that exists when logind powers the node off."""
    powered_off = node.folder / "powered-off"
    powered_off.unlink(missing_ok=True)
    node.run("mkdir", "-p", "/run/dbus", "/run/systemd/logind.conf.d")
    node.run("sh", "-c", f"echo '{LOGIND}' >/run/systemd/logind.conf.d/tests.conf")
    standin = REPOSITORY / "tests" / "e2e" / "service_manager.py"
    started = [node.start("dbus-daemon", "--system", "--nofork", "--nopidfile")]
    try:
        until(lambda: node.run("sh", "-c", "ls /run/dbus"), "D-Bus")
        started.append(node.start(sys.executable, str(standin), str(powered_off)))
        started.append(node.start("/lib/systemd/systemd-logind"))
        until(lambda: "org.freedesktop.systemd1" in bus(node, "list", "--acquired"), "the service manager")
        until(lambda: "org.freedesktop.login1" in bus(node, "list", "--acquired"), "logind")
        yield powered_off
    finally:
        for process in started:
            process.kill()  # nsenter; the program itself ends with the node
            process.wait(timeout=300)


def bus(node: Node, *command: str) -> str:
    """busctl on the system bus of the node."""
    return node.run("busctl", "--system", *command)


def manager(node: Node, *call: str) -> str:
    """Calls a method of logind."""
    return bus(
        node, "call", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", *call
    )


def until(holds: Any, what: str) -> None:
    """Waits until the function returns something true."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.2)
