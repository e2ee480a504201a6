"""The command `allranks ui` as a process, and a real run of this machine that it shows."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from allranks.ui.server import HOST
from support.builders import manifest
from support.live import eventually
from support.ui_server import UiServer

ALLRANKS = (sys.executable, "-m", "allranks")
PROGRAM = """
import pathlib, time
print("begins", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
print("ends", flush=True)
"""


@pytest.fixture
def started(tmp_path: Path):
    process = subprocess.Popen(
        [*ALLRANKS, "ui", "--no-browser", "--port", "0", "--kubeconfig", "none", "--path", "/runs/hello"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_it_prints_an_address_that_opens_the_page_and_ends_with_ctrl_c_while_somebody_looks(started):
    address = urlsplit(re.fullmatch(r"allranks ui: (http://\S+)\n", started.stdout.readline())[1])
    assert (address.hostname, address.path) == (HOST, "/runs/hello")
    viewer = http.client.HTTPConnection(HOST, address.port, timeout=60)
    viewer.request("GET", f"{address.path}?{address.query}")
    assert viewer.getresponse().read().count(b"/runs/hello") == 2
    token = address.query.removeprefix("token=")
    viewer.request("GET", "/api/v1/stream", headers={"Authorization": f"Bearer {token}"})
    response = viewer.getresponse()
    assert response.readline() == b"event: status\n"
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=300)
    assert started.returncode in (130, -signal.SIGINT)
    assert errors == "Ctrl-C ends it.\n"
    assert response.read().endswith(b"\n")
    viewer.close()


def test_a_port_in_use_is_one_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [*ALLRANKS, "ui", "--no-browser", "--port", str(port)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: --port {port}: cannot listen on 127.0.0.1:{port}: address already in use\n"


def test_a_namespace_and_all_namespaces_contradict_each_other():
    command = [*ALLRANKS, "ui", "-A", "-n", "team"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "specify either -n or -A, not both" in done.stderr


def test_a_run_is_shown_while_it_runs_and_when_it_has_ended(tmp_path):
    job = manifest("pytorch", {"worker": 2}, "hello", command=[sys.executable, "-c", PROGRAM])
    job["spec"]["workingDir"] = str(tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    run = subprocess.Popen(
        [*ALLRANKS, "run", "job.yaml"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        with UiServer(tmp_path / "none", tmp_path / "runs") as server:
            [item] = eventually(lambda: server.get("/api/v1/runs?phase=Running").json["items"], what="the run")
            [folder] = [path.name for path in (tmp_path / "runs" / "hello").iterdir() if not path.is_symlink()]
            assert item["metadata"]["name"] == "hello"
            path = f"/api/v1/runs/hello/{folder}/logs?rank=1&follow=true"
            with server.events(path) as events:
                lines = next(events)[1]
                assert [line["line"] for line in lines] == ["begins"]
                (tmp_path / "go").touch()
                rest = list(events)
            assert rest[-1] == ("end", {})
            assert [line["line"] for name, data in rest if name == "lines" for line in data] == ["ends"]
            eventually(lambda: server.get("/api/v1/runs?phase=Succeeded").json["items"], what="the end")
            assert "Succeeded" in server.get(f"/runs/hello/{folder}").text
    finally:
        run.terminate()
        output, _ = run.communicate(timeout=300)
    assert json.loads((tmp_path / "runs" / "hello" / folder / "job.json").read_text())["status"]["phase"], output
