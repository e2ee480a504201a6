"""The measured systems: the limit, Kubernetes' Indexed Job, training-operator, and allranks. Each runs in its own
processes, on a fresh API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, ClassVar

from allranks.api import validation
from allranks.api.status import Status
from allranks.core.facts.model import Platform
from allranks.core.objects import pods
from allranks.kube import paths
from allranks.kube.client import Client
from bench.common import Manifest, go_tools, job, process, quiet, until
from support.controlplane import ControlPlane, free_ports


@dataclass(frozen=True)
class Shape:
    """`jobs` jobs with `pods` pods each, submitted at once."""

    jobs: int
    pods: int

    @property
    def name(self) -> str:
        return f"{self.jobs:,} x {self.pods:,}"

    @property
    def total(self) -> int:
        return self.jobs * self.pods


@dataclass
class System(ABC):
    """Runs inside `run`; `submit` submits all jobs at once."""

    plane: ControlPlane
    programs: Path
    name: ClassVar[str]
    throttled: ClassVar[bool] = False
    """Its client is rate-limited: one round is sufficient."""
    pids: list[int] = field(default_factory=list)

    @classmethod
    def definitions(cls) -> list[Path]:
        """Files of CustomResourceDefinitions that it needs, besides those of allranks."""
        return []

    @abstractmethod
    def command(self) -> list[str]: ...

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        with process(self.command(), self.plane.folder / "system.log") as running:
            self.pids.append(running.pid)
            yield

    async def ready(self) -> None:
        """Waits until the system is ready."""
        await quiet(self.pids)

    def prepare(self, namespace: str, shape: Shape) -> None:  # noqa: B027 - most have nothing to prepare
        """Preparation outside of the measurement."""

    async def submit(self, client: Client, namespace: str, shape: Shape) -> None:
        path = f"{self.group}/namespaces/{namespace}/{self.plural}"
        objects = (self.manifest(f"bench-{number}", shape.pods) for number in range(shape.jobs))
        await asyncio.gather(*(client.create(path, manifest) for manifest in objects))

    group: ClassVar[str] = ""
    plural: ClassVar[str] = ""

    def manifest(self, name: str, pods: int) -> Manifest:
        raise NotImplementedError

    def finished(self, item: Manifest) -> bool:
        """Whether this job has succeeded."""
        conditions = item.get("status", {}).get("conditions") or []
        return any(c["type"] in ("Complete", "Succeeded") and c["status"] == "True" for c in conditions)


class Raw(System):
    """The limit: allranks' own pods, posted by a Go program, 32 at a time."""

    name = "raw POSTs"
    _in: IO[bytes]

    def command(self) -> list[str]:
        program = str(go_tools("bench") / "raw")
        return [program, "-url", self.plane.url, "-ca", str(self.plane.ca_file), "-token", self.plane.admin_token]

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with process(self.command(), self.plane.folder / "system.log", **pipes) as running:
            self.pids.append(running.pid)
            assert running.stdin
            assert running.stdout
            with running.stdin as self._in, running.stdout as answers:
                assert answers.readline() == b"ready\n"
                yield

    def prepare(self, namespace: str, shape: Shape) -> None:
        lines = []
        for number in range(shape.jobs):
            document = job(f"bench-{number}", shape.pods)
            for pod in pods.objects(validation.parse(document), Status(), Platform(helper_image="x")).pods:
                metadata = {key: value for key, value in pod["metadata"].items() if key != "ownerReferences"}
                lines.append(json.dumps({**pod, "metadata": {**metadata, "namespace": namespace}}))
        self._file = self.plane.folder / f"{namespace}.jsonl"
        self._file.write_text("\n".join(lines))

    async def submit(self, client: Client, namespace: str, shape: Shape) -> None:
        self._in.write(f"{paths.collection('Pod', namespace)}\t{self._file}\n".encode())
        self._in.flush()


class Allranks(System):
    name = "allranks"
    group, plural = "/apis/allranks.dev/v1alpha1", "distributedtrainings"

    def command(self) -> list[str]:
        [self.port] = free_ports(1)
        command = [sys.executable, "-m", "allranks", "operator", f"--kubeconfig={self.plane.kubeconfig}"]
        return [*command, "--address=127.0.0.1", f"--port={self.port}"]

    async def ready(self) -> None:
        await until(lambda: self.answers("/readyz") == "ok", 180)
        await quiet(self.pids)

    def answers(self, path: str) -> str:
        """The response at this path; empty while unavailable."""
        ask = ["curl", "-sf", "-m", "5", f"http://127.0.0.1:{self.port}{path}"]
        return subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()

    def manifest(self, name: str, pods: int) -> Manifest:
        return job(name, pods)


class IndexedJob(System):
    """Kubernetes' Indexed Job with the default settings of the controller manager: 20 requests per second."""

    name = "Indexed Job"
    throttled = True
    group, plural = "/apis/batch/v1", "jobs"
    flags: ClassVar[tuple[str, ...]] = ()

    def command(self) -> list[str]:
        command = [str(self.programs / "kube-controller-manager"), f"--kubeconfig={self.plane.kubeconfig}"]
        return [*command, "--controllers=job-controller", "--leader-elect=false", "--secure-port=0", *self.flags]

    def manifest(self, name: str, pods: int) -> Manifest:
        container = {"name": "trainer", "image": "example.org/x:1", "command": ["x"]}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        spec = {"completions": pods, "parallelism": pods, "completionMode": "Indexed", "template": template}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


class UnthrottledJob(IndexedJob):
    """Indexed Job without its throttle, and with more workers."""

    name = "Indexed Job, no throttle"
    throttled = False
    flags = ("--kube-api-qps=10000", "--kube-api-burst=20000", "--concurrent-job-syncs=32")


class TrainingOperator(System):
    """Kubeflow's training-operator 1.8.1 without webhooks, with default settings (20 requests/s, one thread)."""

    name = "training-operator"
    throttled = True
    group, plural = "/apis/kubeflow.org/v1", "pytorchjobs"
    program: ClassVar[str] = "training-operator"
    flags: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def definitions(cls) -> list[Path]:
        return sorted((go_tools("peers") / "crds").glob("kubeflow.org_pytorchjobs.yaml"))

    def command(self) -> list[str]:
        command = [str(go_tools("peers") / self.program), f"--kubeconfig={self.plane.kubeconfig}"]
        command += ["--enable-scheme=pytorchjob", "--metrics-bind-address=0", "--health-probe-bind-address=0"]
        return [*command, *self.flags]

    def manifest(self, name: str, pods: int) -> Manifest:
        container = {"name": "pytorch", "image": "example.org/x:1", "command": ["x"]}
        template = {"spec": {"containers": [container]}}
        roles = {"Master": {"replicas": 1, "template": template}}
        if pods > 1:
            roles["Worker"] = {"replicas": pods - 1, "template": template}
        metadata = {"name": name}
        kind = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata}
        return {**kind, "spec": {"pytorchReplicaSpecs": roles}}


class UnthrottledTrainingOperator(TrainingOperator):
    """training-operator without its throttle, and with 8 threads."""

    name = "training-operator, no throttle"
    throttled = False
    program = "training-operator-unthrottled"
    flags = ("--controller-threads=8",)


SYSTEMS: tuple[type[System], ...] = (Raw, Allranks, UnthrottledJob, IndexedJob)
PEERS: tuple[type[System], ...] = (UnthrottledTrainingOperator, TrainingOperator)
