"""Lines of logs within bounds: a log of any size, also one without newlines, takes a bounded amount of memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator

from pydantic import BaseModel, Field

from allranks.control_sequences import clean
from allranks.text import size

LONGEST_LINE = 16 * 1024
"""Bytes. The rest of a longer line is left out."""


class LogLine(BaseModel):
    """A line of a log, in the form of `allranks logs -o json`."""

    time: str | None = Field(description="UTC, with nanoseconds; null if the log has no times.")
    role: str
    index: int
    rank: int | None = Field(description="null for earlier attempts, which may have had another number of ranks.")
    attempt: int
    line: str


class Splitter:
    """Splits chunks into lines without their newlines. It keeps at most LONGEST_LINE bytes of an unfinished line."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._rest = b""
        self._dropped = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        begin = 0
        while (end := chunk.find(b"\n", begin)) >= 0:
            yield self._finish(chunk[begin:end])
            begin = end + 1
        self._keep(chunk[begin:])

    def end(self) -> Iterator[bytes]:
        """The last line, if it has no newline."""
        if self._rest or self._dropped:
            yield self._finish(b"")

    def _finish(self, tail: bytes) -> bytes:
        self._keep(tail)
        line, dropped = self._rest, self._dropped
        self._rest, self._dropped = b"", 0
        return line + f" … ({size(dropped)} left out)".encode() if dropped else line

    def _keep(self, more: bytes) -> None:
        if b"\r" in more:
            # A progress bar redraws its line: what was before the last but one redraw is never shown.
            place = more.rstrip(b"\r").rfind(b"\r")
            if place >= 0:
                self._rest, self._dropped, more = b"", 0, more[place + 1 :]
        room = self._longest - len(self._rest)
        self._dropped += max(0, len(more) - room)
        self._rest += more[: max(0, room)]


def shown(line: bytes) -> str:
    """The line as a terminal shows it: the last state of a redrawn line, without control sequences."""
    return clean(line.rstrip(b"\r").rpartition(b"\r")[2], colour=False)


def matches(line: bytes, search: bytes) -> bool:
    """Whether it contains the text. ASCII letters match in both cases."""
    return not search or search in line.lower()


async def lines_of(chunks: AsyncIterator[bytes], most_bytes: int | None = None) -> AsyncGenerator[list[bytes]]:
    """The lines of a stream, those of one chunk together. It ends after `most_bytes`."""
    splitter, left = Splitter(), most_bytes
    async for chunk in chunks:
        if left is not None:
            chunk, left = chunk[:left], left - len(chunk)
        if found := list(splitter.feed(chunk)):
            yield found
        if left is not None and left <= 0:
            break
    if found := list(splitter.end()):
        yield found


def joined(blocks: Iterable[bytes], longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """The lines of blocks of a file."""
    splitter = Splitter(longest)
    for block in blocks:
        yield from splitter.feed(block)
    yield from splitter.end()
