"""Reads which rank failed first from the report that the helpers in pods print at the end of the log."""

from __future__ import annotations

import contextlib
import re
from datetime import datetime

from allranks.frameworks.base import RootCause

_REPORT = re.compile(
    r"allranks: rank (?P<rank>\d+) failed first, at (?P<time>\d+-\d\d-\d\d_\d\d:\d\d:\d\d), "
    r"by (?:exit code (?P<code>\d+)|signal (?P<signal>\d+))(?:\. Its last lines:\n)?"
)


def read_rank_report(message: str) -> RootCause | None:
    """The report of inpod/mpi_rank.py, local_ranks.py or ray_output.py; None if there is none."""
    for found in reversed([*_REPORT.finditer(message)]):
        with contextlib.suppress(ValueError):  # the program can print anything
            time = datetime.strptime(found["time"], "%Y-%m-%d_%H:%M:%S")
            return root_cause(found["rank"], found["code"], found["signal"], message[found.end() :], time)
    return None


def root_cause(rank: str, code: str | None, signal: str | None, lines: str, time: datetime | None = None) -> RootCause:
    """`code` and `signal` as a launcher prints them; without both, the code is unknown, and 1 here."""
    number = int(signal) if signal else None
    exit_code = 128 + number if number else int(code or 1)
    ended = f"rank {rank} was ended by signal {number}" if number else f"rank {rank} exited with code {exit_code}"
    return RootCause(int(rank), exit_code, number, lines.strip() or ended, time)
