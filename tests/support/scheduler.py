"""A real kube-scheduler beside a control plane of tests, and Node objects without kubelets for it to fill."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from . import processes, tools
from .api import Api, Manifest

_OLDER = os.environ.get("KUBERNETES_VERSION") == "1.36"
POD_GROUP_VERSION = "v1alpha2" if _OLDER else "v1beta1"
_GATES = f"--feature-gates=GenericWorkload=true{',GangScheduling=true' if _OLDER else ''}"
NATIVE_GANGS = (_GATES, f"--runtime-config=scheduling.k8s.io/{POD_GROUP_VERSION}=true")
"""Options with which the API server serves PodGroups: alpha in Kubernetes 1.36; beta in 1.37, and off by default."""
POD_GROUP = f"PodGroup.{POD_GROUP_VERSION}.scheduling.k8s.io"
COSCHEDULING_POD_GROUP = "PodGroup.v1alpha1.scheduling.x-k8s.io"
COSCHEDULING_NAME = "coscheduling"


def build(name: str = "scheduler") -> Path:
    """The folder with kube-scheduler (`scheduler`), or with `coscheduling` and its CRDs. Built if necessary."""
    version = os.environ.get("KUBERNETES_VERSION") if name == "scheduler" else None
    return tools.built("go-tools.sh", name, *filter(None, [version]))


class Served(Protocol):
    """An API server: the folder for its files, and the kubeconfig of its administrator."""

    @property
    def folder(self) -> Path: ...

    @property
    def kubeconfig(self) -> Path: ...


class Scheduler:
    """Binds the pods of one `schedulerName`."""

    def __init__(
        self, control_plane: Served, program: Path, profile: Mapping[str, Any], options: tuple[str, ...] = ()
    ) -> None:
        self._program, self._options = program, options
        self._folder = control_plane.folder / program.name
        self._configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(control_plane.kubeconfig), "qps": 1000, "burst": 2000},
            "leaderElection": {"leaderElect": False},
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 1,
            "profiles": [profile],
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Does not wait for it: pods do. The calling thread must live as long as the process."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "configuration.yaml"
        file.write_text(json.dumps(self._configuration))
        # It needs no port: nothing asks for its health.
        options = (f"--config={file}", "--secure-port=0", *self._options)
        self._process = processes.start(self._program, *options, log=self._log)

    def stop(self) -> None:
        if self._process:
            processes.end(self._process)
        self._process = None

    def log(self, lines: int = 30) -> str:
        """The end of its log."""
        return processes.end_of(self._log, lines)

    @property
    def _log(self) -> Path:
        return self._folder / f"{self._program.name}.log"


def native(control_plane: Served) -> Scheduler:
    """The scheduler of Kubernetes, with gangs. The API server needs NATIVE_GANGS."""
    profile = {"schedulerName": "default-scheduler"}
    return Scheduler(control_plane, build() / "kube-scheduler", profile, (_GATES,))


def coscheduling(control_plane: Served, wait_seconds: int = 10) -> Scheduler:
    """The plugin coscheduling in a second scheduler, which pods name as COSCHEDULING_NAME; a member waits that long."""
    plugin = [{"name": "Coscheduling"}]
    profile = {
        "schedulerName": COSCHEDULING_NAME,
        "plugins": {
            "multiPoint": {"enabled": plugin},
            "queueSort": {"enabled": plugin, "disabled": [{"name": "*"}]},
        },
        "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": wait_seconds}}],
    }
    # A new node alone does not make it try a rejected gang again: kube-scheduler does so after this time, 5 minutes by
    # default. It looks every 30 seconds.
    options = ("--pod-max-in-unschedulable-pods-duration=1s",)
    return Scheduler(control_plane, build("coscheduling") / "coscheduling", profile, options)


def add_node(api: Api, name: str, labels: Mapping[str, str] = {}, **resources: str) -> None:
    """A ready Node that no kubelet runs; `resources` as in its status, with `_` for `/` in "nvidia.com_gpu"."""
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(labels)}})
    make_ready(api, name, **resources)


def make_ready(api: Api, name: str, **resources: str) -> None:
    """A Node that exists has these resources, as for `add_node`, and takes pods."""
    capacity = {"pods": "110", **{key.replace("_", "/"): value for key, value in resources.items()}}
    ready: Manifest = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    ready |= dict.fromkeys(("lastHeartbeatTime", "lastTransitionTime"), "2026-01-01T00:00:00Z")
    api.patch(
        "Node", None, name, {"status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}}, "status"
    )
    # The API server taints each new Node as not ready; a controller that does not run here would take that back.
    api.patch("Node", None, name, {"spec": {"taints": None}})
