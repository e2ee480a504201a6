"""Starts the programs as ranks, as in their README, and reads their output."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[3]
# In the environment of all processes of a test, in any session or process group.
MARKER = "ALLRANKS_TEST_MARKER"
# A rank takes 5 s to import its framework on an idle machine, and several times as long on a busy one.
TIMEOUT = 300.0


@dataclass
class Rank:
    """A process and its output, including stderr."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def text(self) -> str:
        """All output so far, without the rank prefixes of some launchers."""
        return re.sub(r"(?m)^\[.*?\](<std(out|err)>)?:", "", self.output.read_text(errors="replace"))

    def wait_for(self, pattern: str, within: float = TIMEOUT) -> re.Match[str]:
        """Waits for the first match in the output."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            match = re.search(pattern, self.text)
            if match:
                return match
            assert not ended, f"no {pattern!r} in:\n{self.text}"
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} within {within} s in:\n{self.text}")

    def exit_code(self, within: float = TIMEOUT) -> int:
        """Waits for the exit status of the process."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within} s:\n{self.text}") from None


@dataclass
class Launcher:
    """All processes of one test."""

    frameworks: Path
    folder: Path
    ranks: list[Rank] = field(default_factory=list)
    marker: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, command: Sequence[str | Path], environment: dict[str, str] | None = None) -> Rank:
        """Run a command of the frameworks' environment in its own session."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("ALLRANKS_", "PYTHON"))}
        path = f"{self.frameworks / 'bin'}:{ours['PATH']}"
        output = self.folder / f"output-{len(self.ranks):02d}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [str(self.frameworks / "bin" / command[0]), *map(str, command[1:])],
                env=ours | {"PATH": path, MARKER: self.marker} | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.ranks.append(Rank(process, output))
        return self.ranks[-1]

    def alive(self, **environment: str) -> list[int]:
        """All processes of this test, including descendants, with these variables."""
        wanted = {f"{name}={value}".encode() for name, value in {MARKER: self.marker, **environment}.items()}
        processes = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        return [process for process in processes if wanted <= environment_of(process)]

    def end_all(self) -> None:
        """Kill all processes that are left, and wait for their end."""
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            for pid in self.alive():
                send(pid, signal.SIGKILL)
            if not self.alive():
                break
            time.sleep(0.05)
        for rank in self.ranks:
            rank.process.wait(300)


def environment_of(pid: int) -> set[bytes]:
    """The initial environment of a process; empty if it has ended."""
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def free_ports(count: int) -> list[int]:
    """Free ports below the ephemeral range (from 32768), so that no outgoing connection gets them."""
    found: list[int] = []
    for port in random.sample(range(15_000, 32_000), 1000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            break
    return found


@dataclass
class World:
    """A program with two ranks, each with its own checkpoint directory."""

    launcher: Launcher
    program: str

    def start(self, *options: str) -> list[Rank]:
        """Start both ranks; rank 0 is first in the list."""
        raise NotImplementedError

    def command(self, rank: int, options: Sequence[str]) -> list[str | Path]:
        """The command of a rank."""
        return [ROOT / "train" / self.program, "--checkpoint-dir", self.checkpoints(rank), *options]

    def checkpoints(self, rank: int = 0) -> Path:
        """The checkpoint directory of a rank."""
        return self.launcher.folder / f"checkpoints-{rank}"


class PlainPyTorch(World):
    """Two processes with the variables that PyTorch itself reads."""

    def start(self, *options: str) -> list[Rank]:
        port = free_ports(1)[0]
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return [
            self.launcher.start(["python", *self.command(rank, options)], {"RANK": str(rank)} | common)
            for rank in range(2)
        ]


class TorchRun(World):
    """Two torchrun agents, as on two nodes, configured by their environment."""

    def start(self, *options: str) -> list[Rank]:
        port = free_ports(1)[0]
        common = {
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "1",
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": str(port),
        }
        return [
            self.launcher.start(["torchrun", *self.command(rank, options)], {"PET_NODE_RANK": str(rank)} | common)
            for rank in range(2)
        ]


class TensorFlow(World):
    """Two tasks of a TF_CONFIG: two workers, or a chief and a worker."""

    first = ("worker", 0)
    second = ("worker", 1)

    def start(self, *options: str) -> list[Rank]:
        cluster: dict[str, list[str]] = {}
        for (kind, _), port in zip((self.first, self.second), free_ports(2), strict=True):
            cluster.setdefault(kind, []).append(f"127.0.0.1:{port}")
        return [
            self.launcher.start(["python", *self.command(rank, options)], tf_config(cluster, *task))
            for rank, task in enumerate((self.first, self.second))
        ]


class TensorFlowWithChief(TensorFlow):
    """Rank 0 is the chief."""

    first = ("chief", 0)
    second = ("worker", 0)


def tf_config(cluster: dict[str, list[str]], kind: str, index: int) -> dict[str, str]:
    """TF_CONFIG of one task."""
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


class Horovod(World):
    """Two processes, and the rendezvous that horovodrun would run, so that each process has its own exit code."""

    def start(self, *options: str) -> list[Rank]:
        rendezvous = self.launcher.start(["python", Path(__file__).with_name("rendezvous.py"), "2"])
        port = rendezvous.wait_for(r"port (\d+)")[1]
        common = {
            "HOROVOD_SIZE": "2",
            "HOROVOD_LOCAL_SIZE": "2",
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
            "HOROVOD_GLOO_IFACE": "lo",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }
        return [
            self.launcher.start(
                ["python", *self.command(rank, options)],
                {"HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(rank)} | common,
            )
            for rank in range(2)
        ]
