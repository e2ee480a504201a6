"""`allranks exec`, `cp`, `port-forward`, `attach` and `debug` with real kubelets: the pod of a rank, by its number."""

from __future__ import annotations

import contextlib
import re
import signal
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from .command_line import allranks, output, started
from .jobs import Team, training

pytestmark = pytest.mark.nightly
PROGRAM = """
import http.server, os, pathlib, threading, time
folder = pathlib.Path("/tmp/served")
folder.mkdir()
(folder / "rank").write_text(os.environ["RANK"])
serve = http.server.ThreadingHTTPServer(
    ("127.0.0.1", 6006), lambda *a: http.server.SimpleHTTPRequestHandler(*a, directory=folder)
)
threading.Thread(target=serve.serve_forever, daemon=True).start()
print("hf_token is", os.environ["MY_TOKEN"], flush=True)
while not (folder / "stop").exists():
    print("rank", os.environ["RANK"], "is alive", flush=True)
    time.sleep(0.2)
"""


@pytest.fixture
def job(team: Team) -> str:
    """Two ranks that serve a page until their folder has a file `stop`."""
    command = ("torchrun", "--no-python", "python3", "-c", PROGRAM)
    env = [{"name": "MY_TOKEN", "value": "s3cr3t-v4lue"}]
    job = team.start(training("ranks", *command, roles={"master": {}, "worker": {"replicas": 1}}, env=env))
    for pod in ("ranks-master-0-0", "ranks-worker-0-0"):
        team.says(pod, "is alive")
    return job


@contextlib.contextmanager
def running(team: Team, command: str, *arguments: str) -> Iterator[Iterator[str]]:
    """The lines that a command prints until the end of the block."""
    process = started(team, command, *arguments)
    assert process.stdout
    try:
        yield iter(process.stdout.readline, "")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)


def test_exec_and_cp_reach_the_container_of_the_rank(team: Team, job: str, tmp_path: Path) -> None:
    assert output(team, "exec", job, "--rank", "1", "--", "cat", "/tmp/served/rank") == "1"
    assert output(team, "exec", job, "--", "cat", "/tmp/served/rank") == "0"
    done = allranks(team, "exec", job, "--rank", "1", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7, done.stderr
    done = allranks(team, "exec", job, "--rank", "1", "-i", "--", "tr", "a-z", "A-Z", input="penguins")
    assert done.stdout == "PENGUINS", done.stderr
    output(team, "cp", f"{job}:/tmp/served/rank", str(tmp_path / "rank"), "--rank", "1")
    assert (tmp_path / "rank").read_text() == "1"
    (tmp_path / "stop").write_text("")
    for rank in ("0", "1"):
        output(team, "cp", str(tmp_path / "stop"), f"{job}:/tmp/served/stop", "--rank", rank)
    team.completes(job)
    done = allranks(team, "exec", job, "--rank", "1", "--", "true")
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_of_the_rank_is_forwarded_and_its_output_attached(team: Team, job: str) -> None:
    with running(team, "port-forward", job, ":6006", "--rank", "1") as lines:
        found = re.search(r"127\.0\.0\.1:(\d+) -> 6006", next(lines))
        assert found
        with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/rank", timeout=300) as answer:
            assert answer.read() == b"1"
    with running(team, "attach", job, "--rank", "1") as lines:
        assert any(line == "rank 1 is alive\n" for line in lines)
    team.wait(f"dt/{job}", "--for=condition=Running")  # the commands ended nothing


def test_an_archive_for_a_bug_report_has_all_attempts_and_no_secret(team: Team, job: str, tmp_path: Path) -> None:
    kill = "import os, signal; os.kill(1, signal.SIGTERM)"
    team.run("ranks-worker-0-0", "python3", "-c", kill)
    team.attempt(job, 1)
    team.says("ranks-worker-0-1", "is alive")
    archive = tmp_path / "debug.tar.gz"
    output(team, "debug", job, "-o", str(archive))
    with tarfile.open(archive) as files:
        texts = {m.name.partition("/")[2]: files.extractfile(m) for m in files.getmembers() if m.isfile()}
        found = {name: stream.read().decode() for name, stream in texts.items() if stream}
    everything = "\n".join(found.values())
    assert "rank 1 is alive" in everything
    assert "s3cr3t-v4lue" not in everything
    assert "kind: DistributedTraining" in everything
    logs = sorted(name for name in found if "worker-0" in name and name.endswith(".log"))
    assert any("ranks-worker-0-1" in name for name in logs), sorted(found)
