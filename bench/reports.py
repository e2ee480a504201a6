"""Measures the cost of reports: the ranks of a thousand jobs send to the real server, report store, token reviews and
core, with the receiver and senders in separate processes. Prints JSON. Only the API server is fake: it accepts all
tokens.

python bench/reports.py                          # 1,000 jobs of 8 ranks, each way of sending for 30 s
python bench/reports.py --jobs 100 --seconds 10
python bench/reports.py --frontend               # with the HTTP server in a process of its own, as in the chart

steady: each rank sends at the requested interval, like the library in a program that calls report() every second.
every second: each rank sends once per second, regardless of the requested interval.
hostile: steady, plus another address that sends forged tokens, noise and oversized bodies on the maximum number of
connections, each as fast as it gets responses.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from report_receiver import token

from allranks.telemetry.server import PATH

WAYS = ("steady", "every second", "hostile")
HOSTILE_CONNECTIONS = 300
CLOCK = os.sysconf("SC_CLK_TCK")


class Rank(asyncio.Protocol):
    """One persistent connection that reconnects when lost. Latency is measured from the due time of a message, even if
    it was sent late."""

    def __init__(self, fleet: Fleet, job: int, rank: int) -> None:
        self.fleet, self.job, self.rank = fleet, job, rank
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token(job, rank)}\r\n"
        self.head = f"{head}Content-Type: application/json\r\nContent-Length: ".encode()
        self.step = 0
        self.due = 0.0
        self.wire: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.wire = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.wire = None
        if not self.fleet.over:
            self.fleet.lost += 1

    def begin(self, at: float) -> None:
        self.due = at
        asyncio.get_running_loop().call_at(at, self.send)

    def send(self) -> None:
        if self.fleet.over:
            return
        if self.wire is None:
            self.fleet.connect(self)
            return
        self.step += 10
        body = json.dumps({
            "rank": self.rank, "localRank": 0, "step": self.step, "totalSteps": 10**6, "epoch": 1,
            "metrics": {"loss": 1 / self.step, "accuracy": 0.5, "lr": 1e-3}, "samplesPerSecond": 512.5,
            "stepSeconds": 0.1, "busySeconds": 0.09, "checkpoint": {"step": self.step // 100 * 100, "ago": 2.5},
            "idle": 0.05, "done": False,
        }).encode()  # fmt: skip
        self.wire.write(self.head + str(len(body)).encode() + b"\r\n\r\n" + body)

    def data_received(self, data: bytes) -> None:
        now = asyncio.get_running_loop().time()
        status = int(data[9:12])
        self.fleet.record(status, now - self.due)
        interval = self.fleet.interval or (json.loads(data.partition(b"\r\n\r\n")[2]) or {}).get("interval", 5.0)
        self.begin(max(now, self.due + interval))


class Fleet:
    """All ranks. `interval` None: the interval that the server requests."""

    def __init__(self, port: int, interval: float | None) -> None:
        self.port, self.interval = port, interval
        self.statuses: Counter[int] = Counter()
        self.latencies: list[float] = []
        self.lost = 0
        self.over = False
        self._connecting: set[asyncio.Task[None]] = set()

    def record(self, status: int, latency: float) -> None:
        self.statuses[status] += 1
        if status == 200:
            self.latencies.append(latency)

    def reset(self) -> None:
        self.statuses.clear()
        self.latencies.clear()

    def connect(self, rank: Rank) -> None:
        """Connects the rank, then sends."""
        task = asyncio.get_running_loop().create_task(self._connect(rank))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, rank: Rank) -> None:
        # An address may have 256 connections; each pod has its own address.
        source = f"127.1.{rank.job // 250}.{rank.job % 250 + 1}"
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: rank, "127.0.0.1", self.port, local_addr=(source, 0)
            )
        except OSError:
            rank.begin(asyncio.get_running_loop().time() + 1.0)
        else:
            rank.send()


async def attack(port: int, fleet: Fleet, tally: Counter[str]) -> None:
    """Sends as fast as responses arrive, and reconnects whenever the connection ends."""
    noise = random.Random(id(tally))
    while not fleet.over:
        kind = noise.choice(("forged", "noise", "too long", "half"))
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n"
        data = {
            "forged": f"{head}Authorization: Bearer {noise.random()}\r\nContent-Length: 0\r\n\r\n",
            "noise": "\x00" * 4000,
            "too long": f"{head}Content-Length: 1000000\r\n\r\n" + "x" * 9000,
            "half": head,
        }[kind]
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.2.0.1", 0))
            try:
                writer.write(data.encode())
                await reader.read(1000)
                tally[kind] += 1
            finally:
                writer.close()


def processor(pid: int) -> float:
    """CPU seconds used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK


