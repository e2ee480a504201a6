"""Runs manifests through `allranks run` with the real frameworks, in a process of its own, and reads what it leaves."""

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TIMEOUT = 240


@dataclass
class Run:
    """One `allranks run`, under way or over."""

    process: subprocess.Popen[str]
    directory: Path
    lines: list[str] = field(default_factory=list)
    code: int | None = None

    def __post_init__(self) -> None:
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # People's output is on stderr, because stdout is for the status as JSON.
        with self.process.stderr as lines:
            for line in lines:
                self._queue.put(line)
        self._queue.put(None)

    def _next(self, deadline: float) -> str | None:
        try:
            line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            pytest.fail(f"no end in time:\n{self.output}")
        if line is not None:
            self.lines.append(line)
        return line

    def finish(self, timeout: float = TIMEOUT) -> Run:
        """Waits for the end; keeps what was printed and the exit status."""
        deadline = time.monotonic() + timeout
        while self._next(deadline) is not None:
            pass
        self.code = self.process.wait(timeout=10)
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
        """The final status, as `-o json` printed it to stdout's file."""
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
    """Starts `allranks run`; whatever still runs at the end of the test is ended."""
    runs: list[Run] = []

    def start(manifest: Path | str, *options: str, cwd: Path = ROOT) -> Run:
        directory = tmp_path / f"job-{len(runs)}"
        directory.mkdir()
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
            env=os.environ | {"PATH": path},
        )
        status.close()
        run = Run(process, directory)
        runs.append(run)
        return run

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGTERM)
            try:
                run.process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                run.process.kill()
                run.process.wait()
        run.process.wait()
        run._reader.join(timeout=10)
    for directory in tmp_path.glob("job-*"):
        shutil.rmtree(directory / "run" / "volumes", ignore_errors=True)


def processes_of(marker: str) -> dict[int, str]:
    """pid -> command line of every process that carries `marker` (`NAME=value`) in its environment."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if marker.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has ended meanwhile
    return found
