"""Finds a pattern in lines: `python3 log_progress_matcher.py PATTERN` reads lines and prints one JSON object per match.

It is a process of its own: `watch.py` starts it, and continues without its answers where the pattern is slow. The
oldest lines are dropped then, and a line that takes too long to match is given up. Standard library only.
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
"""How many reads of output may wait for the pattern: 4 MiB at most, usually."""
LINE_SECONDS = 0.5
REST = 9.0
"""After a line that was given up it rests for so many times the time it took: a tenth of a core is enough for that."""
RESTART_SECONDS = 5.0
END_SECONDS = 5.0
NICE = 5
COUNTS = ("step", "total_steps", "epoch", "samples")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?")


class Lines:
    """Cuts a stream into lines. A carriage return ends one too: so do progress bars. Too long ones lose their end."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def of(self, chunk: bytes) -> bytes:
        """The lines that are complete now, each with its newline."""
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
        """What the stream ended with."""
        rest, self._rest = self._rest, b""
        return rest + b"\n" if rest else b""


class Matcher:
    """The other process, as `watch.py` sees it. Calls `found` in a thread for each thing found."""

    def __init__(self, pattern: str, found: Callable[[dict[str, Any]], None], tell: Callable[[str], None]) -> None:
        self._pattern, self._found, self._tell = pattern, found, tell
        self._batches: collections.deque[bytes] = collections.deque(maxlen=BATCHES)
        self._news = threading.Event()
        self._ending = False
        self._process = self._start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._feed, daemon=True).start()

    def look_at(self, lines: bytes) -> None:
        """Does not wait."""
        if lines:
            self._batches.append(lines)  # drops the oldest where there are too many
            self._news.set()

    def finish(self) -> None:
        """Waits a moment for what is still on its way."""
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
                with contextlib.suppress(OSError, ValueError):  # the other process is gone, and comes back
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
                said = json.loads(line)
                if "trouble" in said:
                    self._tell(said["trouble"])
                else:
                    self._found(said)
            if self._ending:
                return
            time.sleep(RESTART_SECONDS)  # somebody has killed it
            with contextlib.suppress(OSError):
                self._process = self._start()


def write_all(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


# --- in the other process ---------------------------------------------------------------------------------------------


class TooSlow(Exception):
    """The pattern took too long."""


def main(pattern: str) -> int:
    finder = Finder(pattern)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    rest, told = b"", False
    while chunk := os.read(0, LINE_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        found: list[dict[str, Any]] = []
        for line in lines:
            began = time.monotonic()
            try:
                match = finder.find(line)
            except TooSlow:
                if not told:
                    say({"trouble": f"progress.logPattern takes longer than {LINE_SECONDS} s for a line: left out"})
                told = True
                time.sleep((time.monotonic() - began) * REST)
                continue
            if match is not None:
                merge(found, values(match.groupdict()))
        for one in found:
            say(one)
    return 0


class Finder:
    """The pattern, with a clock: the expression itself looks for signals now and then."""

    def __init__(self, pattern: str) -> None:
        self._expression = re.compile(pattern)
        self._searching = False
        signal.signal(signal.SIGALRM, self._too_slow)

    def find(self, line: bytes) -> re.Match[str] | None:
        """Raises TooSlow."""
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
    """What `report` is called with. Any other group is a metric."""
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


def merge(found: list[dict[str, Any]], new: dict[str, Any]) -> None:
    """Lines that came together become one report: the newest of each number, the sum of the samples. A checkpoint is
    that of the step before it, so nothing is added to one."""
    if not new:
        return
    if not found or "checkpoint" in found[-1]:
        found.append(new)
        return
    last = found[-1]
    if "samples" in new and "samples" in last:
        new["samples"] += last["samples"]
    metrics = {**last.get("metrics", {}), **new.get("metrics", {})}
    last.update(new)
    if metrics:
        last["metrics"] = metrics


def say(what: dict[str, Any]) -> None:
    write_all(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1]))
