"""Asks NCCL which collectives its ranks have launched, while the program itself reports no steps.

NCCL answers on a port of each of its processes (RAS, since 2.24; in JSON since 2.28.7, which is needed here) with the
state of all ranks. One process of a job asks: rank 0. It only reads, and the answer is bounded in time and size.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from typing import Any

from allranks.report.state import ATTEMPT, number_in
from allranks.report.transport import AttemptOver, Rejected, SendFailed, Transport

ADDRESS = "NCCL_RAS_ADDR"
PORT = 28028
INTERVAL_SECONDS = 30.0
CONNECT_SECONDS, ANSWER_SECONDS = 1.0, 12.0
"""NCCL waits up to 10 s for processes that do not answer."""
MOST_BYTES = 4 * 2**20
"""About 7,000 ranks in all communicators together."""
MOST_RANKS = 8
"""Named in a message; the others are counted."""
LONGEST_PAUSE = 300.0

_started = False


def start_watch() -> bool:
    """Start the thread in rank 0 of a job with `hang`. Return False in other processes."""
    global _started
    environment = os.environ
    url, token_file = environment.get("ALLRANKS_REPORT_URL"), environment.get("ALLRANKS_REPORT_TOKEN_FILE")
    if not url or not token_file or not environment.get("ALLRANKS_HANG_SECONDS") or _started:
        return False
    if "0" not in (environment.get(name) for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JAX_PROCESS_ID")):
        return False
    _started = True
    transport = Transport(url, token_file)
    threading.Thread(target=_watch, args=(transport, INTERVAL_SECONDS), name="allranks-nccl", daemon=True).start()
    return True


def _watch(transport: Transport, interval: float) -> None:
    pause = longer = interval
    while True:
        time.sleep(pause)
        pause = interval
        if _steps(interval):
            continue
        try:
            state = summarize(ask(os.environ.get(ADDRESS, "")), os.getpid())
            if state is not None:
                transport.post({"attempt": number_in(ATTEMPT), "nccl": state})
            else:  # probably a launcher, or a process that loads data: they have the variables of rank 0, too
                pause = longer = min(2 * longer, LONGEST_PAUSE)
        except (AttemptOver, Rejected):
            return
        except SendFailed as failed:
            pause = max(interval, transport.pause(failed, interval))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass  # NCCL is not in use, or not yet, or too old; or the answer is not what was documented


def _steps(interval: float) -> bool:
    """Return whether the program itself has reported a step since the last question."""
    from allranks import report

    stepped_at = report._client._state.stepped_at if report._client is not None else None
    return stepped_at is not None and time.monotonic() - stepped_at < interval


def ask(address: str = "") -> Any:
    """Return NCCL's answer. Raise OSError if no process listens, ValueError if the answer is not JSON or too large."""
    host, _, port = (address or f"localhost:{PORT}").rpartition(":")
    deadline = time.monotonic() + ANSWER_SECONDS
    with socket.create_connection((host.strip("[]") or "localhost", int(port)), CONNECT_SECONDS) as connection:
        # The answer to the first command is a line. One to an unknown command begins with ERROR, before NCCL 2.28.7.
        connection.sendall(b"SET FORMAT json\n")
        line, rest = _receive(connection, deadline, b"\n")
        if line.strip() != b"OK":
            raise ValueError(f"NCCL answers {line[:80]!r}")
        connection.sendall(b"STATUS\n")
        answer, _ = _receive(connection, deadline, None, rest)
    return json.loads(answer)


def _receive(connection: socket.socket, deadline: float, end: bytes | None, begun: bytes = b"") -> tuple[bytes, bytes]:
    """Return the bytes until `end`, and the bytes after it; without `end`, all until the connection is closed."""
    received = bytearray(begun)
    while end is None or end not in received:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("NCCL does not answer")
        connection.settimeout(left)
        chunk = connection.recv(65536)
        if not chunk:
            break
        received += chunk
        if len(received) > MOST_BYTES:
            raise ValueError(f"NCCL's answer is longer than {MOST_BYTES} bytes")
    head, _, tail = bytes(received).partition(end) if end else (bytes(received), b"", b"")
    return head, tail


def summarize(answer: Any, pid: int) -> dict[str, Any] | None:
    """Return the state in one small message: how many collectives all ranks have launched, and in the largest
    communicator whose ranks differ, who is behind. None if the process `pid` is not among them: with the network of the
    host, another job may have answered. None also for a single rank: NCCL counts no collectives of a group of one."""
    communicators = answer["communicators"]
    if not any(rank["pid"] == pid for communicator in communicators for rank in communicator["ranks"]):
        return None
    if all(communicator["size"] == 1 for communicator in communicators):
        return None
    ranks = [rank for communicator in communicators for rank in communicator["ranks"]]
    launched = sum(sum(rank["collective_counts"].values()) for rank in ranks)
    worst = max(communicators, key=lambda communicator: (_differs(communicator), communicator["size"]))
    counts = {rank["rank"]: rank["collective_counts"] for rank in worst["ranks"]}
    most = {name: max(count[name] for count in counts.values()) for name in next(iter(counts.values()), {})}
    uneven = [name for name in most if any(count[name] < most[name] for count in counts.values())]
    operation = uneven[0] if uneven else ""
    behind = sorted(rank for rank, count in counts.items() if operation and count[operation] < most[operation])
    missing = sorted(rank["rank"] for rank in worst["missing_ranks"])
    return {
        "launched": launched,
        "size": worst["size"],
        "operation": operation,
        "number": most[operation] if operation else 0,
        "behind": behind[:MOST_RANKS],
        "behindCount": len(behind),
        "missing": missing[:MOST_RANKS],
        "missingCount": len(missing),
    }


def _differs(communicator: Any) -> bool:
    ranks = communicator["ranks"]
    return bool(communicator["missing_ranks"]) or any(
        rank["collective_counts"] != ranks[0]["collective_counts"] for rank in ranks
    )
