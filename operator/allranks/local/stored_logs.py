"""Reads the logs of a run in blocks: their end, what matches a search, and what is appended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from allranks.kube.bounded_lines import LONGEST_LINE, LastLines, Splitter, joined

BLOCK = 256 * 1024
TAIL_BYTES = 8 * 2**20
"""The end of a file in which the last lines are looked for."""
SEARCH_BYTES = 256 * 2**20
"""The end of a file that is searched."""
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class StoredLog:
    """The log of one pod of a run."""

    path: Path
    role: str
    index: int
    attempt: int
    restart: int

    @property
    def replica(self) -> str:
        return f"{self.role}-{self.index}"


def matches(line: bytes, search: bytes) -> bool:
    """Return whether it contains the text. ASCII letters match in both cases."""
    return not search or search in line.lower()


def stored_logs(directory: Path, job: str) -> list[StoredLog]:
    """Return the logs of the training containers in a run directory, by attempt and replica. Files with other names are
    left out."""
    form = re.compile(rf"{re.escape(job)}-(?P<role>[a-z0-9]+)-(?P<index>\d+)-(?P<attempt>\d+)(-(?P<restart>\d+))?")
    logs = []
    with contextlib.suppress(OSError):
        for path in (directory / "logs").glob("*.log"):
            # A link could lead anywhere.
            if (match := form.fullmatch(path.stem)) and path.is_file() and not path.is_symlink():
                numbers = (int(match[name] or 0) for name in ("index", "attempt", "restart"))
                logs.append(StoredLog(path, match["role"], *numbers))
    return sorted(logs, key=lambda log: (log.attempt, log.role, log.index, log.restart))


def last_lines(path: Path, lines: int, search: str = "") -> tuple[list[bytes], int, bool]:
    """Return the last lines that contain `search`, where the file ended, and whether the file has more before them.

    Raise OSError.
    """
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        begin = max(0, end - (SEARCH_BYTES if search else TAIL_BYTES))
        if not search:
            begin = _begin_of_last(file.fileno(), begin, end, lines)
        kept, text = LastLines[bytes](lines), search.lower().encode()
        blocks = _blocks(file.fileno(), begin, end)
        for line in joined(_with(blocks, text) if text else blocks):
            if matches(line, text):
                kept.add(line, len(line))
        return list(kept), end, begin > 0 or kept.cut


def _begin_of_last(descriptor: int, first: int, end: int, lines: int) -> int:
    """Return the position of the last lines, not before `first`. Newlines are counted from the end, block by block."""
    place, newlines = end, 0
    while place > first:
        begin = max(first, place - BLOCK)
        block = os.pread(descriptor, place - begin, begin)
        # The newline at the very end ends the last line.
        cut = len(block) - 1 if place == end and block.endswith(b"\n") else len(block)
        while (cut := block.rfind(b"\n", 0, cut)) >= 0:
            newlines += 1
            if newlines == lines:
                return begin + cut + 1
        place = begin
    return first


def _blocks(descriptor: int, begin: int, end: int) -> Iterator[bytes]:
    while begin < end and (block := os.pread(descriptor, min(BLOCK, end - begin), begin)):
        yield block
        begin += len(block)


def _with(blocks: Iterator[bytes], text: bytes) -> Iterator[bytes]:
    """Leave out lines of blocks that do not contain the text: to split them takes much longer than to look for it."""
    rest, continued = b"", False
    for block in blocks:
        cut = block.rfind(b"\n") + 1
        if not cut:  # a line that is longer than a block
            yield rest + block
            rest, continued = b"", True
            continue
        lines = rest + block[:cut]
        if continued or text in lines.lower():
            yield lines
        rest, continued = block[cut:], False
    yield rest


async def appended(path: Path, begin: int, over: Callable[[], Awaitable[bool]]) -> AsyncGenerator[list[bytes]]:
    """Yield the lines after the byte `begin` as they are written, until `over()` and the end of the file.

    An empty list says that there is nothing new.
    """
    splitter, place = Splitter(LONGEST_LINE), begin
    while True:
        was_over = await over()
        try:
            block = await asyncio.to_thread(_read, path, place)
        except OSError:
            return  # the run was removed
        place += len(block)
        if lines := list(splitter.feed(block)):
            yield lines
        if block:
            continue
        if was_over:
            break
        yield []
        await asyncio.sleep(POLL_SECONDS)
    if lines := list(splitter.end()):
        yield lines


def _read(path: Path, place: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), BLOCK, place)
