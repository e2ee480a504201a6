"""Geometry of the SVG plots in the HTML report: positions only, report.html.j2 draws and escapes them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from allranks.cli.format.duration import clock
from allranks.cli.format.plots import logarithmic, scaled
from allranks.cli.format.progress import number

WIDTH, LEFT, RIGHT = 960, 64, 130
"""The same for all plots along time, so that their time axes are aligned."""
ROW, BAR, CURVE, AXIS = 28, 20, 170, 22
"""Heights of a row, its bars, a curve and the time axis."""
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


class Bar(NamedTuple):
    """A part of a row, in seconds. `kind` is a CSS class."""

    kind: str
    begin: float
    length: float
    title: str


class Row(NamedTuple):
    label: str
    bars: Sequence[Bar]
    note: str = ""


class Label(NamedTuple):
    x: float
    y: float
    anchor: str
    text: str


@dataclass(slots=True)
class Plot:
    """A plot of WIDTH x `height`. `id` is the prefix of its element ids."""

    id: str
    title: str
    description: str
    height: float
    grid: list[tuple[float, float, float, float]] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    bars: list[tuple[str, float, float, float, str]] = field(default_factory=list)
    """(kind, x, y, width, title)"""
    strokes: list[list[tuple[float, float]]] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    """(x, title)"""


def bars(
    id: str, title: str, description: str, rows: Sequence[Row], seconds: float, axis: bool = True, left: int = LEFT
) -> Plot:
    """Rows of bars along a time of `seconds`."""
    plot = Plot(id, title, description, ROW * len(rows) + (AXIS if axis else 0))
    wide = WIDTH - left - RIGHT
    for place, row in enumerate(rows):
        y = place * ROW
        plot.labels.append(Label(left - 10, y + 15, "end", _cut(row.label, left)))
        plot.labels.append(Label(WIDTH - RIGHT + 8, y + 15, "start", _cut(row.note, RIGHT)))
        for bar in row.bars:
            x, width = left + bar.begin / seconds * wide, max(bar.length / seconds * wide, 1.0)
            plot.bars.append((bar.kind, x, y, width, bar.title))
    if axis:
        _add_time_axis(plot, seconds)
    return plot


def curve(
    id: str,
    title: str,
    description: str,
    strokes: Sequence[Sequence[tuple[float, float]]],
    seconds: float,
    marks: Iterable[tuple[float, str]] = (),
    from_zero: bool = False,
) -> Plot:
    """A curve of (seconds, value) for each attempt. `marks`: (seconds, title) of vertical lines."""
    plot = Plot(id, title, description, CURVE + AXIS)
    values = [value for stroke in strokes for _, value in stroke] + ([0.0] if from_zero else [])
    ticks = _ticks(min(values), max(values), logarithmic(values))
    heights = [(1 - (share or 0.0)) * (CURVE - 12) + 6 for share in scaled([*values, *ticks])]
    for tick, y in zip(ticks, heights[len(values) :], strict=True):
        plot.grid.append((LEFT, y, WIDTH - RIGHT, y))
        plot.labels.append(Label(LEFT - 8, y + 4, "end", number(tick)))
    ys = iter(heights)
    plot.strokes = [[(_x(at, seconds), next(ys)) for at, _ in stroke] for stroke in strokes]
    plot.marks = [(_x(at, seconds), text) for at, text in marks]
    _add_time_axis(plot, seconds)
    return plot


def _add_time_axis(plot: Plot, seconds: float) -> None:
    step = next((step for step in _TIME_STEPS if step >= seconds / 6), 86400 * math.ceil(seconds / 6 / 86400))
    for at in range(0, int(seconds) + 1, step):
        x = _x(at, seconds)
        plot.grid.append((x, 0, x, plot.height - AXIS))
        plot.labels.append(Label(x, plot.height - 6, "middle" if at else "start", clock(at)))


def _x(at: float, seconds: float) -> float:
    return LEFT + min(1.0, max(0.0, at / seconds)) * (WIDTH - LEFT - RIGHT)


def _cut(text: str, room: int) -> str:
    """The table beside the plot has the whole text."""
    return text if len(text) <= room // 8 else f"{text[: room // 8 - 1]}…"


def _ticks(low: float, high: float, logs: bool) -> list[float]:
    """About five round values from `low` to `high`."""
    if logs:
        powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
        return [10.0**power for power in powers[:: math.ceil(len(powers) / 5)]]
    rough = high / 4 - low / 4
    if not 1e-300 < rough < math.inf:
        return [low]
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    return [place * step for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
