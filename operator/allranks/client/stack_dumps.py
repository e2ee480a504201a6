"""Finds the stack dumps in logs (allranks.report.stacks and allranks.inpod.watch write them). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_STACKS = "stacks, asked for because"
"""In the first line of a dump."""
_DUMP_LINES = ("Thread ", "Current thread", '  File "', "  ...", "... and ", "allranks: unfinished")
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z ")


def lines_of_dumps(lines: Iterable[str]) -> Iterator[str]:
    """The lines of all dumps, one after another."""
    for dump in dumps(lines):
        yield from dump


def dumps(lines: Iterable[str]) -> Iterator[list[str]]:
    """Each dump: from the line that announces it to the next line that is not part of it."""
    dump: list[str] = []
    for line in lines:
        if _STACKS in line:
            if dump:
                yield dump
            dump = [line]
        elif dump and _in_dump(line):
            dump.append(line)
        elif dump:
            yield dump
            dump = []
    if dump:
        yield dump


def _in_dump(line: str) -> bool:
    text = _STAMP.sub("", line)
    return not text or text.startswith(_DUMP_LINES)
