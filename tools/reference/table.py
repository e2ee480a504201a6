"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable


def table(head: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    """Cells may hold line breaks and `|`."""
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in (head, ("---",) * len(head), *rows))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
