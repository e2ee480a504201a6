"""The control plane of the tests: it keeps its data over restarts and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import controlplane
from support.api import ApiError
from support.controlplane import ControlPlane, free_ports

from .conftest import DEFINITIONS

TESTS = Path(__file__).parents[1]


@pytest.fixture
def own_parts(control_plane: ControlPlane) -> ControlPlane:
    """A control plane whose API server may be stopped."""
    if not isinstance(control_plane, ControlPlane):
        pytest.skip("a cluster of the user's is not ours to stop")
    return control_plane


def test_it_serves_jobs_and_a_version_that_clients_understand(control_plane: ControlPlane) -> None:
    done = control_plane.kubectl("version", "--output=json")
    version = json.loads(done.stdout)["serverVersion"]
    assert version["minor"].strip("+").isdigit(), done.stderr
    if wanted := os.environ.get("KUBERNETES_VERSION"):
        assert f"{version['major']}.{version['minor']}" == wanted
    for file in DEFINITIONS:
        assert control_plane.kubectl("get", file.stem).returncode == 0


def test_an_error_has_code_reason_and_message(control_plane: ControlPlane, namespace: str) -> None:
    with pytest.raises(ApiError, match='pods "missing" not found') as refused:
        control_plane.api.get("Pod", namespace, "missing")
    assert (refused.value.code, refused.value.reason) == (404, "NotFound")


def test_dependents_of_a_deleted_owner_are_garbage_collected(control_plane: ControlPlane, namespace: str) -> None:
    api = control_plane.api
    owner = api.create(_config("owner"), namespace)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    owned = _config("owned")
    owned["metadata"]["ownerReferences"] = [reference]
    api.create(owned, namespace)
    api.delete("ConfigMap", namespace, "owner")
    _wait_until(lambda: api.find("ConfigMap", namespace, "owned") is None)


@pytest.mark.nightly
def test_the_api_server_keeps_its_data_over_a_restart(own_parts: ControlPlane, namespace: str) -> None:
    own_parts.api.create(_config("kept"), namespace)
    for how in (signal.SIGTERM, signal.SIGKILL):
        own_parts.stop_api_server(how)
        with pytest.raises(OSError):  # noqa: PT011  refused or reset, as it comes
            own_parts.api.get("ConfigMap", namespace, "kept")
        own_parts.start_api_server()
        assert own_parts.api.get("ConfigMap", namespace, "kept")["data"] == {"a": "b"}


@pytest.mark.nightly
def test_a_test_run_that_is_killed_leaves_no_process(programs: Path, tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", _STARTS_ONE, str(programs), str(tmp_path)], cwd=TESTS, stdout=subprocess.PIPE, text=True
    )
    with run:
        assert run.stdout is not None
        pids = json.loads(run.stdout.readline())
        assert set(pids) == {"etcd", "kube-apiserver", "kube-controller-manager"}
        run.kill()
    _wait_until(lambda: not any(_is_there(pid) for pid in pids.values()))


_STARTS_ONE = """
import json, sys, time
from pathlib import Path
from support.controlplane import ControlPlane
control_plane = ControlPlane(Path(sys.argv[1]), Path(sys.argv[2]))
control_plane.start()
print(json.dumps(control_plane.pids), flush=True)
time.sleep(60)
"""


@pytest.mark.nightly
def test_it_tries_other_ports_when_one_is_in_use(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        taken = [somebody.getsockname()[1]]
        # First the port of the API server is in use, then that of etcd.
        tries = [[*free_ports(2), *taken], [*taken, *free_ports(2)], free_ports(3)]
        monkeypatch.setattr(controlplane, "free_ports", lambda count: tries.pop(0))
        control_plane = ControlPlane(programs, tmp_path)
        control_plane.start()
        pids = control_plane.pids
        assert control_plane.api.get("Namespace", None, "default")
        control_plane.stop()
        assert not any(_is_there(pid) for pid in pids.values())


def test_ports_are_distinct_and_below_the_ephemeral_range() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < 32_000


def _config(name: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}}


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        # A zombie is not running any more.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_until(there, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)
