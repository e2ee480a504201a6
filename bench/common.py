"""Shared by the benchmarks: jobs, watches, waiting, CPU time and memory of processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from allranks.kube.auth import Connection  # noqa: E402
from allranks.kube.client import Client  # noqa: E402
from support.controlplane import ControlPlane  # noqa: E402

Manifest = dict[str, Any]
TICKS = os.sysconf("SC_CLK_TCK")


def job(name: str, pods: int, **spec: Any) -> Manifest:
    """A PyTorch job with this number of pods."""
    roles = {"master": {"replicas": 1}, "worker": {"replicas": pods - 1}} if pods > 1 else {"worker": {"replicas": 1}}
    base = {"framework": "pytorch", "image": "example.org/x:1", "command": ["x"], "roles": roles}
    kind = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining"}
    return {**kind, "metadata": {"name": name}, "spec": base | spec}


def programs() -> Path:
    """The folder of etcd, API server and controller manager."""
    return go_tools("controlplane")


def go_tools(name: str) -> Path:
    """The folder of programs of tools/go-tools.sh, built on first use."""
    script = subprocess.run([ROOT / "tools" / "go-tools.sh", name], stdout=subprocess.PIPE, text=True, check=True)
    return Path(script.stdout.strip())


def connection(plane: ControlPlane) -> Connection:
    return Connection(plane.url, str(plane.ca_file), plane.admin_token)


async def make_namespace(client: Client, name: str) -> str:
    """Creates it with the default ServiceAccount, without which pods are rejected."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await client.create("/api/v1/namespaces", manifest)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    with contextlib.suppress(Exception):
        await client.create(f"/api/v1/namespaces/{name}/serviceaccounts", account)
    return name


@contextlib.asynccontextmanager
async def watching(
    client: Client, path: str, take: Callable[[list[bytes]], Awaitable[None]], **headers: str
) -> AsyncIterator[None]:
    """Passes the lines of a watch to `take`, from its first response to the end of the block. A busy API server closes
    watches of slow readers: the watch resumes from its last resourceVersion."""
    started = asyncio.Event()

    async def follow() -> None:
        parameters = {"watch": "1"}
        async with client.session(headers=client.connection.headers() | headers) as session:
            while True:
                async with session.get(client.connection.url + path, params=parameters) as answer:
                    answer.raise_for_status()
                    started.set()
                    rest = b""
                    async for chunk in answer.content.iter_any():
                        *lines, rest = (rest + chunk).split(b"\n")
                        if lines:
                            parameters["resourceVersion"] = version(lines[-1])
                            await take(lines)

    async with asyncio.TaskGroup() as group:  # a failed watch ends the block
        following = group.create_task(follow())
        await started.wait()
        try:
            yield
        finally:
            following.cancel()


def version(line: bytes) -> str:
    """The resourceVersion of a watch event. Raises RuntimeError for an error, for example an expired version."""
    event = json.loads(line)
    if event["type"] == "ERROR":
        raise RuntimeError(f"the watch ended: {event['object'].get('message')}")
    return str(event["object"]["metadata"]["resourceVersion"])


async def until(condition: Callable[[], Any], seconds: float = 300, every: float = 0.02) -> None:
    """Polls until the condition is true. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s")
        await asyncio.sleep(every)


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time so far, in user and kernel mode, with a resolution of 10 ms."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def memory(pid: int, what: str = "VmRSS") -> float:
    """Memory in MB (10^6 bytes). `VmHWM`: the peak."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines[what].split()[0]) * 1024 / 1e6


async def quiet(pids: Iterable[int], seconds: float = 120, share: float = 0.04) -> None:
    """Waits until these processes together use less than this share of a core for one second."""
    pids, deadline = list(pids), time.monotonic() + seconds
    while True:
        before, began = cpu_seconds(pids), time.monotonic()
        await asyncio.sleep(1.0)
        if (cpu_seconds(pids) - before) / (time.monotonic() - began) < share:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"still busy after {seconds:.0f} s")


@contextlib.contextmanager
def process(command: list[str], log: Path, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the command until the end of the block."""
    with log.open("ab") as out:
        running = subprocess.Popen(command, **{"stdout": out, "stderr": out, "cwd": ROOT, **how})
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(timeout=120)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait(timeout=120)


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """p50 and p99 by nearest rank."""
    ordered = sorted(values)
    return {f"p{rank}": round(ordered[math.ceil(len(ordered) * rank / 100) - 1], 1) for rank in (50, 99)}


def log_progress(text: str) -> None:
    """Prints progress to stderr."""
    if sys.stderr.isatty() or os.environ.get("BENCH_VERBOSE"):
        print(text, file=sys.stderr, flush=True)
