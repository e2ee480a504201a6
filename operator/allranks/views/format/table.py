"""Tables as kubectl prints them, and the same tables drawn by rich where the output is a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from allranks.control_sequences import clean

if TYPE_CHECKING:
    from rich.table import Table as RichTable


class Table:
    """Rows below their headers. Rows printed later keep the columns, which only get wider."""

    def __init__(
        self, headers: Sequence[str], indent: str = "", min_widths: Mapping[str, int] | None = None, gap: int = 3
    ) -> None:
        """`min_widths`: header -> width that later rows need. `gap`: spaces between columns."""
        self._headers = [header.upper() for header in headers]
        self._widths = [max(len(header), (min_widths or {}).get(header, 0)) for header in headers]
        self._indent, self._gap = indent, " " * gap
        self._begun = False

    def lines(self, rows: Iterable[Sequence[Any]]) -> Iterator[str]:
        """Yield the lines of further rows; the first call puts the headers in front."""
        texts = [[cell(value) for value in row] for row in rows]
        if not self._begun:
            texts.insert(0, self._headers)
            self._begun = True
        for row in texts:
            self._widths = [max(width, len(text)) for width, text in zip(self._widths, row, strict=True)]
        for row in texts:
            padded = (f"{text:<{width}}" for text, width in zip(row, self._widths, strict=True))
            yield (self._indent + self._gap.join(padded)).rstrip()


def cell(value: Any) -> str:
    """Make one line without control characters, so that output of a program cannot move the cursor."""
    if value is None:
        return ""
    return clean(" ".join(str(value).split()).encode(), colour=False)


class Styled(NamedTuple):
    """A cell with a rich style."""

    value: Any
    style: str

    def __str__(self) -> str:
        return "" if self.value is None else str(self.value)


@dataclass(frozen=True)
class Grid:
    """A whole table: `plain` for pipes and files, `rich` for terminals."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Any]]
    indent: str = "  "
    gap: int = 3

    def plain(self) -> Iterator[str]:
        return Table(self.headers, self.indent, gap=self.gap).lines(self.rows)

    def rich(self, *, wrap: bool) -> RichTable:
        """Make a table of rich. `wrap`: break cells that are too long for the terminal; otherwise crop them."""
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=None, padding=(0, self.gap, 0, 0), pad_edge=False, header_style="dim")
        for place, header in enumerate(self.headers):
            title = (self.indent if not place else "") + header.upper()
            table.add_column(
                title, no_wrap=not wrap or place < len(self.headers) - 1, overflow="fold" if wrap else "crop"
            )
        for row in self.rows:
            texts = [Text(cell(value), value.style if isinstance(value, Styled) else "") for value in row]
            texts[0].pad_left(len(self.indent))
            table.add_row(*texts)
        return table
