"""Runs manifests with `allranks run` and the real frameworks, in a separate process, and reads its output."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TIMEOUT = 400


@dataclass
class Run:
    """One process of `allranks run`."""

    process: subprocess.Popen[str]
    directory: Path
    marker: str
    """`NAME=value` in the environment of all processes of this run."""
    lines: list[str] = field(default_factory=list)
    code: int | None = None

    def __post_init__(self) -> None:
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # With -o json, messages go to stderr and the status to stdout.
        with self.process.stderr as lines:
            for line in lines:
                self._queue.put(line)
        self._queue.put(None)

    def _next(self, deadline: float) -> str | None:
        try:
            line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            pytest.fail(f"timed out:\n{self.output}")
        if line is not None:
            self.lines.append(line)
        return line

    def finish(self, timeout: float = TIMEOUT) -> Run:
        """Waits for the end; keeps the output and the exit status."""
        deadline = time.monotonic() + timeout
        while self._next(deadline) is not None:
            pass
        self.code = self.process.wait(timeout)
        return self

    def wait_for(self, pattern: str, timeout: float = TIMEOUT) -> re.Match[str]:
        """Reads lines until one matches."""
        deadline = time.monotonic() + timeout
        while (line := self._next(deadline)) is not None:
            if found := re.search(pattern, line):
                return found
        pytest.fail(f"no line matches {pattern!r} in:\n{self.output}")

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def status(self) -> dict:
        """The final status, printed by `-o json`."""
        text = (self.directory / "status.json").read_text()
        return json.loads(text)["status"]

    def logs(self) -> dict[str, str]:
        """Pod name -> its whole log."""
        return {log.stem: log.read_text(errors="replace") for log in self.directory.glob("run/logs/*.log")}

    def accuracies(self) -> list[float]:
        """Each rank's own `test accuracy` of the last attempt."""
        found = re.findall(r"(?:rank \d+ of \d+|chief): test accuracy (\d\.\d+)", self.output)
        return [float(accuracy) for accuracy in found]


@pytest.fixture
def run_job(frameworks: Path, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts `allranks run`; ends it at the end of the test if it still runs."""
    runs: list[Run] = []

    def start(manifest: Path | str, *options: str, cwd: Path = ROOT) -> Run:
        directory = tmp_path / f"job-{len(runs)}"
        directory.mkdir()
        marker = f"TEST_RUN={uuid.uuid4().hex}"
        status = (directory / "status.json").open("w")
        path = f"{frameworks / 'bin'}:{os.environ['PATH']}"
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "allranks",
                "run",
                str(manifest),
                "-o",
                "json",
                "--run-dir",
                directory / "run",
                *options,
            ],
            stdout=status,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=cwd,
            env=os.environ | {"PATH": path} | dict([marker.split("=")]),
        )
        status.close()
        run = Run(process, directory, marker)
        runs.append(run)
        return run

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGTERM)
            try:
                run.process.wait(timeout=300)
            except subprocess.TimeoutExpired:
                run.process.kill()
                run.process.wait()
        run.process.wait()
        run._reader.join(timeout=10)
    for directory in tmp_path.glob("job-*"):
        shutil.rmtree(directory / "run" / "volumes", ignore_errors=True)


def processes_of(*variables: str) -> dict[int, str]:
    """pid -> command line of every process with all of these variables (`NAME=value`) in its environment."""
    found, wanted = {}, {variable.encode() for variable in variables}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # the process has ended
    return found
