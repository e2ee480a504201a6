"""Text plots for a terminal: bars, sparklines and curves, in Unicode or ASCII. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_STEPS = "_.-~=+*#"
_PARTS = {"queued": "░·", "starting": "▒-", "productive": "█=", "lost": "▚x", "uploading": "▲^"}
"""Kind of time -> its Unicode and ASCII character. They differ without colours too."""
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, by row and column."""
LOGARITHMIC = 1000
"""Values that differ by more than this factor get a logarithmic scale."""


def supports_unicode(encoding: str | None) -> bool:
    """Return whether a stream of this encoding can show more than ASCII."""
    return (encoding or "").lower().replace("-", "").startswith("utf")


def bar(fraction: float, width: int, unicode: bool = True) -> str:
    """Draw a progress bar."""
    full = round(min(max(fraction, 0.0), 1.0) * width)
    return ("█" if unicode else "#") * full + ("░" if unicode else "-") * (width - full)


def parts(seconds: dict[str, float], width: int, unicode: bool = True) -> list[tuple[str, str]]:
    """Draw a stacked bar as (kind, characters).

    A kind with time gets at least one character if the width allows it.
    """
    total = sum(seconds.values())
    present = {kind: value for kind, value in seconds.items() if value > 0}
    if not present or width < len(present):
        return []
    exact = {kind: value / total * width for kind, value in present.items()}
    cells = {kind: max(1, math.floor(value)) for kind, value in exact.items()}
    while sum(cells.values()) > width:
        cells[max(cells, key=lambda kind: cells[kind] - exact[kind] if cells[kind] > 1 else -math.inf)] -= 1
    while sum(cells.values()) < width:
        cells[max(cells, key=lambda kind: exact[kind] - cells[kind])] += 1
    return [(kind, part(kind, unicode) * count) for kind, count in cells.items()]


def part(kind: str, unicode: bool = True) -> str:
    """Return the character of a kind of time."""
    return _PARTS[kind][0 if unicode else 1]


def sparkline(values: Sequence[float | None], width: int, unicode: bool = True, stretch: bool = False) -> str:
    """Draw a curve in one line of at most `width` characters. None is a gap. `stretch`: few values are drawn wider."""
    steps = _BLOCKS if unicode else _STEPS
    heights = scaled(_means(values, width))
    if stretch and values:
        heights = [height for height in heights for _ in range(max(1, width // len(values)))]
    top = len(steps) - 1
    return "".join(" " if height is None else steps[min(top, int(height * len(steps)))] for height in heights)


def curve(
    strokes: Sequence[Sequence[tuple[float, float]]],
    width: int,
    height: int,
    unicode: bool = True,
    x_range: tuple[float, float] | None = None,
    floor: float | None = None,
) -> list[str]:
    """Draw curves of (x, y) in `height` lines of `width` characters: braille has 2 x 4 dots in each, ASCII one star.

    The points of one stroke are joined. `floor` is the lowest value of the y axis, if not the lowest point.
    """
    wide, high = (width * 2, height * 4) if unicode else (width, height)
    points = [(x, y, number) for number, stroke in enumerate(strokes) for x, y in stroke]
    points = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    first, last = x_range or (min((x for x, *_ in points), default=0), max((x for x, *_ in points), default=0))
    heights = [y for _, y, _ in points]
    levels = scaled(heights) if floor is None else scaled([*heights, floor])[:-1]
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
    """Return whether to use a logarithmic scale, for example for a loss that starts at 10,000 and ends at 0.1."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > LOGARITHMIC


def scaled(values: Sequence[float | None]) -> list[float | None]:
    """Scale values from 0, the lowest, to 1, the highest; 0.5 if all are the same."""
    if logarithmic(values):
        values = [None if value is None or not math.isfinite(value) else math.log(value) for value in values]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)

    def height(value: float | None) -> float | None:
        if value is None or not math.isfinite(value):
            return None
        # Halves, because the difference of two very large floats is infinite.
        return (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5

    return [height(value) for value in values]


def _means(values: Sequence[float | None], width: int) -> list[float | None]:
    """Average neighbours, so that at most `width` values remain."""
    if len(values) <= width:
        return list(values)
    means: list[float | None] = []
    for place in range(width):
        neighbours = values[place * len(values) // width : max((place + 1) * len(values) // width, 1)]
        finite = [value for value in neighbours if value is not None and math.isfinite(value)]
        means.append(sum(finite) / len(finite) if finite else None)
    return means


def _line(start: tuple[int, int] | None, end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the cells from `start` to `end`, so that the curve has no gaps."""
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
