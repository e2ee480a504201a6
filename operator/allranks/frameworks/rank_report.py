"""Reads which rank failed first from the report that the helpers in pods print at the end of the log."""

from __future__ import annotations

import contextlib
import re
from datetime import datetime

from allranks.frameworks.hints import LogReader, RootCause

_REPORT = re.compile(
    r"allranks: rank (?P<rank>\d+) failed first, at (?P<time>\d+-\d\d-\d\d_\d\d:\d\d:\d\d), "
    r"by (?:exit code (?P<code>\d+)|signal (?P<signal>\d+))(?:\. Its last lines:\n)?"
)


class RankReports(LogReader):
    def root_cause(self, message: str) -> RootCause | None:
        return read_rank_report(message)


def read_rank_report(message: str) -> RootCause | None:
    """Parse the report of inpod/mpi_rank.py, local_ranks.py or ray_output.py; return None if there is none."""
    for report in reversed([*_REPORT.finditer(message)]):
        with contextlib.suppress(ValueError):  # the program can print anything
            time = datetime.strptime(report["time"], "%Y-%m-%d_%H:%M:%S")
            return root_cause(report["rank"], report["code"], report["signal"], message[report.end() :], time)
    return None


def root_cause(rank: str, code: str | None, signal: str | None, lines: str, time: datetime | None = None) -> RootCause:
    """Convert what a launcher prints. Without `code` and `signal` the exit code is unknown, and 1 here."""
    number = int(signal) if signal else None
    exit_code = 128 + number if number else int(code or 1)
    ended = f"rank {rank} was ended by signal {number}" if number else f"rank {rank} exited with code {exit_code}"
    return RootCause(int(rank), exit_code, number, lines.strip() or ended, time)
