"""Access to a Ray cluster: the token of the job protects the ports of the head, and Ray's dashboard."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from allranks.pod_bundle import HELPERS
from frameworks.examples.test_ray_cluster import TIMEOUT, manifest
from frameworks.train.launch import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]


def test_strangers_are_refused_by_the_cluster(run_job, frameworks: Path, tmp_path: Path) -> None:
    """Another user of this machine can reach the ports, but does not have the token."""
    program = (
        "import os, time, ray\n\nray.init()\nprint('at', os.environ['RAY_ADDRESS'], flush=True)\ntime.sleep(600)\n"
    )
    run = run_job(manifest(tmp_path, program, workers=0))
    address = run.wait_for(r"at (127\S+)", TIMEOUT)[1]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "that-of-somebody-else"}
    command = [frameworks / "bin" / "python", "-c", f"import ray; ray.init({address!r}); print('admitted')"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd=tmp_path)
    assert done.returncode != 0
    assert "admitted" not in done.stdout
    assert re.search("authentic", done.stderr, re.IGNORECASE), done.stderr


DASHBOARD = """
import json, os, urllib.error, urllib.request

def status(path, token=None):
    request = urllib.request.Request(f"http://{os.environ['AT']}{path}")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        return urllib.request.urlopen(request, timeout=300).status
    except urllib.error.HTTPError as error:
        return error.code

token = open(os.environ["RAY_AUTH_TOKEN_PATH"]).read().strip()
nodes = "/nodes?view=summary"
print(json.dumps([status("/"), status(nodes), status(nodes, "that-of-somebody-else"), status(nodes, token)]))
"""


def test_the_dashboard_of_a_head_in_a_pod_shows_the_cluster_to_who_has_the_token(
    frameworks: Path, tmp_path: Path
) -> None:
    """`allranks run` starts no dashboard, so the head's helper is started as its pod starts it, without containers.
    `kubectl port-forward` connects to the port on the loopback address of the pod."""
    [gcs, dashboard, client] = free_ports(3)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.connect(("192.0.2.1", 9))  # sends nothing
        address = found.getsockname()[0]
    (tmp_path / "secret").write_text("of-the-job-" * 4)
    (tmp_path / "program.py").write_text(DASHBOARD)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "ALLRANKS_"))}
    env = {
        "PATH": f"{frameworks / 'bin'}:{os.environ['PATH']}",
        "RAY_ADDRESS": f"{address}:{gcs}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(tmp_path / "secret"),
        "ALLRANKS_RAY_DASHBOARD_PORT": str(dashboard),
        "ALLRANKS_RAY_CLIENT_PORT": str(client),
        "ALLRANKS_RAY_CPUS": "1",
        "AT": f"127.0.0.1:{dashboard}",
    }
    command = [sys.executable, HELPERS / "ray_node.py", "head", "--", "python3", tmp_path / "program.py"]
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as short:  # a socket's path has at most 107 bytes
        env = ours | env | {"RAY_TMPDIR": short}
        pipe = subprocess.PIPE
        head = subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        try:
            output, errors = head.communicate(timeout=TIMEOUT)
        finally:
            end_session(head)
    assert (head.returncode, output) == (0, "[200, 401, 403, 200]\n"), errors


def end_session(leader: subprocess.Popen[str]) -> None:
    """Ends all processes that a process has started, as the end of a pod's first process does.

    Ray's agents overwrite their environment, so `processes_of` does not find them."""
    while running := session_of(leader.pid):
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    leader.wait()


def session_of(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            state, _, _, session = entry.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(entry.parent.name))
    return found
