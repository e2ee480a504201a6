"""Matches lines with a pattern: `python3 log_progress_matcher.py PATTERN` reads lines, prints a JSON object per match.

`watch.py` starts it as a separate process and does not wait for it. If the pattern is slow, the oldest lines are
dropped, and the match of a line is aborted after LINE_SECONDS. Standard library only.
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

LINE_BYTES = 65536
BATCHES = 64
"""Limit of pending chunks of output: usually at most 4 MiB."""
LINE_SECONDS = 0.5
IDLE_FACTOR = 9.0
"""Idle time after an aborted line, as a multiple of the time it took: limits slow patterns to a tenth of a core."""
RESTART_SECONDS = 5.0
END_SECONDS = 5.0
NICE = 5
COUNTS = ("step", "total_steps", "epoch", "samples")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?")


class Lines:
    """Splits a stream into lines. A carriage return (progress bars) also ends a line. Long lines are truncated."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def completed_by(self, chunk: bytes) -> bytes:
        """Return the lines that this chunk completes, each with its newline."""
        data = chunk.replace(b"\r", b"\n")
        if self._skipping:
            _, newline, data = data.partition(b"\n")
            if not newline:
                return b""
            self._skipping = False
        complete, newline, rest = data.rpartition(b"\n")
        if newline:
            complete, self._rest = self._rest + complete + b"\n", rest
        else:
            self._rest += rest
        if len(self._rest) > LINE_BYTES:
            complete, self._rest, self._skipping = complete + self._rest[:LINE_BYTES] + b"\n", b"", True
        return complete

    def rest(self) -> bytes:
        """Return the incomplete line at the end of the stream."""
        rest, self._rest = self._rest, b""
        return rest + b"\n" if rest else b""


class Matcher:
    """The matcher process, used by `watch.py`. Calls `on_match` in a thread for each match."""

    def __init__(self, pattern: str, on_match: Callable[[dict[str, Any]], None], warn: Callable[[str], None]) -> None:
        self._pattern, self._on_match, self._warn = pattern, on_match, warn
        self._batches: collections.deque[bytes] = collections.deque(maxlen=BATCHES)
        self._news = threading.Event()
        self._ending = False
        self._process = self._start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._feed, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def match(self, lines: bytes) -> None:
        """Queue lines without blocking."""
        if lines:
            self._batches.append(lines)  # drops the oldest if the queue is full
            self._news.set()

    def finish(self) -> None:
        """Wait a limited time for pending matches."""
        self._ending = True
        self._news.set()
        self._reader.join(END_SECONDS)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable or "python3", "-I", __file__, self._pattern],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is for the program
        )

    def _feed(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            while self._batches:
                with contextlib.suppress(OSError, ValueError):  # the matcher ended and will be restarted
                    assert self._process.stdin
                    write_all(self._process.stdin.fileno(), self._batches.popleft())
            if self._ending and not self._batches:
                with contextlib.suppress(OSError):
                    assert self._process.stdin
                    self._process.stdin.close()
                return

    def _read(self) -> None:
        while True:
            assert self._process.stdout
            for line in self._process.stdout:
                answer = json.loads(line)
                if "problem" in answer:
                    self._warn(answer["problem"])
                else:
                    self._on_match(answer)
            if self._ending:
                return
            time.sleep(RESTART_SECONDS)  # the matcher was killed
            with contextlib.suppress(OSError):
                self._process = self._start()


def write_all(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


# --- in the matcher process
# ---------------------------------------------------------------------------------------------


class TooSlow(Exception):
    """The pattern took too long."""


def main(pattern: str) -> int:
    finder = Finder(pattern)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    rest, warned = b"", False
    while chunk := os.read(0, LINE_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        matches: list[dict[str, Any]] = []
        for line in lines:
            began = time.monotonic()
            try:
                match = finder.find(line)
            except TooSlow:
                if not warned:
                    limit = f"{LINE_SECONDS} s for a line"
                    write_json({"problem": f"progress.logPattern takes longer than {limit}: the line is skipped"})
                warned = True
                time.sleep((time.monotonic() - began) * IDLE_FACTOR)
                continue
            if match is not None:
                merge(matches, values(match.groupdict()))
        for entry in matches:
            write_json(entry)
    return 0


class Finder:
    """The pattern with a time limit: Python's `re` checks for signals during a match."""

    def __init__(self, pattern: str) -> None:
        self._expression = re.compile(pattern)
        self._searching = False
        signal.signal(signal.SIGALRM, self._too_slow)

    def find(self, line: bytes) -> re.Match[str] | None:
        """Raise TooSlow."""
        text = ESCAPES.sub("", line[:LINE_BYTES].decode("utf-8", "replace"))
        self._searching = True
        signal.setitimer(signal.ITIMER_REAL, LINE_SECONDS)
        try:
            return self._expression.search(text)
        finally:
            self._searching = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _too_slow(self, *ignored: object) -> None:
        if self._searching:
            raise TooSlow


def values(groups: dict[str, str | None]) -> dict[str, Any]:
    """Return the arguments for `report`. Any other group is a metric."""
    out: dict[str, Any] = {}
    metrics = {}
    for name, text in groups.items():
        if not text:
            continue
        if name == "checkpoint":
            out["checkpoint"] = True
            continue
        number = number_of(text)
        if number is None:
            continue
        if name not in COUNTS:
            metrics[name] = number
        elif number == int(number):
            out[name] = int(number)
    return {**out, "metrics": metrics} if metrics else out


def number_of(text: str) -> float | None:
    text = text.strip()
    try:
        number = float(text.replace(",", "") if THOUSANDS.fullmatch(text) else text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def merge(reports: list[dict[str, Any]], new: dict[str, Any]) -> None:
    """Merge matches that arrive together into one report: the newest of each number, the sum of the samples. A
    checkpoint belongs to the step before it, so nothing is merged into a report with one."""
    if not new:
        return
    if not reports or "checkpoint" in reports[-1]:
        reports.append(new)
        return
    last = reports[-1]
    if "samples" in new and "samples" in last:
        new["samples"] += last["samples"]
    metrics = {**last.get("metrics", {}), **new.get("metrics", {})}
    last.update(new)
    if metrics:
        last["metrics"] = metrics


def write_json(document: dict[str, Any]) -> None:
    write_all(1, json.dumps(document).encode() + b"\n")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1]))
