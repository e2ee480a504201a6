"""Operations on text that several parts of the package need."""

from __future__ import annotations


def last_lines(text: str, lines: int, characters: int) -> str:
    """The last `lines` lines of `text`, and of these at most the last `characters` characters."""
    return "\n".join(text.rstrip().splitlines()[-lines:])[-characters:]


def size(number: float) -> str:
    """`512 B`, `1.4 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError
