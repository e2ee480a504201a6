"""Tables and durations as kubectl prints them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from allranks.control_sequences import clean


class Table:
    """Rows below their headers. Rows that come later keep to the columns, which only grow."""

    def __init__(self, headers: Sequence[str], indent: str = "", room: Mapping[str, int] | None = None) -> None:
        """`room`: header -> width that later rows will need."""
        self._headers = [header.upper() for header in headers]
        self._widths = [max(len(header), (room or {}).get(header, 0)) for header in headers]
        self._indent = indent
        self._begun = False

    def lines(self, rows: Iterable[Sequence[Any]]) -> Iterator[str]:
        """The lines of further rows, the first time below the headers."""
        texts = [[cell(value) for value in row] for row in rows]
        if not self._begun:
            texts.insert(0, self._headers)
            self._begun = True
        for row in texts:
            self._widths = [max(width, len(text)) for width, text in zip(self._widths, row, strict=True)]
        for row in texts:
            padded = (f"{text:<{width}}" for text, width in zip(row, self._widths, strict=True))
            yield (self._indent + "   ".join(padded)).rstrip()


def cell(value: Any) -> str:
    """One line, without control characters: what a program wrote must not move the cursor."""
    if value is None:
        return ""
    return clean(" ".join(str(value).split()).encode(), colour=False)


def age(stamp: str | datetime | None, now: datetime | None = None) -> str:
    """Time since then in at most two units, as kubectl tells it: `95s`, `5m30s`, `3h`, `2d5h`."""
    if not stamp:
        return "<unknown>"
    then = datetime.fromisoformat(stamp) if isinstance(stamp, str) else stamp
    return span(((now or datetime.now(UTC)) - then).total_seconds())


def span(seconds: float) -> str:
    """kubectl's HumanDuration: two units while the smaller one matters."""
    total = max(0, int(seconds))
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return f"{minutes}m{total % 60}s" if total % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    return f"{days // 365}y{days % 365}d" if days % 365 and days < 2920 else f"{days // 365}y"
