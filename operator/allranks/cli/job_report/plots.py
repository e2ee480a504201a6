"""Geometry of the SVG plots in the HTML report: positions only, report.html.j2 draws and escapes them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from allranks.cli.format.duration import moment
from allranks.cli.format.plots import logarithmic, scaled
from allranks.cli.format.progress import number

WIDTH, LEFT, RIGHT = 960, 72, 14
"""The same for all plots along time, so that their time axes are aligned."""
HALF = 466
"""Width of the plots of further metrics, of which two fit side by side."""
TEXT, BAR, GAP, CURVE, AXIS = 18, 20, 8, 170, 22
"""Heights of the text above a bar, a bar, the space below it, a curve and the time axis."""
_CHARACTER = 6.7
"""Mean width of a character in labels."""
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


class Label(NamedTuple):
    x: float
    y: float
    anchor: str
    text: str


@dataclass(slots=True)
class Plot:
    """A plot of `width` x `height`. `id` is the prefix of its element ids."""

    id: str
    title: str
    description: str
    height: float
    width: float = WIDTH
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
    """Rows of bars along a time of `seconds`, each below its label."""
    text = TEXT if any(row.label for row in rows) else 0
    plot = Plot(id, title, description, (text + BAR + GAP) * len(rows) + (AXIS if axis else 0))
    wide = WIDTH - left - RIGHT
    for place, row in enumerate(rows):
        y = place * (text + BAR + GAP)
        plot.labels.append(Label(left, y + 13, "start", _cut(row.label, wide)))
        for bar in row.bars:
            x, width = left + bar.begin / seconds * wide, max(bar.length / seconds * wide, 1.0)
            plot.bars.append((bar.kind, x, y + text, width, bar.title))
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
    width: float = WIDTH,
) -> Plot:
    """A curve of (seconds, value) for each attempt. `marks`: (seconds, title) of vertical lines."""
    plot = Plot(id, title, description, CURVE + AXIS, width)
    values = [value for stroke in strokes for _, value in stroke] + ([0.0] if from_zero else [])
    ticks = _ticks(min(values), max(values), logarithmic(values))
    heights = [(1 - (share or 0.0)) * (CURVE - 12) + 6 for share in scaled([*values, *ticks])]
    for tick, y in zip(ticks, heights[len(values) :], strict=True):
        plot.grid.append((LEFT, y, width - RIGHT, y))
        plot.labels.append(Label(LEFT - 8, y + 4, "end", _tick(tick)))
    ys = iter(heights)
    plot.strokes = [[(_x(plot, at, seconds), next(ys)) for at, _ in stroke] for stroke in strokes]
    plot.marks = [(_x(plot, at, seconds), text) for at, text in marks]
    _add_time_axis(plot, seconds)
    return plot


def _add_time_axis(plot: Plot, seconds: float) -> None:
    most = max(2, int(plot.width / 160))
    step = next((step for step in _TIME_STEPS if step >= seconds / most), 86400 * math.ceil(seconds / most / 86400))
    for at in range(0, int(seconds) + 1, step):
        x, text = _x(plot, at, seconds), moment(at, seconds)
        plot.grid.append((x, 0, x, plot.height - AXIS))
        half = len(text) * _CHARACTER / 2
        plot.labels.append(Label(min(x, plot.width - half), plot.height - 6, "middle" if at else "start", text))


def _x(plot: Plot, at: float, seconds: float) -> float:
    return LEFT + min(1.0, max(0.0, at / seconds)) * (plot.width - LEFT - RIGHT)


def _cut(text: str, room: float) -> str:
    """The table beside the plot has the whole text."""
    most = int(room / _CHARACTER)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _tick(value: float) -> str:
    """A label of the y axis, which is at most `LEFT` wide: `0.0002`, `12500`, `1.2e-07`."""
    text = number(value)
    return text if len(text) * _CHARACTER <= LEFT - 8 else f"{value:.3g}"


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
