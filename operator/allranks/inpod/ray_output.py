"""The stderr of a Ray head's program: what the program wrote itself, and which rank of Ray Train failed first.

Ray prints the logs of other processes there as well, also after the traceback with which the program ends. A kubelet
keeps only the last 2,048 bytes of a log, so the head repeats at the end what counts. Standard library only.
"""

from __future__ import annotations

import re
import time

from mpi_rank import Failure, Stderr, end_of, format_report  # type: ignore[import-not-found]  # in the same directory

KEPT = 1 << 14
"""Bytes of the program's own output. Ray Train's report has up to a kilobyte for each failed rank."""
PROGRAM_LINES = "allranks: the last lines of the program itself:\n"
"""Also in frameworks/ray.py."""
_COLOR = re.compile(rb"\x1b\[[0-9;]*m")
_OTHER = re.compile(rb"\((?:raylet|autoscaler|gcs_server|.*\bpid=\d+)(?:,? [^()]*)?\)(?: |$)")
"""Beginning of a line of another process in Ray: `(RayTrainWorker pid=7, ip=10.0.0.3) `."""
_REPORT = "Training failed due to worker errors:\n"
"""Begins Ray Train's report of the ranks that failed, at the end of the program's traceback."""
_RANK = re.compile(r"^\[Rank (?P<rank>\d+)(?:,\d+)* Error Snippet\]:\n", re.MULTILINE)
_LOST_PEER = re.compile(
    r"gloo/transport/|Connection (?:closed|reset) by peer|Broken pipe|DistBackendError|Socket closed|"
    r"NCCL communicator was aborted|Horovod has been shut down"
)
"""Errors of a rank because another one has failed."""


class Output(Stderr):  # type: ignore[misc]
    """Forwards stderr, and keeps the end of what the program itself wrote."""

    def __init__(self, pipe: int) -> None:
        super().__init__(pipe)
        self._program_lines, self._line = b"", b""
        self._others_follow = False

    def read_all(self) -> None:
        while self.open:
            self.read()

    def keep(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[-KEPT:]  # a progress bar never ends its line
        for line in lines:
            self._keep_line(line)

    def _keep_line(self, line: bytes) -> None:
        text = _COLOR.sub(b"", line)  # Ray uses colors, whether or not it writes to a terminal
        others = _OTHER.match(text) is not None
        if text.strip():
            self._others_follow = others
        if not others:
            self._program_lines = (self._program_lines + text + b"\n")[-KEPT:]

    def report(self, code: int) -> str:
        """Return the last lines of the log of a program that failed; empty if it has nothing to add to the log."""
        others_follow = self._others_follow
        if self._line:
            self._keep_line(self._line)
        if failed := failed_rank(self._program_lines.decode(errors="replace")):
            rank, text = failed
            return str(format_report(Failure("", rank, code, time.time(), end_of(text.encode()))))
        return f"{PROGRAM_LINES}{end_of(self._program_lines)}" if others_follow and self._program_lines.strip() else ""


def failed_rank(text: str) -> tuple[int, str] | None:
    """Return (rank, its exception) that failed first, from Ray Train's last report; None without one.

    The program survived the failures of earlier reports."""
    _, separator, report = text.rpartition(_REPORT)
    ranks = [*_RANK.finditer(report)] if separator else []
    ends = [*(rank.start() for rank in ranks[1:]), len(report)]
    failures = [(int(rank["rank"]), report[rank.end() : end].strip()) for rank, end in zip(ranks, ends)]  # noqa: B905
    return next(
        (failure for failure in failures if not _LOST_PEER.search(failure[1])), failures[0] if failures else None
    )
