"""A day of a team that shares four GPUs: quota, waiting, preemption, a gang that waits.
`tools/queues_day.py` records it.

The API server, Kueue, the scheduler, the operator and the ranks are real. A process kubelet runs the pods on this
machine, on CPU: the GPUs are only counted.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from allranks.api.job import KIND
from support import live
from support.api import Manifest
from support.controlplane import ControlPlane, free_ports
from support.live import eventually
from support.process_kubelet import process_kubelet
from support.scheduler import make_ready

ROOT = Path(__file__).parents[2]
QUOTA, JOB = ROOT / "examples" / "queues" / "quota.yaml", ROOT / "examples" / "queues" / "penguins.yaml"
JOBS = ("usual", "second", "urgent", "first", "other")
TEAM = "team-a"
GPUS = 4
TIMING = replace(live.TIMING, optional_apis=0.5)
SECONDS = 300


@dataclass(frozen=True)
class Shown:
    """A command and what it printed."""

    command: str
    lines: list[str]


class TeamDay:
    """Each method is a part of the day, and returns what a user saw. They run in this order."""

    def __init__(self, control_plane: ControlPlane, folder: Path, frameworks: Path) -> None:
        """`frameworks`: the virtual environment with PyTorch."""
        self._control_plane, self._folder = control_plane, folder
        self._environ = {
            **os.environ,
            "PATH": f"{frameworks / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "operator"),  # images have the report library
            "OMP_NUM_THREADS": "1",
        }
        config = yaml.safe_load(control_plane.kubeconfig.read_text())
        for context in config["contexts"]:
            context["context"]["namespace"] = TEAM
        (folder / "pods").mkdir()
        self._kubeconfig = folder / "kubeconfig"
        self._kubeconfig.write_text(yaml.safe_dump(config))

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """A node with four GPUs, the team's namespace and quota, and an operator. The scheduler is the caller's."""
        api = self._control_plane.api
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
        for name in JOBS:
            self._bind_claim(name)
        self._run(f"kubectl apply -f {QUOTA}")
        [port] = free_ports(1)
        settings: dict[str, Any] = {
            "report_url": f"http://127.0.0.1:{port}/v1/report",
            "report_port": port,
            "pools": False,
            "queues": True,
            "gangs": True,
        }
        operator = live.operator(live.connection(self._control_plane), TEAM, timing=TIMING, **settings)
        try:
            with (
                operator,
                process_kubelet(
                    self._control_plane, TEAM, self._folder / "pods", self._environ, binds=False, workdir=ROOT
                ) as kubelet,
            ):
                make_ready(api, kubelet.logs.node, cpu="32", memory="128Gi", **{"nvidia.com_gpu": str(GPUS)})
                yield
                self._run("kubectl delete dt --all --wait")
        finally:
            self._run(f"kubectl delete -f {QUOTA} --wait=false")
            for name in JOBS:
                api.delete("PersistentVolume", None, name)
            api.delete("Namespace", None, TEAM)

    def waits(self) -> list[Shown]:
        """`usual` uses three of the four GPUs, so `second`, which needs two, waits."""
        shown = [self._submit("usual", replicas=3)]
        eventually(lambda: self._step("usual") >= 5, SECONDS, "usual trains")
        shown += [self._submit("second")]
        eventually(lambda: "insufficient" in self._message("second"), SECONDS, "Kueue says why second waits")
        return [*shown, self._run("kubectl get dt"), self._run("allranks queue")]

    def preempts(self) -> list[Shown]:
        """`urgent` needs three GPUs: `usual`, which has a lower priority, stores a checkpoint and gives its GPUs up."""
        shown = [self._submit("urgent", replicas=3, epochs=20, priority="urgent")]
        eventually(lambda: self._phase("urgent") in ("Running", "Succeeded"), SECONDS, "urgent runs")
        shown += [self._run("allranks queue"), self._run("allranks describe usual", EVENTS)]
        return shown

    def continues(self) -> list[Shown]:
        """`usual` continues at the step of its checkpoint, and all three end."""
        for name in ("urgent", "second", "usual"):
            eventually(lambda n=name: self._phase(n) == "Succeeded", SECONDS, f"{name} ends")  # type: ignore[misc]
        resumed = self._run("kubectl logs usual-worker-0-1", RESUMED)
        return [self._run("kubectl get dt"), resumed, self._run("allranks describe usual", ATTEMPTS)]

    def gang_waits(self) -> list[Shown]:
        """Two jobs of three pods without a queue. The second holds none of the four GPUs until the first has ended."""
        shown = [self._submit("first", replicas=3, epochs=20, scheduling={"gang": "Native"})]
        eventually(lambda: self._phase("first") == "Running", SECONDS, "first runs")
        shown += [self._submit("other", replicas=3, epochs=20, scheduling={"gang": "Native"})]
        eventually(lambda: self._condition("other", "GangScheduling").get("reason") == "Unschedulable", SECONDS)
        assert self._bound("other") == 0
        shown += [self._run("kubectl get dt"), self._run("allranks describe other", r"GangScheduling")]
        for name in ("first", "other"):
            eventually(lambda n=name: self._phase(n) == "Succeeded", SECONDS, f"{name} ends")  # type: ignore[misc]
        return [*shown, self._run("kubectl get dt")]

    def job(self, name: str) -> Manifest:
        return self._control_plane.api.get(KIND, TEAM, name)

    def _bind_claim(self, name: str) -> None:
        """Binds the claim of the jobs, as the volume controller does, which does not run here."""
        api = self._control_plane.api
        common = {"accessModes": ["ReadWriteMany"]}
        volume = {"capacity": {"storage": "1Gi"}, "claimRef": {"namespace": TEAM, "name": name}, **common}
        volume["hostPath"] = {"path": str(self._folder)}
        claim = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": name, "storageClassName": "", **common}
        annotations = {"pv.kubernetes.io/bind-completed": "yes"}
        kinds = (("PersistentVolume", None, {}, volume), ("PersistentVolumeClaim", TEAM, annotations, claim))
        for kind, namespace, found, spec in kinds:
            metadata = {"name": name, "annotations": found}
            api.create({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}, namespace)
            api.patch(kind, namespace, name, {"status": {"phase": "Bound"}}, "status")

    def events(self, name: str) -> list[str]:
        """Reasons of the job's Events."""
        found = self._control_plane.api.list("Event", TEAM)
        return [each["reason"] for each in found if each["involvedObject"]["name"] == name]

    def _submit(self, name: str, replicas: int = 2, epochs: int = 60, priority: str = "usual", **spec: Any) -> Shown:
        """The example with another name and a claim of its own."""
        [_, made] = yaml.safe_load_all(JOB.read_text())
        made["metadata"] = {"name": name, "labels": {"kueue.x-k8s.io/priority-class": priority}}
        made["spec"] |= {"args": [f"--epochs={epochs}", "--pause=0.5"], "roles": {"worker": {"replicas": replicas}}}
        made["spec"] |= {"checkpoint": {"claim": name}, **spec}
        (self._folder / f"{name}.yaml").write_text(yaml.safe_dump(made))
        return self._run(f"allranks submit {name}.yaml")

    def _run(self, command: str, keep: str = "") -> Shown:
        """Runs a command as a user of the team. `keep`: a pattern of the lines that are shown."""
        programs = {"kubectl": [str(self._control_plane.programs / "kubectl")]}
        programs["allranks"] = [sys.executable, "-m", "allranks"]
        first, *rest = shlex.split(command)
        environ = {**self._environ, "KUBECONFIG": str(self._kubeconfig), "COLUMNS": "120"}
        done = subprocess.run(
            [*programs[first], *rest], cwd=self._folder, env=environ, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        claim = re.compile(rf"{re.escape(str(self._folder))}\S*/volumes/[\w-]+")
        lines = [claim.sub("/checkpoints", line.rstrip()) for line in done.stdout.splitlines()]
        return Shown(command, _kept(lines, keep) if keep else lines)

    def _status(self, name: str) -> Manifest:
        status: Manifest = self.job(name).get("status", {})
        return status

    def _phase(self, name: str) -> str:
        phase: str = self._status(name).get("phase", "")
        assert phase != "Failed", self._status(name)
        return phase

    def _step(self, name: str) -> int:
        return int((self._status(name).get("progress") or {}).get("step") or 0)

    def _condition(self, name: str, kind: str) -> Manifest:
        found = self._status(name).get("conditions", ())
        return next((each for each in found if each["type"] == kind), {})

    def _message(self, name: str) -> str:
        return str(self._condition(name, "Running").get("message", ""))

    def _bound(self, name: str) -> int:
        pods = self._control_plane.api.list("Pod", TEAM, labelSelector=f"allranks.dev/job-name={name}")
        return sum(bool(pod["spec"].get("nodeName")) for pod in pods)


EVENTS = r"^Events|CheckpointRequested|Preempted|Admitted"
ATTEMPTS = r"^Goodput|^Times|^History|ATTEMPT|^  \d "
RESUMED = r"^resumed"


def _kept(lines: Sequence[str], pattern: str) -> list[str]:
    return [line for line in lines if re.search(pattern, line)]
