"""The operator is replaced by a newer version and back, while jobs run, are suspended and have finished.

The previous version comes from this repository's history. Without it, as in a shallow clone, the test is skipped;
`tests/model/golden/test_statuses.py` covers statuses of earlier versions in any case.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from allranks.api.job import KIND
from support import live
from support.controlplane import ControlPlane, free_ports
from support.kubelet import Hand, Program
from support.live import eventually, job, phase

ROOT = Path(__file__).parents[2]
PREVIOUS = "cf5a79a5"
"""Commit of the previous version."""
SETTLED = {"running": "Running", "elastic": "Running", "suspended": "Suspended", "finished": "Succeeded"}


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the previous version."""
    return extracted(PREVIOUS, tmp_path_factory.mktemp("previous")) / "operator"


def extracted(commit: str, folder: Path) -> Path:
    """A folder with the package of a commit."""
    command = ["git", "-C", str(ROOT), "archive", commit, "operator"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history has no commit {commit}: {archive.stderr.decode().strip()}")
    folder.mkdir(exist_ok=True)
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


@contextlib.contextmanager
def operator(control_plane: ControlPlane, namespace: str, package: Path, log: Path) -> Iterator[None]:
    """The operator of this package as a process."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "allranks", "operator", f"--kubeconfig={control_plane.kubeconfig}", "--no-pools"]
    command += [f"--namespaces={namespace}", "--address=127.0.0.1", f"--port={port}"]
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


@pytest.mark.nightly
def test_jobs_continue_with_the_next_version_and_with_the_previous_one_again(
    control_plane: ControlPlane, namespace: str, previous: Path, tmp_path: Path
) -> None:
    api, now = control_plane.api, ROOT / "operator"
    hand = Hand(api, namespace, lambda: datetime.now(UTC), lambda _: datetime.now(UTC))

    def state() -> dict[str, Any]:
        jobs = {name: api.get(KIND, namespace, name)["status"] for name in SETTLED}
        kept = [
            pod["metadata"] for pod in api.list("Pod", namespace) if not pod["metadata"]["name"].startswith("suspended")
        ]
        pods = {metadata["uid"] for metadata in kept if "deletionTimestamp" not in metadata}
        return {"pods": pods} | {
            name: (status["phase"], status["attempt"], status["restarts"]) for name, status in jobs.items()
        }

    with live.kubelet(live.connection(control_plane), Program(seconds=None, stop_seconds=0.1), namespace=namespace):
        with operator(control_plane, namespace, previous, tmp_path / "first.log"):
            api.create(job("running"), namespace)
            api.create(job("finished"), namespace)
            api.create(job("suspended"), namespace)
            elastic = {"elastic": {"minReplicas": 1, "maxReplicas": 3}, "roles": {"worker": {"replicas": 2}}}
            api.create(job("elastic", framework="horovod", **elastic), namespace)
            eventually(lambda: phase(control_plane, namespace, "suspended") == "Running")
            api.patch(KIND, namespace, "suspended", {"spec": {"suspend": True}})
            eventually(lambda: phase(control_plane, namespace, "finished") == "Running")
            for pod in ("finished-worker-0-0", "finished-master-0-0"):
                hand.end(pod, 0)
            for name, wanted in SETTLED.items():
                eventually(lambda name=name, wanted=wanted: phase(control_plane, namespace, name) == wanted)
        before = state()
        for number, package in enumerate((now, previous)):
            with operator(control_plane, namespace, package, tmp_path / f"next-{number}.log"):
                # A new job shows that the operator serves the namespace.
                api.create(job(f"marker-{number}"), namespace)
                eventually(lambda number=number: phase(control_plane, namespace, f"marker-{number}") == "Running")
                api.delete(KIND, namespace, f"marker-{number}")
                eventually(lambda before=before: state() == before)
                # A restart is counted from the number that the other version stored.
                counted = api.get(KIND, namespace, "running")["status"]["restarts"]["disruptions"]
                [pod] = [p for p in api.list("Pod", namespace) if p["metadata"]["name"].startswith("running-worker")]
                api.delete("Pod", namespace, pod["metadata"]["name"])
                eventually(
                    lambda counted=counted: (
                        api.get(KIND, namespace, "running")["status"]["restarts"]["disruptions"] == counted + 1
                        and phase(control_plane, namespace, "running") == "Running"
                    )
                )
                api.patch(KIND, namespace, "suspended", {"spec": {"suspend": False}})
                eventually(lambda: phase(control_plane, namespace, "suspended") == "Running")
                api.patch(KIND, namespace, "suspended", {"spec": {"suspend": True}})
                eventually(lambda: phase(control_plane, namespace, "suspended") == "Suspended")
            before = state()
