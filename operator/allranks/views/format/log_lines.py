"""Splits the output of ranks into lines for a screen, within bounds. The log files keep the raw output."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from allranks.control_sequences import PARTIAL, last_state, moved_up
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import TRAINER, replica_key
from allranks.frameworks.hints import LogReader

LINE_BYTES = 2048
"""Longer lines are cut on the screen."""
COLOURS = (
    "cyan",
    "yellow",
    "green",
    "magenta",
    "blue",
    "bright_cyan",
    "bright_yellow",
    "bright_green",
    "bright_magenta",
)
"""Colours of the ranks, in their order."""
_CODES = {"red": 31, "cyan": 36, "yellow": 33, "green": 32, "magenta": 35, "blue": 34}
_CODES |= {f"bright_{name}": code + 60 for name, code in _CODES.items()}


def label(pod: Pod, container: str) -> str:
    """Return `worker-1` for the trainer container, `worker-1/NAME` for others."""
    replica = replica_key(pod.role, pod.index)
    return replica if container == TRAINER else f"{replica}/{container}"


def prefixed(label: str, width: int, place: int, text: str, *, colour: bool, faint: bool = False) -> str:
    """Put the label in front of a line. `place` is the position of the rank, which selects the colour."""
    front = f"{label:<{width}} |"
    if not colour:
        return f"{front} {text}"
    front = styled(front, COLOURS[place % len(COLOURS)])
    return f"{front} \x1b[2m{text}\x1b[0m" if faint else f"{front} {text}"


def styled(text: str, colour: str = "", *, bold: bool = False) -> str:
    """Return the text in a colour of terminals."""
    codes = ([_CODES[colour]] if colour else []) + ([1] if bold else [])
    return "".join(f"\x1b[{code}m" for code in codes) + text + "\x1b[0m"


@dataclass
class Splitter:
    """Splits the output of one container into lines. Memory is bounded, also for a line that does not end."""

    pending: bytes = b""
    """The line that has not ended yet; for a redrawn line its current state."""
    redrawn: bool = False
    """Whether the pending line is a progress bar, which redraws itself after \\r."""
    _cut: int = 0
    _up: int = 0
    """Lines by which the cursor is above the last one, because a bar below others was redrawn."""
    _below: bool = False
    """Whether the cursor is at the beginning of a line below the pending one."""
    _partial: bytes = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in `data`. Empty data ends the last line."""
        if not data:
            self.pending, self._partial = self.pending + self._partial, b""
            lines = [self._whole(self.pending)] if self.pending else []
            self._keep(b"")
            return lines
        if b"\x1b" in data or self._partial or self._up or self._below:
            return self._with_bars(self._partial + data)
        first, *others = data.split(b"\n")
        self._extend(first)
        if not others:
            return []
        lines = [self._whole(self.pending), *(shown(line) for line in others[:-1])]
        self._keep(b"")
        self._extend(others[-1])
        return lines

    def _with_bars(self, data: bytes) -> list[bytes]:
        """Return the lines that end. Bars below each other, as tqdm draws them, are one line that is redrawn."""
        lines: list[bytes] = []
        partial = PARTIAL.search(data)
        data, self._partial = (data[: partial.start()], partial[0]) if partial else (data, b"")
        for number, part in enumerate(data.split(b"\n")):
            if number and self._up:
                self._up, self._below, self.redrawn = self._up - 1, True, True
                self.pending = self.pending.rstrip(b"\r") + b"\r"
            elif number:
                lines.append(self._whole(self.pending))
                self._keep(b"")
            if part and self._below and part[:1] != b"\r":  # the program continues below its bars
                lines.append(self._whole(self.pending))
                self._keep(b"")
            self._below = self._below and not part
            self._up += moved_up(part)
            self._extend(part)
        return lines

    def _extend(self, data: bytes) -> None:
        if b"\r" in data:
            self.redrawn = self.redrawn or bool(data.strip(b"\r"))
            joined = self.pending + data
            end = b"\r" if joined.endswith(b"\r") else b""
            self.pending = last_state(joined)[:LINE_BYTES] + end
            self._cut = 0
            return
        if data and self.pending.endswith(b"\r"):
            self.pending = b""
        room = LINE_BYTES - len(self.pending)
        self.pending += data[:room]
        self._cut += max(0, len(data) - room)

    def _whole(self, line: bytes) -> bytes:
        return shown(line, self._cut)

    def _keep(self, pending: bytes) -> None:
        self.pending, self.redrawn, self._cut, self._up, self._below = pending, False, 0, 0, False


