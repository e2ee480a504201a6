"""Measures restarts in pods: how long an order takes, and what supervisors cost that wait for orders. Prints JSON.

python bench/orders.py                           # jobs of 64 and of 1,000 pods, 10 restarts each
python bench/orders.py --pods 64 --rounds 50

A job of fake supervisors is connected to a frontend in a process of its own, as in the chart; the controller has the
real socket, token reviews, store and queue. Only the API server is fake, and the decision is trivial: when a program
has failed, all others are stopped; when all pods are down, all are started.

stop: from the message that a program failed to the order to stop, at each other pod.
start: from the message of the last pod that is down to the order to start, at each pod.
idle: memory and processor time of the frontend and the controller while all supervisors wait. Their processor time of a
restart does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import uvloop
from report_receiver import Counted, Session, YesMan, cached_pods, token

from allranks.core.facts.processes import Order
from allranks.operator.ports.report_auth import Reviews
from allranks.operator.ports.socket_server import SocketServer
from allranks.operator.timing import Clock, Timing
from allranks.operator.workqueue import JobQueue
from allranks.telemetry.processes import ProcessStore
from allranks.telemetry.server import PROCESS_PATH
from allranks.telemetry.store import ReportStore
from support.frontend_process import frontend

CLOCK = os.sysconf("SC_CLK_TCK")
JOB = ("bench", "job-0")


class Decisions:
    """The controller: a worker of the queue, and a trivial decision."""

    def __init__(self, pods: int) -> None:
        self.attempt, self.pods = 0, pods
        self.uids: list[str] = []
        self.queue = JobQueue(Timing(), Clock())
        self.queue.open(None)
        self.store = ProcessStore(lambda: datetime.now(UTC), self.queue.enqueue_pod_event)

    async def run(self) -> None:
        while True:
            key = await self.queue.get()
            self.queue.begin(key)
            began = time.perf_counter()
            self.store.order(key, self.decide())
            self.queue.set_cost(key, time.perf_counter() - began)
            self.queue.done(key)

    def decide(self) -> list[Order]:
        by_pod = self.store.snapshot(JOB, "uid-job-0", self.uids).by_pod
        if any(process.state == "Ended" and process.attempt == self.attempt for process in by_pod.values()):
            self.attempt += 1
        attempt = self.attempt
        if len(by_pod) == self.pods and all(process.attempt == attempt for process in by_pod.values()):
            env = {"ALLRANKS_ATTEMPT": str(attempt)}
            return [Order(uid, "Start", attempt, env=env) for uid, pod in by_pod.items() if pod.state == "Down"]
        return [Order(uid, "Stop", attempt) for uid, pod in by_pod.items() if pod.attempt < attempt]


async def serve(pods: int) -> None:
    """Run the controller and the frontend. Print the port and the frontend's process ID."""
    decisions = Decisions(pods)
    cache = cached_pods(1, pods)
    decisions.uids = [pod.uid for pod in cache.for_job(JOB, "uid-job-0")]
    manifests = {JOB: {"metadata": {"uid": "uid-job-0"}}}
    reviews = Reviews(YesMan(), cache, manifests.get, timing=Timing(), clock=Clock())  # type: ignore[arg-type]
    session = Session(ReportStore(lambda: datetime.now(UTC), lambda job: None), reviews)
    session.processes = decisions.store  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        server = SocketServer(f"{folder}/socket", Counted(session))
        await server.start()
        worker = asyncio.create_task(decisions.run())
        with frontend(server.path) as (process, ports):
            print(json.dumps({"port": ports["reports"], "frontend": process.pid}), flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        worker.cancel()
        await server.stop()


class Wire(asyncio.Protocol):
    """A connection of a supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor, self.busy, self.data = supervisor, False, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # transports of uvloop are no subclasses

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, end, body = self.data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0] or 0) if end else 1
        if end and len(body) >= length:
            self.busy, self.data = False, b""
            self.supervisor.answered(int(head[9:12]), json.loads(body))


class Supervisor:
    """Opens a connection for a new state while the poll on another one waits."""

    def __init__(self, fleet: Fleet, index: int) -> None:
        self.fleet, self.index = fleet, index
        self.state: dict[str, Any] = {"number": 0, "attempt": 0, "state": "Running", "started": 1.0, "last": None}
        self.wires: list[Wire] = []
        head = f"POST {PROCESS_PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token(0, index)}\r\n"
        self.head = f"{head}Content-Length: ".encode()

    def tell(self, **state: Any) -> None:
        self.state = {**self.state, **state, "number": self.state["number"] + 1}
        self.send()

    def send(self) -> None:
        self.wires = [wire for wire in self.wires if not wire.transport.is_closing()]
        wire = next((wire for wire in self.wires if not wire.busy), None)
        if wire is None:
            self.fleet.tasks.append(asyncio.create_task(self.connect()))
            return
        wire.busy = True
        body = json.dumps(self.state).encode()
        wire.transport.write(self.head + str(len(body)).encode() + b"\r\n\r\n" + body)

    async def connect(self) -> None:
        """Open a connection from an address of its own, as pods have one, and send the state."""
        address = (f"127.1.{self.index // 250}.{self.index % 250 + 1}", 0)
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(lambda: Wire(self), "127.0.0.1", self.fleet.port, local_addr=address)
        self.wires.append(wire)
        self.send()

    def answered(self, status: int, answer: dict[str, Any]) -> None:
        if status != 200:
            self.fleet.failures += 1
            asyncio.get_running_loop().call_later(1.0, self.send)
        elif answer["order"] is not None:
            self.fleet.ordered(self, answer)
        elif not any(wire.busy for wire in self.wires):
            self.send()


class Fleet:
    """All pods of the job."""

    def __init__(self, port: int, pods: int) -> None:
        self.port, self.supervisors = port, [Supervisor(self, index) for index in range(pods)]
        self.failures, self.attempt, self.sent_at = 0, 0, 0.0
        self.stops: list[float] = []
        self.starts: list[float] = []
        self.left: set[int] = set()
        self.over = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def connect(self) -> None:
        for supervisor in self.supervisors:
            await supervisor.connect()

    async def restart(self) -> None:
        """Let the program of one pod fail, and wait until all run again."""
        self.attempt += 1
        self.left = {supervisor.index for supervisor in self.supervisors}
        self.over.clear()
        failed = self.supervisors[self.attempt % len(self.supervisors)]
        self.sent_at = time.perf_counter()
        failed.tell(state="Ended", last={"attempt": self.attempt - 1, "code": 1, "ago": 0.0, "message": "x" * 500})
        await self.over.wait()

    def ordered(self, supervisor: Supervisor, answer: dict[str, Any]) -> None:
        now = time.perf_counter()
        if answer["order"] == "Stop" and supervisor.state["attempt"] < answer["attempt"]:
            self.stops.append(now - self.sent_at)
            self.left.discard(supervisor.index)
            if not self.left:
                self.sent_at = time.perf_counter()
                self.left = {supervisor.index for supervisor in self.supervisors}
            supervisor.tell(state="Down", attempt=answer["attempt"], started=None)
        elif answer["order"] == "Start" and supervisor.state["state"] == "Down":
            self.starts.append(now - self.sent_at)
            self.left.discard(supervisor.index)
            supervisor.tell(state="Running", started=0.0)
            if not self.left:
                self.over.set()


async def measure(address: dict[str, int], controller: int, pods: int, rounds: int, idle: float) -> dict[str, Any]:
    before = usage(address["frontend"]), usage(controller)
    fleet = Fleet(address["port"], pods)
    began = time.perf_counter()
    async with asyncio.timeout(600):
        await fleet.connect()
        await asyncio.sleep(2.0)
        waiting = usage(address["frontend"]), usage(controller)
        await asyncio.sleep(idle)
        idled = usage(address["frontend"]), usage(controller)
        began = time.perf_counter()
        for _ in range(rounds):
            await fleet.restart()
            await asyncio.sleep(1.1)  # the next failure is not in the same second
        restarted = usage(address["frontend"]), usage(controller)
    work = [(after[1] - first[1]) / rounds for first, after in zip(idled, restarted, strict=True)]
    share = [(after[1] - first[1]) / idle for first, after in zip(waiting, idled, strict=True)]
    return {
        "pods": pods,
        "rounds": rounds,
        "seconds_per_round": round((time.perf_counter() - began) / rounds - 1.1, 3),
        "stop": quantiles(fleet.stops),
        "start": quantiles(fleet.starts),
        "failures": fleet.failures,
        "frontend_processor_seconds_per_round": round(work[0], 3),
        "controller_processor_seconds_per_round": round(work[1], 3),
        "frontend_mb": round((idled[0][0] - before[0][0]) / 1e6, 1),
        "controller_mb": round((idled[1][0] - before[1][0]) / 1e6, 1),
        "frontend_processor": round(share[0], 4),
        "controller_processor": round(share[1], 4),
    }


def usage(pid: int) -> tuple[int, float]:
    """Return the memory in bytes, and the seconds of processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE"), (int(fields[11]) + int(fields[12])) / CLOCK


def quantiles(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": round(cuts[49], 4), "p99": round(cuts[98], 4), "max": round(max(seconds), 4)}


@contextlib.contextmanager
def receiver(pods: int) -> Iterator[tuple[dict[str, int], int]]:
    command = [sys.executable, __file__, "--serve", "--pods", str(pods)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield json.loads(process.stdout.readline()), process.pid
        process.stdin.write("\n")
        process.stdin.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, action="append", help="pods of the job (default: 64, and 1000)")
    parser.add_argument("--rounds", type=int, default=10, help="restarts (default 10)")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds in which all wait (default 30)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.pods[0]))
        return
    for pods in options.pods or [64, 1000]:
        with receiver(pods) as (address, controller):
            print(json.dumps(uvloop.run(measure(address, controller, pods, options.rounds, options.idle))), flush=True)


if __name__ == "__main__":
    main()
