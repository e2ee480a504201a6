"""Logs within bounds: a log of any size, also one without newlines, takes a bounded amount of memory."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Generic, TypeVar

from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster
from allranks.kube.paths import core_path
from allranks.kube.pod_logs import RETRY_SECONDS, Line, parse_line
from allranks.text import size

LONGEST_LINE = 16 * 1024
"""Bytes. The rest of a longer line is left out."""


_TIME = re.compile(rb"\d{4}-\d\d-\d\dT[0-9:.]{8,24}(?:Z|[+-]\d\d:\d\d) ")
_NOTE = re.compile(r" … \([^()]{1,20} left out\)$")


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
                self._rest, self._dropped, more = _time_of(self._rest + more[:place]), 0, more[place + 1 :]
        room = self._longest - len(self._rest)
        self._dropped += max(0, len(more) - room)
        self._rest += more[: max(0, room)]


def _time_of(line: bytes) -> bytes:
    """The time at the begin of a line of a kubelet, with the space behind it; empty without one."""
    found = _TIME.match(line)
    return found[0] if found else b""


def without_note(line: str) -> tuple[str, str]:
    """A line, and the note of `Splitter` that its end is left out."""
    found = _NOTE.search(line) if line.endswith(")") else None
    return (line[: found.start()], found[0]) if found else (line, "")


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
        """`size`: of its text, in bytes."""
        self._kept.append((line, size))
        self._used += size
        while len(self._kept) > self._lines or (self._used > self._size and len(self._kept) > 1):
            self.cut = True
            self._used -= self._kept.popleft()[1]


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


async def followed(
    cluster: Cluster,
    namespace: str,
    pod: str,
    container: str,
    after: bytes,
    over: Callable[[], bool],
    tail: int | None = None,
    answered: Callable[[], None] = lambda: None,
) -> AsyncGenerator[list[Line]]:
    """The lines of a pod after that time, across lost connections, until `over()`. Raises ClusterError.

    `after` empty: all lines, or the last `tail` lines and what follows. `answered` is called when there is a log, which
    may be empty.
    """
    while True:
        was_over, begun = over(), after
        query: dict[str, str | int | None] = {"container": container, "timestamps": "true", "follow": "true"}
        if not after:
            query["tailLines"] = tail
        else:
            query["sinceTime"] = after[:19].decode() + "Z"
        try:
            path = core_path(namespace, "pods", pod, "log")
            async with (
                cluster.stream(path, query, None) as content,
                aclosing(lines_of(content.iter_any())) as lines,
            ):
                answered()
                async for some in lines:
                    # sinceTime has whole seconds: the server repeats lines.
                    fresh = [line for line in map(parse_line, some) if not begun or line.time > begun]
                    after = max((line.time for line in fresh if line.time), default=after)
                    if fresh:
                        yield fresh
        except ClusterError as error:
            if error.status in (401, 403):
                raise
            if error.status == 404:
                return  # the pod is deleted, with its log
        if was_over:
            return
        await asyncio.sleep(RETRY_SECONDS)