def memory(pid: int) -> float:
    """Resident memory, in MB."""
    found = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return round(int(found[0].split()[1]) / 1024, 1)


def processors(pids: dict[str, int]) -> Counter[str]:
    return Counter({name: processor(pid) for name, pid in pids.items()})


def memories(pids: dict[str, int]) -> dict[str, float]:
    return {name: memory(pid) for name, pid in pids.items()}


@contextlib.contextmanager
def server_process(jobs: int, ranks: int, separate: bool) -> Iterator[tuple[dict[str, int], int, Callable[[], Any]]]:
    """Yields (process IDs by name, port, a function that returns its statistics)."""
    receiver = Path(__file__).with_name("report_receiver.py")
    command = [sys.executable, receiver, f"--jobs={jobs}", f"--ranks={ranks}", *(["--frontend"] if separate else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        stdin, stdout = process.stdin, process.stdout

        def ask() -> Any:
            stdin.write("\n")
            stdin.flush()
            return json.loads(stdout.readline())

        try:
            address = json.loads(stdout.readline())
            pids = {"operator": process.pid} | {name: address[name] for name in ("frontend",) if name in address}
            yield pids, address["port"], ask
        finally:
            stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


async def measure(way: str, jobs: int, ranks: int, seconds: float, separate: bool) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    tally = Counter[str]()
    with server_process(jobs, ranks, separate) as (pids, port, ask):
        before = memories(pids)
        fleet, spread = Fleet(port, 1.0 if way == "every second" else None), random.Random(1)
        crew = [Rank(fleet, job, rank) for job in range(jobs) for rank in range(ranks)]
        for rank in crew:
            rank.begin(loop.time() + spread.random() * 15.0)
        # Until every rank has reported and received the interval for this number of ranks.
        await asyncio.sleep(30.0)
        attackers = []
        if way == "hostile":
            attackers = [asyncio.create_task(attack(port, fleet, tally)) for _ in range(HOSTILE_CONNECTIONS)]
        fleet.reset()
        first, fleet.lost = ask(), 0
        after, used, own, began = memories(pids), processors(pids), time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - began
        used, own, end = processors(pids) - used, time.process_time() - own, memories(pids)
        statuses, latencies = dict(fleet.statuses), sorted(fleet.latencies)
        now = ask()
        fleet.over = True
        for task in attackers:
            task.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)
        for rank in crew:
            if rank.wire:
                rank.wire.close()
        await asyncio.sleep(0)
    taken = sum(now["answers"].values()) - sum(first["answers"].values())
    return {
        "way": way,
        "ranks": jobs * ranks,
        "requested_interval": now["interval"],
        "processor_share": {name: round(seconds / took, 3) for name, seconds in used.items()},
        "messages_per_second": round(taken / took),
        "milliseconds_per_message": round(1000 * used.total() / max(1, taken), 3),
        "answers_to_ranks": statuses,
        "latency_ms": {str(p): round(1000 * latencies[int(len(latencies) * p / 100)], 1) for p in (50, 99)},
        "memory_mb": {"empty": before, "all ranks reported": after, "end": end},
        "decisions_per_second": round((now["decisions"] - first["decisions"]) / took, 1),
        "status_writes_per_second": round((now["status_writes"] - first["status_writes"]) / took, 1),
        "reviews": now["reviews"],
        "ranks_kept": now["ranks_kept"],
        "connections_lost": fleet.lost,
        "senders_processor_share": round(own / took, 3),
        **({"hostile_requests": dict(tally)} if tally else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1000, help="jobs (default 1000)")
    parser.add_argument("--ranks", type=int, default=8, help="ranks per job (default 8)")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of each measurement (default 30)")
    parser.add_argument("--way", choices=WAYS, action="append", help="run only this mode; can be repeated")
    parser.add_argument("--frontend", action="store_true", help="run the HTTP server in a process of its own")
    given = parser.parse_args()
    for way in given.way or WAYS:
        measured = asyncio.run(measure(way, given.jobs, given.ranks, given.seconds, given.frontend))
        print(json.dumps(measured, indent=2), flush=True)


if __name__ == "__main__":
    main()
