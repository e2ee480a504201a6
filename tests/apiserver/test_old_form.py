"""Jobs that were stored before the API followed the Kubernetes conventions (`action: restart`) keep running.

They are created under the CRD of that version and run by its operator. Then the CRD and the operator are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.api.job import KIND
from support import live
from support.api import ApiError, path
from support.controlplane import ControlPlane, install
from support.kubelet import Program
from support.live import eventually, job, phase

from .conftest import DEFINITIONS
from .test_versions import ROOT, extracted, operator

LAST_OLD = "1ca16f4"
"""The last commit with the old form."""
TRAINING: dict[str, Any] = {
    "success": "all",
    "restart": {"scope": "group", "rules": [{"exitCodes": [3], "action": "restartUncounted"}]},
    "hang": {"timeoutSeconds": 600, "action": "fail"},
    "progress": {"stragglerFactor": 2.5},
    "scheduling": {"gang": "none"},
    "pytorch": {"backend": "gloo", "processesPerNode": "auto"},
}
MPI: dict[str, Any] = {
    "framework": "horovod",
    "horovod": {"controller": "mpi", "slotsPerWorker": "auto"},
    "roles": {"launcher": {"replicas": 1}, "worker": {"replicas": 2}},
}
JOBS = {"training": TRAINING, "mpi": MPI, "paused": {**TRAINING, "suspend": True}}


@pytest.fixture
def old_control_plane(programs: Path, tmp_path: Path) -> Iterator[ControlPlane]:
    """An API server with the old CRDs."""
    old = extracted(LAST_OLD, tmp_path / "old")
    cluster = ControlPlane(programs, tmp_path / "control-plane")
    try:
        cluster.start(sorted((old / "crds").glob("*.yaml")))
        for kind in ("Namespace", "ServiceAccount"):
            name = "team" if kind == "Namespace" else "default"
            manifest = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}
            eventually(lambda m=manifest, k=kind: _created(cluster, m, None if k == "Namespace" else "team"))
        yield cluster
    finally:
        cluster.stop()


def _created(cluster: ControlPlane, manifest: dict[str, Any], namespace: str | None) -> bool:
    try:
        cluster.api.create(manifest, namespace)
    except ApiError as error:
        return error.reason == "AlreadyExists"
    return True


@pytest.mark.nightly
def test_jobs_in_the_old_form_continue_under_the_new_CRD(old_control_plane: ControlPlane, tmp_path: Path) -> None:
    api, plane = old_control_plane.api, old_control_plane

    def restarts(name: str) -> dict[str, Any]:
        counts: dict[str, Any] = api.get(KIND, "team", name)["status"]["restarts"]
        return counts

    with live.kubelet(live.connection(plane), Program(seconds=None, stop_seconds=0.1), namespace="team"):
        with operator(plane, "team", tmp_path / "old" / "operator", tmp_path / "old.log"):
            for name, spec in JOBS.items():
                api.create(job(name, **spec), "team")
            for name in JOBS:
                eventually(lambda n=name: phase(plane, "team", n) == ("Suspended" if n == "paused" else "Running"))
        assert api.get(KIND, "team", "training")["status"]["times"]["state"] == "productive"

        install(api, DEFINITIONS)
        eventually(lambda: _refusal(plane), what="the new CRD is served")
        assert 'spec.hang.action: Unsupported value: "fail": supported values: "Restart"' in _refusal(plane)
        with operator(plane, "team", ROOT / "operator", tmp_path / "new.log"):
            # The new operator writes the status of jobs whose spec has the old form: a restart is counted.
            for name in ("training", "mpi"):
                before = restarts(name)["disruptions"]
                [pod] = [p for p in api.list("Pod", "team") if p["metadata"]["name"].startswith(f"{name}-worker-0")]
                api.delete("Pod", "team", pod["metadata"]["name"])
                eventually(lambda n=name, b=before: restarts(n)["disruptions"] == b + 1)
                eventually(lambda n=name: phase(plane, "team", n) == "Running")
            assert api.get(KIND, "team", "training")["status"]["times"]["category"] == "Productive"
            # Its users can still suspend, resume and label it.
            api.patch(KIND, "team", "paused", {"spec": {"suspend": False}})
            eventually(lambda: phase(plane, "team", "paused") == "Running")
            for name in ("training", "mpi"):
                api.patch(KIND, "team", name, {"spec": {"suspend": True}, "metadata": {"labels": {"a": "b"}}})
                eventually(lambda n=name: phase(plane, "team", n) == "Suspended")
        assert api.get(KIND, "team", "training")["spec"]["hang"]["action"] == "fail", "the stored form is unchanged"


def _refusal(plane: ControlPlane) -> str:
    """The API server's message about a new job in the old form; empty if it accepts the job."""
    try:
        plane.api.request("POST", f"{path(KIND, 'team')}?dryRun=All", job("new", **TRAINING))
    except ApiError as error:
        return error.message
    return ""
