"""Runs cluster commands, and creates a job and its pods for them.

No operator runs: the test writes the status and controls the pods.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from allranks.api.status import Status
from allranks.core.facts.model import Platform
from allranks.core.facts.naming import ATTEMPT_LABEL
from allranks.core.objects import pods
from support.builders import job as parsed_job
from support.builders import manifest

from .api import Api, Manifest


class Result(NamedTuple):
    """The result of a command."""

    exit_code: int
    stdout: str
    stderr: str


def allranks(*words: str, folder: Path, programs: Path, seconds: float = 900) -> subprocess.CompletedProcess[str]:
    """Runs `allranks ...` in a folder to its end. Its ranks find the programs of a directory, such as a Python."""
    env = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "allranks", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=seconds)


class Commands:
    """`allranks ...` in one namespace."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.namespace = namespace
        self.cluster_options = ["--kubeconfig", str(kubeconfig), "-n", namespace]

    def __call__(self, *args: str, stdin: str = "", where: bool = True) -> Result:
        """Runs to its end in a separate process, because its imports are part of the test."""
        command = [sys.executable, "-m", "allranks", *args, *(self.cluster_options if where else [])]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300, check=False)
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, *args: str) -> Running:
        """Runs in the background."""
        return Running([*args, *self.cluster_options])


class Running:
    """A running command. Its output, including stderr, is read line by line."""

    def __init__(self, args: list[str]) -> None:
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "allranks", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def until(self, text: str, seconds: float = 300) -> str:
        """Waits for the next line that contains `text`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"no line with {text!r} in {self.lines}"
            if text in line:
                return line

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self, seconds: float = 300) -> int:
        """Waits for its exit status."""
        status = self._process.wait(seconds)
        while self._queue.get(timeout=300) is not None:
            pass
        return status

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._queue.put(self.lines[-1])
        self._process.stdout.close()
        self._queue.put(None)


class JobOnCluster:
    """A job, its pods as the operator creates them, and a `Hand` that controls them."""

    def __init__(self, api: Api, namespace: str, name: str = "penguins", **spec: Any) -> None:
        self.api, self.namespace, self.name = api, namespace, name
        roles, framework = spec.pop("roles", {"master": 1, "worker": 2}), spec.pop("framework", "pytorch")
        self.manifest = manifest(framework, roles, name, **spec)
        self.manifest["metadata"] = {"name": name, "namespace": namespace}
        self.uid = api.create(self.manifest)["metadata"]["uid"]
        self._parsed = parsed_job(framework, roles, name, **spec)
        meta = self._parsed.metadata.model_copy(update={"uid": self.uid, "namespace": namespace})
        self._parsed = self._parsed.model_copy(update={"metadata": meta})

    def status(self, **fields: Any) -> None:
        """Writes these fields of the status. Times may be omitted."""
        defaults: Manifest = {"startTime": stamp(), "phase": "Running"}
        self.api.patch("DistributedTraining", self.namespace, self.name, {"status": {**defaults, **fields}}, "status")

    def pods(self, node: str | None = None, attempt: int = 0) -> list[str]:
        """Creates the pods of an attempt, bound to the node if one is given."""
        status = Status(attempt=attempt)
        names = []
        for pod in pods.objects(self._parsed, status, Platform(helper_image="helper:1")).pods:
            if node:
                pod = {**pod, "spec": {**pod["spec"], "nodeName": node}}
            owner = {**pod["metadata"]["ownerReferences"][0], "apiVersion": "allranks.dev/v1alpha1"}
            metadata = {**pod["metadata"], "ownerReferences": [owner]}
            assert metadata["labels"][ATTEMPT_LABEL] == str(attempt)
            self.api.create({**pod, "metadata": metadata})
            names.append(metadata["name"])
        return names

    def run(self, *pods: str) -> None:
        for pod in pods:
            self._container(pod, "Running", {"running": {"startedAt": stamp()}})

    def end(self, pod: str, code: int = 0, reason: str = "") -> None:
        phase = "Failed" if code else "Succeeded"
        why = reason or ("Error" if code else "Completed")
        times = {"startedAt": stamp(), "finishedAt": stamp()}
        self._container(pod, phase, {"terminated": {"exitCode": code, "reason": why, **times}})

    def waits(self, pod: str, reason: str, message: str = "") -> None:
        self._container(pod, "Pending", {"waiting": {"reason": reason, "message": message}})

    def delete_pod(self, pod: str) -> None:
        self.api.delete("Pod", self.namespace, pod, grace=0)

    def _container(self, pod: str, phase: str, state: Mapping[str, Any]) -> None:
        container = {
            "name": "trainer",
            "state": state,
            "ready": phase == "Running",
            "restartCount": 0,
            "image": "me/train:1",
            "imageID": "",
        }
        status = {"phase": phase, "containerStatuses": [container]}
        self.api.patch("Pod", self.namespace, pod, {"status": status}, "status")


def kubeconfig_of_service_account(control_plane: Any, namespace: str, folder: Path) -> Path:
    """A kubeconfig with the token of the namespace's default service account, which has no rights for jobs."""
    token = control_plane.api.request(
        "POST",
        f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    )["status"]["token"]
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    file = folder / "config"
    file.write_text(yaml.safe_dump(config))
    return file


def failure(**fields: Any) -> Manifest:
    """`status.lastFailure`."""
    defaults = {
        "attempt": 0,
        "role": "worker",
        "index": 1,
        "rank": 2,
        "pod": "penguins-worker-1-0",
        "node": "node-7",
        "exitCode": 1,
        "reason": "Error",
        "message": "Traceback (most recent call last):\nValueError: negative learning rate",
        "time": stamp(),
        "ranSeconds": 12.5,
    }
    return defaults | fields


def condition(kind: str, status: str, reason: str, message: str) -> Manifest:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp()}


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def text(*documents: Manifest) -> str:
    return yaml.safe_dump_all(documents)
