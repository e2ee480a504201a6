"""Plots of characters: bars, sparklines and curves for a terminal; plain ASCII where it knows no other. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_STEPS = "_.-~=+*#"
_PARTS = {"queued": "░·", "starting": "▒-", "productive": "█=", "lost": "▚x"}
"""Kind of time -> how it is drawn, in Unicode and in ASCII. Without colours, too, the four are told apart."""
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, by row and column."""
LOGARITHMIC = 1000
"""Values that differ by more than this factor are drawn by their logarithm."""


def draws(encoding: str | None) -> bool:
    """Whether a stream of this encoding can show more than ASCII."""
    return (encoding or "").lower().replace("-", "").startswith("utf")


def bar(fraction: float, width: int, unicode: bool = True) -> str:
    """How much of a whole."""
    full = round(min(max(fraction, 0.0), 1.0) * width)
    return ("█" if unicode else "#") * full + ("░" if unicode else "-") * (width - full)


def parts(seconds: dict[str, float], width: int, unicode: bool = True) -> list[tuple[str, str]]:
    """Times side by side: (kind, characters). What is there at all gets a character, if there is room."""
    total = sum(seconds.values())
    there = {kind: value for kind, value in seconds.items() if value > 0}
    if not there or width < len(there):
        return []
    exact = {kind: value / total * width for kind, value in there.items()}
    cells = {kind: max(1, math.floor(value)) for kind, value in exact.items()}
    while sum(cells.values()) > width:
        cells[max(cells, key=lambda kind: cells[kind] - exact[kind] if cells[kind] > 1 else -math.inf)] -= 1
    while sum(cells.values()) < width:
        cells[max(cells, key=lambda kind: exact[kind] - cells[kind])] += 1
    return [(kind, part(kind, unicode) * count) for kind, count in cells.items()]


def part(kind: str, unicode: bool = True) -> str:
    """The character of a kind of time."""
    return _PARTS[kind][0 if unicode else 1]


def sparkline(values: Sequence[float | None], width: int, unicode: bool = True) -> str:
    """A curve in one line, of at most `width` characters; a value that is not there is a gap."""
    steps = _BLOCKS if unicode else _STEPS
    heights = _heights(_means(values, width))
    top = len(steps) - 1
    return "".join(" " if height is None else steps[min(top, int(height * len(steps)))] for height in heights)


def curve(
    strokes: Sequence[Sequence[tuple[float, float]]],
    width: int,
    height: int,
    unicode: bool = True,
    reach: tuple[float, float] | None = None,
    floor: float | None = None,
) -> list[str]:
    """Curves of (x, y) in `height` lines of `width` characters: braille has 2 x 4 dots in each, ASCII one star.

    Points of one stroke are joined; `reach` is the first and the last x that there is room for. With a floor the
    lines begin there: what is nearly the same looks so.
    """
    wide, high = (width * 2, height * 4) if unicode else (width, height)
    points = [(x, y, number) for number, stroke in enumerate(strokes) for x, y in stroke]
    points = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    first, last = reach or (min((x for x, *_ in points), default=0), max((x for x, *_ in points), default=0))
    heights = [y for _, y, _ in points]
    levels = _heights(heights) if floor is None else _heights([*heights, floor])[:-1]
    grid = [[False] * wide for _ in range(high)]
    before: tuple[int, int, int] | None = None
    for (x, _, number), level in zip(points, levels, strict=True):
        column = round((x - first) / (last - first) * (wide - 1)) if last > first else 0
        place = (column, high - 1 - min(high - 1, int((level or 0.0) * high)))
        joined = before[:2] if before and before[2] == number else None
        for at_column, at_row in _line(joined, place):
            if 0 <= at_column < wide:
                grid[at_row][at_column] = True
        before = (*place, number)
    if not unicode:
        return ["".join("*" if dot else " " for dot in line) for line in grid]
    return ["".join(_braille(grid, row, column) for column in range(width)) for row in range(height)]


def logarithmic(values: Sequence[float | None]) -> bool:
    """Whether these are better drawn by their logarithm: a loss that begins at 10,000 and ends at 0.1."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) / min(known) > LOGARITHMIC


def _heights(values: Sequence[float | None]) -> list[float | None]:
    """From 0, the lowest, to 1; in the middle where all are the same."""
    if logarithmic(values):
        values = [None if value is None or not math.isfinite(value) else math.log(value) for value in values]
    known = [value for value in values if value is not None and math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)

    def height(value: float | None) -> float | None:
        if value is None or not math.isfinite(value):
            return None
        # By halves: the difference of two that are as large as numbers get is infinite.
        return (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5

    return [height(value) for value in values]


def _means(values: Sequence[float | None], width: int) -> list[float | None]:
    """So many that they fit."""
    if len(values) <= width:
        return list(values)
    made: list[float | None] = []
    for place in range(width):
        some = values[place * len(values) // width : max((place + 1) * len(values) // width, 1)]
        known = [value for value in some if value is not None and math.isfinite(value)]
        made.append(sum(known) / len(known) if known else None)
    return made


def _line(start: tuple[int, int] | None, end: tuple[int, int]) -> list[tuple[int, int]]:
    """The cells from the one to the other, so that a curve has no holes."""
    if start is None:
        return [end]
    many = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (round(start[0] + (end[0] - start[0]) * n / many), round(start[1] + (end[1] - start[1]) * n / many))
        for n in range(1, many + 1)
    ]


def _braille(grid: list[list[bool]], row: int, column: int) -> str:
    bits = 0
    for y, line in enumerate(_DOTS):
        for x, bit in enumerate(line):
            if grid[row * 4 + y][column * 2 + x]:
                bits |= bit
    return chr(0x2800 + bits)
