"""A cluster of tools/cluster.sh for tests."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from support import environment

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "tools" / "cluster.sh"
IMAGE = "localhost/busybox:1"
KEPT_FREE = "tests.allranks.dev/kept-free"
"""The taint of node-2 and node-3, with the name of the node as its value (from tools/e2e.sh). Only tests that stop the
node, or change its kubelet, schedule pods on it."""

PATIENCE = 1200
"""Timeout in seconds of all waits: on a loaded machine some operations take minutes."""


class Cluster:
    """A cluster; `down` ends all of its processes."""

    def __init__(self, folder: Path | None, kubeconfig: Path | None = None) -> None:
        self._folder = folder
        self.kubeconfig = kubeconfig or self.folder / "kubeconfig"

    @property
    def folder(self) -> Path:
        """The folder of tools/cluster.sh. Tests that need it do not run on other clusters."""
        if self._folder is None:
            pytest.skip("needs a cluster of tools/cluster.sh, whose nodes tests may stop, change and give images to")
        return self._folder

    @property
    def mark(self) -> str:
        """The mark of tools/cluster.sh in the names of objects outside the folder."""
        return hashlib.sha256(f"{self.folder}\n".encode()).hexdigest()[:10]

    @property
    def our_address(self) -> str:
        """The address of this machine for pods, which reach no other network."""
        network = re.search(r"^network=(\S+)$", (self.folder / "settings").read_text(), re.MULTILINE)
        assert network
        return f"{network[1]}.0.2"

    def script(self, *arguments: str, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
        """Runs tools/cluster.sh, with any exit status. The first call builds programs, which takes minutes."""
        command = [SCRIPT, *arguments, "--dir", self.folder]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env=environment.USERS
        )

    def up(self, *arguments: str) -> str:
        done = self.script("up", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def down(self) -> str:
        done = self.script("down", timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def ask(self, *arguments: str, input: str | None = None, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Runs kubectl, with any exit status."""
        command = ["kubectl", *arguments]
        return subprocess.run(
            command, input=input, capture_output=True, text=True, timeout=timeout, check=False, env=self._environment
        )

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Starts kubectl, which the caller ends."""
        return subprocess.Popen(["kubectl", *arguments], text=True, env=self._environment, **options)

    @property
    def _environment(self) -> dict[str, str]:
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        if self._folder:
            env["PATH"] = f"{self._folder}/bin:{env['PATH']}"
        return env

    def kubectl(self, *arguments: str, input: str | None = None, timeout: float = 300) -> str:
        done = self.ask(*arguments, input=input, timeout=timeout)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def apply(self, *manifests: dict[str, Any]) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        self.kubectl("apply", "--filename=-", input=text)

    def wait(self, *arguments: str) -> None:
        """kubectl wait. A failure shows the events."""
        done = self.ask("wait", *arguments, f"--timeout={PATIENCE}s", timeout=PATIENCE + 30)
        if done.returncode:
            raise AssertionError(f"{done.stderr}\n{self.kubectl('get', 'pods,events', '--all-namespaces')}")

    def has(self, node: str, resources: dict[str, str | None]) -> None:
        """Sets the extended resources of the node; None removes them."""
        assert self.folder  # only nodes of tools/cluster.sh
        patch = json.dumps({"status": {"capacity": resources, "allocatable": resources}})
        self.kubectl("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={patch}")

    def delete_pods(self, *names: str) -> None:
        self.kubectl("delete", "pod", *names, "--grace-period=0", "--force")

    def eventually(self, *arguments: str, contains: str) -> str:
        """Repeats the kubectl command until its output contains the words."""
        deadline = time.monotonic() + PATIENCE
        while contains not in (answer := self.ask(*arguments)).stdout:
            assert time.monotonic() < deadline, f"no {contains!r} in {answer.stdout} {answer.stderr}"
            time.sleep(0.5)  # each kubectl takes CPU time
        return answer.stdout


def pod(name: str, command: str, **spec: Any) -> dict[str, Any]:
    """A pod that runs a line of shell. `spec` may contain fields of the container as well."""
    of_container = {
        key: spec.pop(key) for key in ("volumeMounts", "resources", "readinessProbe", "image") if key in spec
    }
    container = {"name": "main", "image": IMAGE, "command": ["sh", "-c", command], **of_container}
    metadata = {"name": name, "labels": {"app": spec.get("subdomain", name)}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, **spec, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
