"""Runs several ranks of one pod: forwards signals, ends the others when one fails, and reports which failed first.

Needs only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import NamedTuple

from mpi_rank import Failure, Stderr, format_report  # type: ignore[import-not-found]  # in the same directory
from watch import write_signal  # type: ignore[import-not-found]  # in the same directory

GRACE_SECONDS = 10
"""Longest time in which the other ranks of a pod end after one has failed."""


class _Rank(NamedTuple):
    number: int
    process: subprocess.Popen[bytes]
    stderr: Stderr | None
    """The stderr of the process; None if it has the pod's own, because it is alone."""
    reader: threading.Thread | None


def run(program: list[str], ranks: dict[int, dict[str, str]]) -> int:
    """Run the program once for each rank (rank -> its environment). Return the exit status of the first that fails,
    128 + n for signal n."""
    started: list[_Rank] = []
    received: list[int] = []

    def forward(number: int, frame: object) -> None:
        received.append(number)
        for rank in started:
            _send(rank.process, number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    for local, (number, environment) in enumerate(ranks.items()):
        limit_threads(environment)
        if "SLURM_PROCID" in environment:  # a job with compatibility: [Slurm]
            environment.update(SLURM_PROCID=str(number), SLURM_LOCALID=str(local))
        try:
            started.append(_start(number, program, environment, alone=len(ranks) == 1))
        except OSError as error:
            print(f"allranks: cannot start {program[0]}: {error.strerror}", file=sys.stderr)
            _end([rank.process for rank in started])
            return 127
        for arrived in list(received):  # while the process started
            _send(started[-1].process, arrived)
    failed = _wait(started)
    for rank in started:
        if rank.reader:
            rank.reader.join(GRACE_SECONDS if rank is not failed else 1)
    if failed is None:
        return 0
    if failed.stderr and not received:
        print(_report(failed), file=sys.stderr, flush=True)
    code = failed.process.returncode
    if code < 0 and not failed.stderr and not received:
        write_signal(-code)
    return code if code > 0 else 128 - code


def limit_threads(environment: dict[str, str]) -> None:
    """Set OMP_NUM_THREADS, unless it is set: each rank of a pod would start as many threads as its node has CPUs."""
    if "ALLRANKS_THREADS" in environment:
        environment.setdefault("OMP_NUM_THREADS", environment["ALLRANKS_THREADS"])


def _start(number: int, program: list[str], environment: dict[str, str], alone: bool) -> _Rank:
    if alone:
        return _Rank(number, subprocess.Popen(program, env=environment), None, None)
    ours, theirs = os.pipe()
    try:
        process = subprocess.Popen(program, env=environment, stderr=theirs)
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    stderr = Stderr(ours)

    def forward() -> None:
        while stderr.open:
            stderr.read()

    reader = threading.Thread(target=forward, daemon=True)
    reader.start()
    return _Rank(number, process, stderr, reader)


def _report(rank: _Rank) -> str:
    """Return the text that `read_rank_report` in frameworks/rank_report.py parses."""
    code, stderr = rank.process.returncode, rank.stderr
    assert stderr
    raised = stderr.raised() if code > 0 else None
    ago = time.monotonic() - raised if raised is not None else 0.0
    text: str = format_report(Failure("", rank.number, code, time.time() - ago, stderr.lines()))
    return text


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal. `Popen.send_signal` may reap the process, and `_wait` would miss its end."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _wait(ranks: list[_Rank]) -> _Rank | None:
    """Wait for all ranks. If a rank fails, end the others, which would hang, and return it."""
    running = {rank.process.pid: rank for rank in ranks}
    while running:
        pid, raw = os.wait()
        rank = running.pop(pid, None)
        if rank is None:
            continue  # an orphan: this process may be PID 1
        rank.process.returncode = os.waitstatus_to_exitcode(raw)
        if rank.process.returncode != 0:
            _end([other.process for other in running.values()])
            return rank
    return None


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
