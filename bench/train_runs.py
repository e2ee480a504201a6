"""Starts a program of train_programs/ with each launch method of bench/train.py, and controls when its ranks train."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

PROGRAMS = Path(__file__).parent / "train_programs"
SECONDS = 120
"""Timeout of a start, an order and an exit."""
Way = Literal["bare", "allranks", "reports", "one"]
Command = tuple[list[str], dict[str, str]]
"""Arguments and additional environment variables."""


@dataclass(frozen=True)
class Framework:
    name: str
    title: str
    program: str
    launcher: str
    """The launcher without allranks, as shown in the tables."""
    needs: str
    """The command that must be in PATH."""
    polls: bool = False
    """Waiting ranks use CPU, so they are stopped when it is not their turn."""


FRAMEWORKS = (
    Framework("pytorch", "PyTorch DDP", "ddp.py", "torchrun", "torchrun"),
    Framework("tensorflow", "TensorFlow MultiWorkerMirrored", "mirrored.py", "TF_CONFIG by hand", "python3"),
    Framework("horovod", "Horovod with PyTorch", "horovod_torch.py", "horovodrun", "horovodrun", polls=True),
    Framework("jax", "JAX data parallel", "jax_data_parallel.py", "JAX_PROCESS_ID by hand", "python3"),
)

UNMEASURED = {
    "ray": "Ray itself starts the ranks, with and without allranks",
    "mpi": "the program communicates by itself, whatever starts it",
    "spmd": "the program communicates by itself, whatever starts it",
}
"""Frameworks without a benchmark, and why."""


class Failed(Exception):
    """A program ended or timed out without an answer; the text is its output."""


class Training:
    """Ranks that train on order. `first`: seconds from the start of the command to rank 0's first line and to the
    end of its first step, and the samples per step."""

    def __init__(self, title: str, folder: Path, began: float, processes: list[subprocess.Popen[bytes]]) -> None:
        self._title, self._folder, self._processes, self._orders = title, folder, processes, 0
        first = self._answer()
        self.first = {"started": first["began"] - began, "stepped": first["first_step"] - began}
        self.first["samples"] = first["samples"]

    def do(self, kind: Literal["together", "alone", "saves"], count: int) -> Any:
        """Returns the seconds of each step, or the result of `time_saves`."""
        self._order(kind, count)
        return self._answer()

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for path in self._folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.stem), number)

    def end(self) -> None:
        self._order("end", 0)
        deadline = time.monotonic() + SECONDS
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        if any(process.returncode != 0 for process in self._processes):
            raise self._failed()

    def _order(self, kind: str, count: int) -> None:
        order = self._folder / f"{self._orders}.order"
        order.with_suffix(".new").write_text(f"{kind} {count}")
        order.with_suffix(".new").rename(order)
        self._orders += 1

    def _answer(self) -> Any:
        answer = self._folder / f"{self._orders}.answer"
        deadline = time.monotonic() + SECONDS
        while not answer.exists():
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise self._failed()
            time.sleep(0.02)
        return json.loads(answer.read_text())

    def _failed(self) -> Failed:
        logs = "".join(log.read_text(errors="replace") for log in sorted(self._folder.glob("*.log")))
        return Failed(f"{self._title}:\n{logs}")


@contextlib.contextmanager
def training(framework: Framework, way: Way, arguments: tuple[str, ...], folder: Path) -> Iterator[Training]:
    """Runs the framework's program, after its first step, until the block ends."""
    folder.mkdir()
    program = [str(PROGRAMS / framework.program), str(folder), *arguments]
    commands = bare(framework, program) if way == "bare" else [under_allranks(framework, way, program, folder)]
    with contextlib.ExitStack() as stack:
        began = time.time()
        processes = [stack.enter_context(started(command, folder, number)) for number, command in enumerate(commands)]
        ranks = Training(f"{framework.title}, {way}", folder, began, processes)
        try:
            yield ranks
        finally:
            ranks.go_on()
        ranks.end()


def bare(framework: Framework, program: list[str]) -> list[Command]:
    """Two ranks, started as by hand."""
    if framework.name == "pytorch":
        return [(["torchrun", "--standalone", "--nproc-per-node=2", *program], {})]
    if framework.name == "horovod":
        return [(["horovodrun", "-np", "2", "--gloo", "python3", *program], {})]
    if framework.name == "jax":
        common = {"JAX_COORDINATOR_ADDRESS": f"localhost:{free_ports(1)[0]}", "JAX_NUM_PROCESSES": "2"}
        return [(["python3", *program], common | {"JAX_PROCESS_ID": str(rank)}) for rank in range(2)]
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    tasks = [{"cluster": cluster, "task": {"type": "worker", "index": index}} for index in range(2)]
    return [(["python3", *program], {"TF_CONFIG": json.dumps(task)}) for task in tasks]


def free_ports(count: int) -> list[int]:
    """Ports that are free at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("localhost", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def under_allranks(framework: Framework, way: Way, program: list[str], folder: Path) -> Command:
    (folder / "job.yaml").write_text(json.dumps(job(framework, way, program)))  # JSON is YAML
    return ([sys.executable, "-m", "allranks", "run", str(folder / "job.yaml"), "--run-dir", str(folder / "run")], {})


def job(framework: Framework, way: Way, program: list[str]) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "framework": framework.name,
        "image": "none",
        "command": ["torchrun" if framework.name == "pytorch" else "python3", *program],
        "roles": {"worker": {"replicas": 1 if way == "one" else 2}},
        "restart": {"maxRestarts": 0},
    }
    if way == "reports":
        spec["progress"] = {}
    return {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "metadata": {"name": f"{framework.name}-{way}"},
        "spec": spec,
    }


@contextlib.contextmanager
def started(command: Command, folder: Path, number: int) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the command in its own process group until the block ends. Each rank computes with one thread."""
    arguments, variables = command
    common = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with (folder / f"{number}.log").open("wb") as log:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=os.environ | common | variables,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """Ends the leader of a process group: SIGTERM, on which launchers end their ranks, and SIGKILL after 40 s."""
    for ending, seconds in ((signal.SIGTERM, 40), (signal.SIGKILL, 10)):
        if process.poll() is None:
            os.killpg(process.pid, ending)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