def shown(line: bytes, cut: int = 0) -> bytes:
    """Return what a screen shows of a line: the last state if it was redrawn, the beginning if it is long."""
    line = last_state(line)
    cut += max(0, len(line) - LINE_BYTES)
    if cut:
        return line[:LINE_BYTES] + f" ... {cut:,} more bytes in the log".encode()
    return line


class Line(NamedTuple):
    """A buffered line."""

    place: int
    text: bytes
    faint: bool


@dataclass
class Fold:
    """Shows the first line of each complaint that other ranks have ended, and the number of its other lines."""

    reader: LogReader
    _inside: bool = False
    _hidden: int = 0
    _log: str = ""

    def shown(self, lines: Sequence[Line], log: str) -> Iterator[Line]:
        """Yield the lines to show. `log` has all of them."""
        for line in lines:
            text = line.text.decode("utf-8", "replace").rstrip("\r")
            starts = self.reader.starts_complaint(text)
            if self._inside and (starts or self.reader.continues_complaint(text)):
                self._hidden += 1
                self._log = log
                continue
            yield from self.close(line)
            self._inside = starts
            yield line

    def close(self, line: Line) -> Iterator[Line]:
        """Yield the number of hidden lines, if there are any, at the place of `line`."""
        if self._hidden:
            text = f"... {self._hidden} more line{'s' * (self._hidden != 1)}, see {self._log}"
            yield line._replace(text=text.encode())
        self._hidden, self._inside = 0, False


@dataclass
class Source:
    """The buffered lines of one container. When there are too many, the oldest are dropped."""

    label: str
    most_lines: int
    most_bytes: int
    latest: bytes = b""
    """The last line, for the summary."""
    pod: str = ""
    """The name of the pod that printed it: the container of a replica has another pod in each attempt."""
    fold: Fold | None = None
    splitter: Splitter = field(default_factory=Splitter)
    dropped: int = 0
    waiting: deque[Line] = field(default_factory=deque)
    _bytes: int = 0

    def feed(self, data: bytes, place: int, faint: bool = False, log: str = "the log") -> None:
        """Add output; empty data ends it. `place` orders it among the output of other containers; `faint` output is
        less important. `log` has all of it."""
        split = self.splitter.feed(data)
        self.dropped += max(0, len(split) - self.most_lines)
        lines = [Line(place, line, faint) for line in split[-self.most_lines :]]
        if self.fold:
            lines = list(self.fold.shown(lines, log))
            if not data:
                lines += self.fold.close(Line(place, b"", faint))
        self._add(lines)
        if self.splitter.pending.strip():
            self.latest = self.splitter.pending

    def _add(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self.waiting.append(line)
            self._bytes += len(line.text)
        while len(self.waiting) > self.most_lines or self._bytes > self.most_bytes:
            self._bytes -= len(self.waiting.popleft().text)
            self.dropped += 1
        if lines and lines[-1].text.strip():
            self.latest = lines[-1].text

    def take(self) -> tuple[int, list[Line]]:
        """Remove the buffered lines, and return (number of lines dropped before them, the lines)."""
        dropped, lines = self.dropped, list(self.waiting)
        self.dropped, self._bytes = 0, 0
        self.waiting.clear()
        return dropped, lines
