"""The command `allranks ui` as a process, and a real run of this machine that it shows."""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from allranks.cli.commands import ui as command_module
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


BROWSER = """#!/bin/sh
# Opens the page of its argument as a browser does, and keeps its arguments.
printf '%s\\n' "$@" > {folder}/arguments
file=${{1#file://}}
stat -c %a "$file" "$(dirname "$file")" > {folder}/modes
sed 's/.*href="\\([^"]*\\)".*/\\1/' "$file" > {folder}/address
"""


def test_no_argument_of_a_process_has_the_token_and_the_private_page_is_removed_when_it_was_opened(tmp_path: Path):
    browser = tmp_path / "browser"
    browser.write_text(BROWSER.format(folder=tmp_path))
    browser.chmod(0o755)
    command = [*ALLRANKS, "ui", "--port", "0", "--kubeconfig", "none", "--path", "/runs/hello?a=1"]
    environment = {**os.environ, "BROWSER": str(browser), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout
            printed = re.fullmatch(r"allranks ui: (http://\S+)\n", process.stdout.readline())
            assert printed
            target = tmp_path / "address"
            eventually(lambda: target.exists() and target.read_text().endswith("\n"))
            address = html.unescape(target.read_text().strip())
            assert address == printed[1]
            argument = (tmp_path / "arguments").read_text().strip()
            assert argument.startswith("file://")
            assert address.partition("token=")[2] not in argument
            assert (tmp_path / "modes").read_text().split() == ["600", "700"]
            page = Path(argument.removeprefix("file://"))
            assert page.exists()
            place = urlsplit(address)
            local = address.replace(str(place.hostname), HOST)  # a browser resolves it by itself
            opened = urllib.request.Request(local, headers={"Host": place.netloc})
            with urllib.request.urlopen(opened, timeout=60) as response:
                assert response.status == 200
            eventually(lambda: not page.exists())
            process.send_signal(signal.SIGINT)
            process.wait(60)
            assert not page.parent.exists()
        finally:
            process.kill()


def test_a_browser_from_a_snap_is_not_started_because_it_cannot_read_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(command_module, "SNAPS", tmp_path)
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("xdg-open"))
    assert command_module._reads_private_files()
    (tmp_path / "firefox").touch()
    assert not command_module._reads_private_files()


def test_it_prints_an_address_that_opens_the_page_and_ends_with_ctrl_c_while_somebody_looks(started):
    address = urlsplit(re.fullmatch(r"allranks ui: (http://\S+)\n", started.stdout.readline())[1])
    assert re.fullmatch(r"allranks-ui-[0-9a-f]{16}\.localhost", address.hostname)
    assert address.path == "/runs/hello"
    viewer = http.client.HTTPConnection(HOST, address.port, timeout=60)
    viewer.request("GET", f"{address.path}?{address.query}", headers={"Host": address.netloc})
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
