"""Geometry of the SVG plots in the HTML report: positions only, report.html.j2 draws and escapes them. Pure.

x is a fraction of the width, which depends on the window; y is in pixels. So text has the same size in every window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from allranks.views.format.duration import moment
from allranks.views.format.plots import logarithmic, scaled
from allranks.views.format.progress import number

TEXT, BAR, GAP, CURVE, AXIS = 18, 20, 8, 170, 22
"""Heights of the text above a bar, a bar, the space below it, a curve and the time axis."""
TICKS = 6
MOST_CHARACTERS = 9
"""A label of the y axis has room for these (report.css)."""
LONGEST_LABEL = 120
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
    minor: bool = False
    """Left out in a narrow window."""


@dataclass(slots=True)
class Plot:
    """A plot. `id` is the prefix of its element ids."""

    id: str
    title: str
    description: str
    height: float
    axes: bool
    """Whether there is room for a y axis."""
    grid: list[tuple[float, float, float, float]] = field(default_factory=list)
    """(x1, y1, x2, y2)"""
    labels: list[Label] = field(default_factory=list)
    y_labels: list[tuple[float, str]] = field(default_factory=list)
    """(y, text)"""
    bars: list[tuple[str, float, float, float, str]] = field(default_factory=list)
    """(kind, x, y, width, title)"""
    strokes: list[list[tuple[float, float]]] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    """(x, title)"""


def bars(id: str, title: str, description: str, rows: Sequence[Row], seconds: float, axes: bool = True) -> Plot:
    """Draw rows of bars along a time of `seconds`, each below its label."""
    text = TEXT if any(row.label for row in rows) else 0
    plot = Plot(id, title, description, (text + BAR + GAP) * len(rows) + (AXIS if axes else 0), axes)
    for place, row in enumerate(rows):
        y = place * (text + BAR + GAP)
        plot.labels.append(Label(0, y + 13, "start", _cut(row.label)))
        for bar in row.bars:
            x, width = _x(bar.begin, seconds), max(bar.length / seconds, 0.001)
            plot.bars.append((bar.kind, x, y + text, min(width, 1 - x), bar.title))
    if axes:
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
    """Draw a curve of (seconds, value) for each attempt. `marks`: (seconds, title) of vertical lines."""
    plot = Plot(id, title, description, CURVE + AXIS, axes=True)
    values = [value for stroke in strokes for _, value in stroke] + ([0.0] if from_zero else [])
    ticks = _ticks(min(values), max(values), logarithmic(values))
    heights = [(1 - (share or 0.0)) * (CURVE - 12) + 6 for share in scaled([*values, *ticks])]
    for words, y in zip(_tick_labels(ticks), heights[len(values) :], strict=True):
        plot.grid.append((0, y, 1, y))
        plot.y_labels.append((y + 4, words))
    ys = iter(heights)
    plot.strokes = [[(_x(at, seconds), next(ys)) for at, _ in stroke] for stroke in strokes]
    plot.marks = [(_x(at, seconds), text) for at, text in marks]
    _add_time_axis(plot, seconds)
    return plot


def _add_time_axis(plot: Plot, seconds: float) -> None:
    step = next((step for step in _TIME_STEPS if step >= seconds / TICKS), 86400 * math.ceil(seconds / TICKS / 86400))
    for at in range(0, int(seconds) + 1, step):
        x = _x(at, seconds)
        anchor = "start" if not at else "end" if x > 0.97 else "middle"
        plot.grid.append((x, 0, x, plot.height - AXIS))
        plot.labels.append(Label(x, plot.height - 6, anchor, moment(at, seconds), minor=bool(at // step % 2)))


def _x(at: float, seconds: float) -> float:
    return min(1.0, max(0.0, at / seconds))


def _cut(text: str) -> str:
    """Shorten a text. The table beside the plot has all of it."""
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"


def _tick_labels(ticks: Sequence[float]) -> list[str]:
    """Write the labels of the y axis, with more digits if some are the same: `3.901`, `3.9015`."""
    labels = [_tick(tick) for tick in ticks]
    for digits in range(5, MOST_CHARACTERS):
        if len(set(labels)) == len(labels):
            break
        labels = [f"{tick:.{digits}g}" for tick in ticks]
    return labels


def _tick(value: float) -> str:
    """Write a label of the y axis: `0.0002`, `12500`, `1.2e-07`."""
    text = number(value)
    return text if len(text) <= MOST_CHARACTERS else f"{value:.3g}"


def _ticks(low: float, high: float, logs: bool) -> list[float]:
    """About five round values from `low` to `high`."""
    if logs:
        powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
        return [10.0**power for power in powers[:: math.ceil(len(powers) / 7)]]
    rough = high / 5 - low / 5
    if not 1e-300 < rough < math.inf:
        return [low]
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    return [place * step for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
