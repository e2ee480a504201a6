"""A fake of NCCL's RAS service: NCCL itself needs GPUs. It speaks the protocol of NCCL 2.30
(`src/ras/client_support.cc`) and answers in the form of the sample output in NVIDIA's user guide (RAS, JSON
output)."""

from __future__ import annotations

import json
import os
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def rank(number: int, counts: dict[str, int], pid: int = 0) -> dict[str, Any]:
    return {
        "rank": number,
        "host": "172.16.64.245",
        "pid": pid or 1524344 + number,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
        },
        "collective_counts": {name: counts.get(name, 0) for name in OPERATIONS},
    }


def missing(number: int) -> dict[str, Any]:
    of = rank(number, {})
    named = {name: of[name] for name in ("rank", "host", "pid", "cuda_dev", "nvml_dev")}
    return {**named, "status": {"unresponsive": True, "considered_dead": False}}


def communicator(ranks: list[dict[str, Any]], absent: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    absent = absent or []
    return {
        "hash": "0xae94423cfbb2ef4a",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(ranks) + len(absent),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(absent),
        "ranks": ranks,
        "missing_ranks": absent,
    }


def answer(*communicators: dict[str, Any]) -> dict[str, Any]:
    return {
        "nccl_version": "2.29.1",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2025-12-19 13:06:53",
        "communicators_count": len(communicators),
        "communicators": list(communicators),
        "ras": {"collection_time_sec": 0.000, "timeouts_count": 0},
    }


def all_reduces(*counts: int, pid: int = 0) -> dict[str, Any]:
    """One communicator whose ranks have launched so many AllReduce; rank 0 is the process `pid`, or this one."""
    ranks = [rank(number, {"AllReduce": count}) for number, count in enumerate(counts)]
    ranks[0]["pid"] = pid or os.getpid()
    return answer(communicator(ranks))


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, FakeRas)
        for line in self.rfile:
            server.commands.append(line.decode().strip())
            words = line.decode().strip().lower()
            if words == "status":
                if server.silent:
                    server.ended.wait(60)
                else:
                    self.wfile.write(server.text)
                return  # NCCL closes the connection after a status
            accepted = words.startswith("set format json") and server.json
            self.wfile.write(b"OK\n" if accepted else f"ERROR: Unknown command {words}\n".encode())


class FakeRas(socketserver.ThreadingTCPServer):
    """Answers every connection with `content`; without `json` like NCCL before 2.28.7; `silent`: never."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, content: dict[str, Any], speaks_json: bool = True, silent: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content, self.json, self.silent = content, speaks_json, silent
        self.commands: list[str] = []
        self.ended = threading.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def text(self) -> bytes:
        return (json.dumps(self.content, indent=2) + "\n").encode()


@contextmanager
def fake_ras(content: dict[str, Any], **kind: Any) -> Iterator[FakeRas]:
    server = FakeRas(content, **kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
