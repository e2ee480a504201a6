"""What ranks print, made fit for a screen: whole lines, bounded, without control sequences. The log files stay raw."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

LINE_BYTES = 2048
"""So much of a line is shown; all of it is in the log file."""


@dataclass
class Splitter:
    """Cuts the output of one container into lines; keeps little of a line that does not end."""

    pending: bytes = b""
    """The line that has not ended yet, of a redrawn one what is on the screen now."""
    redrawn: bool = False
    """A progress bar: the pending line was drawn over an earlier state of itself."""
    _cut: int = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in `data`; empty data ends the last one."""
        if not data:
            lines = [self._whole(self.pending)] if self.pending else []
            self._keep(b"")
            return lines
        first, *rest = data.split(b"\n")
        self._extend(first)
        if not rest:
            return []
        lines = [self._whole(self.pending), *(shown(line) for line in rest[:-1])]
        self._keep(b"")
        self._extend(rest[-1])
        return lines

    def _extend(self, data: bytes) -> None:
        if b"\r" in data:
            self.redrawn = self.redrawn or bool(data.strip(b"\r"))
            joined = self.pending + data
            end = b"\r" if joined.endswith(b"\r") else b""
            self.pending = joined.rstrip(b"\r").rpartition(b"\r")[2][:LINE_BYTES] + end
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
        self.pending, self.redrawn, self._cut = pending, False, 0


def shown(line: bytes, cut: int = 0) -> bytes:
    """What of a line is seen: the last state of a redrawn one, the beginning of a giant one."""
    if b"\r" in line:
        line = line.rstrip(b"\r").rpartition(b"\r")[2]
    cut += max(0, len(line) - LINE_BYTES)
    if cut:
        return line[:LINE_BYTES] + f" ... {cut:,} more bytes are in the log".encode()
    return line


class Line(NamedTuple):
    """A line that waits to be shown."""

    place: int
    text: bytes
    faint: bool


@dataclass
class Source:
    """Lines of one container that wait to be shown. The newest are kept when there are too many."""

    label: str
    most_lines: int
    most_bytes: int
    latest: bytes = b""
    """The last line, for a table."""
    splitter: Splitter = field(default_factory=Splitter)
    dropped: int = 0
    waiting: deque[Line] = field(default_factory=deque)
    _bytes: int = 0

    def feed(self, data: bytes, place: int, faint: bool = False) -> None:
        """Takes output in. `place` orders it among other containers' output; `faint`: it matters less."""
        lines = self.splitter.feed(data)
        self.dropped += max(0, len(lines) - self.most_lines)
        for line in lines[-self.most_lines :]:
            self.waiting.append(Line(place, line, faint))
            self._bytes += len(line)
        while len(self.waiting) > self.most_lines or self._bytes > self.most_bytes:
            self._bytes -= len(self.waiting.popleft().text)
            self.dropped += 1
        seen = self.splitter.pending or (lines[-1] if lines else b"")
        if seen.strip():
            self.latest = seen

    def take(self) -> tuple[int, list[Line]]:
        """(number of lines dropped before these, the lines), which wait no longer."""
        dropped, lines = self.dropped, list(self.waiting)
        self.dropped, self._bytes = 0, 0
        self.waiting.clear()
        return dropped, lines
