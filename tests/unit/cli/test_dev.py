"""`allranks dev`: a real run that restarts when its files change."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from watchfiles import Change

from allranks.cli.file_changes import source_filter
from allranks.cli.main import cli

JOB = {
    "apiVersion": "allranks.dev/v1alpha1",
    "kind": "DistributedTraining",
    "metadata": {"name": "loop"},
    "spec": {
        "framework": "spmd",
        "image": "train:1",
        "command": [sys.executable, "train.py"],
        "roles": {"worker": {"replicas": 2}},
    },
}

PROGRAM = """\
import os, sys, time
print("version {} got", sys.argv[1:], "process", os.getpid(), flush=True)
time.sleep(600)
"""


class Dev:
    """`allranks dev` in the background."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self._queue: queue.Queue[str] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "allranks", "dev", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        threading.Thread(target=self._read, daemon=True).start()

    def until(self, pattern: str, seconds: float = 300) -> str:
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {pattern!r} in {self.lines}") from None
            if re.search(pattern, line):
                return line

    def save(self, name: str, text: str) -> None:
        """As editors do: a new file takes the place of the old one."""
        new = self.folder / f".{name}.swp"
        new.write_text(text)
        new.replace(self.folder / name)

    def end(self, number: int = signal.SIGINT) -> int:
        """The exit status. No rank that printed its process ID is left."""
        self.process.send_signal(number)
        status = self.process.wait(120)
        ranks = [int(found[1]) for line in self.lines if (found := re.search(r"process (\d+)", line))]
        assert ranks
        assert not [rank for rank in ranks if Path(f"/proc/{rank}").exists()]
        return status

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            self._queue.put(self.lines[-1])
        self.process.stdout.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    (tmp_path / "train.py").write_text(PROGRAM.format(1))
    return tmp_path


@pytest.fixture
def dev(folder: Path) -> Iterator[Dev]:
    made = Dev(folder, "job.yaml", "--", "--lr", "0.1")
    yield made
    if made.process.poll() is None:
        made.process.kill()
    made.process.wait()


def test_a_changed_file_restarts_the_ranks_with_the_new_code_and_the_same_arguments(dev: Dev):
    dev.until(r"version 1 got \['--lr', '0.1'\]")
    dev.save("train.py", PROGRAM.format(2))
    assert dev.until("changed: ").startswith("--- train.py changed: restarting (edit 1)")
    dev.until(r"version 2 got \['--lr', '0.1'\]")
    dev.save("train.py", "this is an error\n")
    dev.until(r"restarting \(edit 2\)")
    dev.until(r"failed with exit code 1 .*: the ranks wait for other code until ..:..:.. UTC \(allranks dev\)")
    dev.save("train.py", PROGRAM.format(4))
    dev.until("version 4")
    dev.save("job.yaml", yaml.safe_dump(JOB) + "# other\n")
    dev.until(r"job.yaml changed: restarting \(run 2\)")
    dev.until("version 4")
    dev.save("train.py", "print('version 5', flush=True)\n")
    dev.until("version 5")
    dev.until("the run has ended; waiting for a change")
    dev.save("train.py", "print('version 6', flush=True)\n")
    dev.until(r"train.py changed: restarting \(run 3\)")
    dev.until("version 6")
    assert dev.end() == 130


@pytest.mark.skipif(sys.platform != "linux", reason="a supervisor adopts orphans, which only Linux allows")
def test_the_ranks_of_a_script_restart_in_their_pods(folder: Path):
    dev = Dev(folder, "train.py", "--framework", "spmd")
    dev.until("version 1")
    dev.save("train.py", PROGRAM.format(2))
    dev.until("on request: a new attempt begins: the ranks restart in their pods")
    dev.until("version 2")
    assert dev.end() == 130


def test_a_job_whose_code_is_copied_is_started_again(folder: Path):
    dev = Dev(folder, "job.yaml", "--code", ".")
    dev.until("version 1")
    dev.save("train.py", PROGRAM.format(2))
    dev.until(r"train.py changed: restarting \(run 2\)")
    dev.until("version 2")
    assert dev.end() == 130


def test_kill_9_of_the_command_ends_the_ranks(dev: Dev):
    rank = int(re.search(r"process (\d+)", dev.until("version 1"))[1])
    dev.process.kill()
    deadline = time.monotonic() + 120
    while Path(f"/proc/{rank}").exists():
        assert time.monotonic() < deadline, "a rank outlived the command"
        time.sleep(0.05)


def test_sigterm_ends_the_ranks(dev: Dev):
    dev.until("version 1")
    assert dev.end(signal.SIGTERM) == 143


@pytest.mark.parametrize("path", ["train.py", "configs/a.yaml", "pyproject.toml", "src/pkg/model.py"])
def test_sources_are_watched(path, tmp_path):
    assert source_filter()(Change.modified, str(tmp_path / path))


@pytest.mark.parametrize(
    "path", ["runs/loop/1/job.json", ".git/x.py", "__pycache__/a.py", ".venv/lib/a.py", "data.bin", "train.py~"]
)
def test_caches_environments_and_runs_are_not_watched(path, tmp_path):
    assert not source_filter()(Change.modified, str(tmp_path / path))


def test_without_watchfiles_the_command_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    result = CliRunner().invoke(cli, ["dev", "train.py"])
    assert result.exit_code == 1
    assert "allranks dev needs the Python package watchfiles, which is not installed" in result.output
