"""Operations on text that several parts of the package need."""

from __future__ import annotations


def last_lines(text: str, lines: int, characters: int) -> str:
    """The last `lines` lines of `text`, and of these at most the last `characters` characters."""
    return "\n".join(text.rstrip().splitlines()[-lines:])[-characters:]
