"""Lines within bounds: a log of any size, also one without newlines, takes a bounded amount of memory."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from allranks.control_sequences import moved_up
from allranks.text import size

LONGEST_LINE = 16 * 1024
"""Bytes. The rest of a longer line is left out."""
_TIME = re.compile(rb"\d{4}-\d\d-\d\dT[0-9:.]{8,24}(?:Z|[+-]\d\d:\d\d) ")
_NOTE = re.compile(r" … \([^()]{1,20} left out\)$")


BAR_SECONDS = 10.0
"""Interval between states of progress bars that are drawn below each other."""


class Splitter:
    """Splits chunks into lines without their newlines. It keeps at most `longest` bytes of an unfinished line.

    Of lines that move the cursor up, as nested progress bars do, it passes on the last one, or one in BAR_SECONDS.
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._unfinished = b""
        self._dropped = 0
        self._bar: bytes | None = None
        self._bar_at = 0.0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        *lines, unfinished = chunk.split(b"\n")
        for line in lines:
            up = (b"\x1b[" in line and moved_up(line)) or moved_up(self._unfinished)
            whole = not self._unfinished and not self._dropped and len(line) <= self._longest and b"\r" not in line
            text = line if whole else self._finish(line)
            if up and not self._is_due():
                self._bar = text
                continue
            if self._bar is not None and not up:
                yield self._bar
            self._bar = None
            yield text
        self._keep(unfinished)

    def end(self) -> Iterator[bytes]:
        """Yield the last line, if it has no newline."""
        if self._bar is not None:
            yield self._bar
            self._bar = None
        if self._unfinished or self._dropped:
            yield self._finish(b"")

    def _is_due(self) -> bool:
        """Return whether a state of the bars has been kept back for BAR_SECONDS."""
        now = time.monotonic()
        if self._bar is None:
            self._bar_at = now
        return now - self._bar_at >= BAR_SECONDS

    def _finish(self, tail: bytes) -> bytes:
        self._keep(tail)
        line, dropped = self._unfinished, self._dropped
        self._unfinished, self._dropped = b"", 0
        return line + f" … ({size(dropped)} left out)".encode() if dropped else line

    def _keep(self, more: bytes) -> None:
        if b"\r" in more:
            # A progress bar redraws its line: what was before the last but one redraw is never shown.
            place = more.rstrip(b"\r").rfind(b"\r")
            if place >= 0:
                self._unfinished, self._dropped, more = _time_of(self._unfinished + more[:place]), 0, more[place + 1 :]
        room = self._longest - len(self._unfinished)
        self._dropped += max(0, len(more) - room)
        self._unfinished += more[: max(0, room)]


def _time_of(line: bytes) -> bytes:
    """Return the time at the beginning of a line of a kubelet, with the space behind it; empty without one."""
    match = _TIME.match(line)
    return match[0] if match else b""


def without_note(line: str) -> tuple[str, str]:
    """Split a line from the note of `Splitter` that its end is left out."""
    note = _NOTE.search(line) if line.endswith(")") else None
    return (line[: note.start()], note[0]) if note else (line, "")


MOST_KEPT = 8 * 2**20
"""Bytes of lines that one answer has."""
_T = TypeVar("_T")


class LastLines(Generic[_T]):
    """The last lines within a number and a size. `cut`: there was no room for earlier ones."""

    def __init__(self, lines: int, size: int = MOST_KEPT) -> None:
        self.cut = False
        self._lines, self._size, self._used = lines, size, 0
        self._kept: deque[tuple[_T, int]] = deque()

    def __iter__(self) -> Iterator[_T]:
        return (line for line, _ in self._kept)

    def add(self, line: _T, size: int) -> None:
        """Add a line whose text has `size` bytes."""
        self._kept.append((line, size))
        self._used += size
        while len(self._kept) > self._lines or (self._used > self._size and len(self._kept) > 1):
            self.cut = True
            self._used -= self._kept.popleft()[1]


def joined(blocks: Iterable[bytes], longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """Yield the lines of blocks of a file."""
    splitter = Splitter(longest)
    for block in blocks:
        yield from splitter.feed(block)
    yield from splitter.end()
