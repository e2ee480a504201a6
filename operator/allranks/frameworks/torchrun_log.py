"""Reads what torchrun and the C++ code of PyTorch add to the output of a pod."""

from __future__ import annotations

import re
import textwrap
from datetime import datetime
from itertools import dropwhile

from allranks.frameworks.hints import LogReader, RootCause
from allranks.text import without_exit_warnings


class TorchrunLog(LogReader):
    """Reads the log of torchrun. At its end, torchrun waits for the other nodes at a store in the first node, and
    complains if that is gone already (https://github.com/pytorch/pytorch/issues/69520)."""

    def root_cause(self, message: str) -> RootCause | None:
        return read_torchrun_report(message)

    def starts_complaint(self, line: str) -> bool:
        return _COMPLAINT.match(line) is not None

    def continues_complaint(self, line: str) -> bool:
        return _COMPLAINT_DETAIL.match(line) is not None


_COMPLAINT = re.compile(
    # The C++ log. At the end of a program it complains about the store or the process group of ranks that have ended.
    r"(?:\[rank\d+\]:)?\[[WE]\d{4} \S+ (?:TCPStore|socket|ProcessGroup\w+)\.[ch]pp:\d+\] .*"
    r"(?:(?:recv|send)\w* failed on |Failed to check the \"should dump\" flag|destroy_process_group\(\) was not called)"
    # torchrun's own log while it ends.
    r"|[WE]\d{4} \S+ \d+ torch/distributed/elastic/(?:agent/server|multiprocessing)/\w+\.py:\d+\] "
)
_COMPLAINT_DETAIL = re.compile(
    r"Exception raised from |frame #\d+: |<omitting python frames>$|\s|$|Traceback \(most recent call last\):$"
    r"|torch\.distributed\.(?:Dist(?:Network|Store|Backend)Error|elastic\.multiprocessing\.api\.SignalException)\b"
)
_REPORT = re.compile(
    r"Root Cause \(first observed failure\):\s*\n\[\d+\]:\s*\n"
    r"\s*time\s*:\s*(?P<time>\S+)\s*\n"
    r"\s*host\s*:\s*\S*\s*\n"
    r"\s*rank\s*:\s*(?P<rank>\d+) \(local_rank: \d+\)\s*\n"
    r"\s*exitcode\s*:\s*(?P<exitcode>-?\d+)(?: \(pid: (?P<pid>\d+)\))?[^\n]*\n"
    r"\s*error_file\s*:[^\n]*\n"
    r"\s*traceback\s*:\s*(?P<traceback>.*?)\n=+\s*$",
    re.DOTALL | re.MULTILINE,
)
_FAILED_LINE = re.compile(
    # torchrun's log: level, month and day, time, its own process; then the process that failed first.
    r"^E(?P<time>\d{4} \d\d:\d\d:\d\d)\.(?P<microsecond>\d{6}) \d+ torch/distributed/\S+\] "
    r"failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: (?P<pid>\d+)\) of ",
    re.MULTILINE,
)
_SOURCE = re.compile(r"\s{4,}\S")
"""A line of source code below the frame of a traceback."""
_FRAME = re.compile(r"^=+\n.*? FAILED\s*\n-+\nFailures:", re.MULTILINE)
_LOG_LINE = re.compile(
    r"torch/distributed/\S+:\d+\]|Sending process \d+ closing signal|failed \(exitcode: |^closing signal SIG\w+$"
)
_TRUNCATED_BYTES = 2045
"""A termination message of this length or more was truncated: it has at most 2,048 bytes, less part of a character."""
_CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"


def read_torchrun_report(message: str) -> RootCause | None:
    """Parse the failure report that torchrun prints last; return None if there is none.

    torchrun turns every worker's exit code into 1. Its report has the rank that failed first, and its exit code, which
    is negative for a signal. The worker's own output is before and between torchrun's log lines and traceback.
    """
    report = _REPORT.search(message)
    if not report:
        return None
    rank, code = int(report["rank"]), int(report["exitcode"])
    ended = f"rank {rank} was ended by signal {-code}" if code < 0 else f"rank {rank} exited with code {code}"
    traceback = textwrap.dedent("  " + report["traceback"]).strip()
    if not traceback.startswith("Traceback"):
        traceback = ""
    time = _local_time(report["time"])
    return RootCause(
        rank=rank,
        exit_code=128 - code if code < 0 else code,
        signal=-code if code < 0 else None,
        message=_own_lines(message) or traceback or ended,
        time=time,
        microsecond=_microsecond(message[: report.start()], report["pid"], time) if time else None,
    )


def _microsecond(log: str, pid: str | None, time: datetime) -> int | None:
    """Return when torchrun saw within that second that the process `pid` had ended; None if `log` has no such line. A
    report may have an earlier second: the time of an exception that the process recorded."""
    second = time.strftime("%m%d %H:%M:%S")
    lines = [line for line in _FAILED_LINE.finditer(log) if (line["pid"], line["time"]) == (pid, second)]
    return int(lines[-1]["microsecond"]) if lines else None


def _own_lines(message: str) -> str:
    """Remove torchrun's traceback, report and log lines. The start of a message may be truncated anywhere."""
    frame = _FRAME.search(message)
    if not frame:
        return ""
    lines = message[: frame.start()].splitlines()
    if len(message.encode()) >= _TRUNCATED_BYTES:
        lines = list(dropwhile(_SOURCE.match, lines[1:]))  # truncated: then a traceback begins with a frame
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].startswith(_CHILD_FAILED):
            first = number
            while first > 0 and (lines[first - 1].startswith((" ", "\t")) or not lines[first - 1]):
                first -= 1
            if first > 0 and lines[first - 1].startswith("Traceback (most recent call last)"):
                first -= 1
            elif first == 1:
                first = 0  # truncated inside torchrun's traceback
            del lines[first:]
            break
    output = "\n".join(line for line in lines if not _LOG_LINE.search(line))
    return without_exit_warnings(output).strip("\n").rstrip()


def _local_time(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%d_%H:%M:%S")
    except ValueError:
        return None
