"""The stderr of a Ray head's program: what the program wrote itself, which rank of Ray Train failed first, and the last
lines of a process of Ray that died.

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


_PROCESS = re.compile(rb"\(.*?\bpid=(?P<pid>\d+)(?:, ip=(?P<ip>[^(),]+))?\) (?P<text>.*)")
"""A line of a process that runs tasks or an actor."""
_DIED = re.compile(
    rb"\(raylet\b.*Worker IP address: (?P<ip>\S+) .*Worker PID: (?P<pid>\d+) .*Worker exit detail: (?P<detail>.*)"
)
"""Ray's line about a process that died."""
_PROCESSES, _OF_PROCESS = 32, 1 << 12
"""Limits: processes whose lines are kept, and bytes of each."""
_ACTOR_DIED = re.compile(
    r"(?:(?:ray\.exceptions\.)?(?P<error>(?:Ray)?Actor(?:Died)?Error): )?The actor died .*\n"
    r"(?P<fields>(?:\t\w+: .*\n)+).* because its worker process has died\.(?:.*Worker exit detail: (?P<detail>.*))?"
)
"""ray/exceptions.py: the exception of an actor whose process died, at the end of a traceback."""
_TASK_DIED = re.compile(r"(?:ray\.exceptions\.)?(?P<error>WorkerCrashedError): .*")
_GUESSES = re.compile(r"\.?\s*(?:Some common causes include|There are some potential root causes).*")
_FATAL = re.compile(r"Fatal Python error: |Traceback \(most recent call last\)|\*\*\* SIG\w+ received")
_TRACEBACK = "Traceback (most recent call last)"
_MODULES = "Extension modules: "


class Output(Stderr):  # type: ignore[misc]
    """Forwards stderr, and keeps the end of what the program itself wrote."""

    def __init__(self, pipe: int) -> None:
        super().__init__(pipe)
        self._program_lines, self._line = b"", b""
        self._others_follow = False
        self._of_process: dict[tuple[str, str], bytes] = {}
        self._dead: tuple[str, str, str] | None = None
        """Process number, address, and how it died: the last one."""

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
        if others:
            self._keep_line_of_process(text)
        else:
            self._program_lines = (self._program_lines + text + b"\n")[-KEPT:]

    def _keep_line_of_process(self, line: bytes) -> None:
        if died := _DIED.match(line):
            pid, address, detail = (died[name].decode(errors="replace") for name in ("pid", "ip", "detail"))
            self._dead = (pid, address, detail)
        elif (process := _PROCESS.match(line)) and not process["text"].startswith(_MODULES.encode()):
            key = (process["pid"].decode(), (process["ip"] or b"").decode(errors="replace"))
            lines = self._of_process.pop(key, b"") + process["text"] + b"\n"
            self._of_process[key] = lines[-_OF_PROCESS:]
            if len(self._of_process) > _PROCESSES:
                del self._of_process[next(iter(self._of_process))]

    def _last_lines_of(self, pid: str, address: str) -> str:
        lines = self._of_process.get((pid, address)) or self._of_process.get((pid, ""), b"")
        text = lines.decode(errors="replace")
        fatal = [*_FATAL.finditer(text)]
        begin = fatal[-1].start() if fatal else 0
        return "\n".join([line for line in text[begin:].splitlines() if line.strip()][: 12 if fatal else None][-12:])

    def _dead_process(self, text: str) -> str:
        """Returns which process died and its last lines, if the program ended by the exception that says so."""
        text = text[text.rfind(_TRACEBACK) :] if _TRACEBACK in text else text
        if actor := [*_ACTOR_DIED.finditer(text)]:
            fields = dict(re.findall(r"\t(\w+): (.*)\n", actor[-1]["fields"]))
            pid, address, kind = fields.get("pid", "?"), fields.get("ip", "?"), fields.get("class_name", "?")
            name = f"{fields['name']} of class {kind}" if fields.get("name") else f"of class {kind}"
            begin = f"{actor[-1]['error'] or 'ActorDiedError'}: actor {name}, pid {pid} at {address}, is dead"
            begin, detail = f"{begin} because its worker process has died", actor[-1]["detail"]
        elif (task := [*_TASK_DIED.finditer(text)]) and self._dead:
            pid, address, detail = self._dead
            begin = f"{task[-1]['error']}: the worker died, pid {pid} at {address}"
        else:
            return ""
        line = f"{begin}: {_GUESSES.sub('', detail)[:300]}" if detail else begin
        lines = self._last_lines_of(pid, address)
        return f"{line}\nIts last lines:\n{lines}" if lines else line

    def report(self, code: int) -> str:
        """Return the last lines of the log of a program that failed; empty if it has nothing to add to the log."""
        others_follow = self._others_follow
        if self._line:
            self._keep_line(self._line)
        if failed := failed_rank(self._program_lines.decode(errors="replace")):
            rank, text = failed
            text = self._dead_process(text) or text
            return str(format_report(Failure("", rank, code, time.time(), end_of(text.encode()))))
        if dead := self._dead_process(self._program_lines.decode(errors="replace")):
            return f"{PROGRAM_LINES}{end_of(dead.encode())}"
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
