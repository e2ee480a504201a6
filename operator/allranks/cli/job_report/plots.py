"""Plots as SVG, made by hand: no script, no style from elsewhere, a title and a description in each. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from allranks.cli.format.plots import logarithmic
from allranks.cli.format.progress import number
from allranks.cli.job_report.text import when
from allranks.control_sequences import clean

WIDTH = 960
LEFT, RIGHT = 64, 130
"""Of all plots along time, so that what is below one another happened at the same moment."""
TICKS = 5
MARK_ROWS = 3


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a row: `kind` is its class in the page's style."""

    kind: str
    begin: float
    length: float
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """Bars beside one another."""

    label: str
    bars: Sequence[Bar]
    note: str = ""


def text(words: object) -> str:
    """Words of users and programs, made harmless: escaped, in one line, without control characters."""
    return spaced(" ".join(str(words).split()))


def spaced(line: str) -> str:
    """The same, of a line whose spaces matter."""
    return escape(clean(line.encode(errors="replace"), colour=False), quote=True)


def rows(
    name: str, title: str, about: str, content: Sequence[Row], reach: float, ticks: bool = True, left: int = LEFT
) -> str:
    """Bars in rows, along a time of `reach` seconds. `name` is that of its ids, `left` the room of the labels."""
    step, top, right = 28, 6, RIGHT
    height = top + step * len(content) + (22 if ticks else 4)
    wide = WIDTH - left - right
    parts = list(_time_axis(left, wide, height - 6, reach, top)) if ticks else []
    for place, row in enumerate(content):
        y = top + place * step
        parts.append(
            f'<text class="label" x="{left - 10}" y="{y + 15}" text-anchor="end">{_short(row.label, left)}</text>'
        )
        for bar in row.bars:
            x, length = left + _part(bar.begin, reach) * wide, max(_part(bar.length, reach) * wide, 1.0)
            parts.append(
                f'<rect class="{text(bar.kind)}" x="{x:.1f}" y="{y}" width="{length:.1f}" height="20">'
                f"<title>{text(bar.title)}</title></rect>"
            )
        if row.note:
            parts.append(f'<text class="label" x="{WIDTH - right + 8}" y="{y + 15}">{_short(row.note, right)}</text>')
    return _framed(name, title, about, height, parts)


def curve(
    name: str,
    title: str,
    about: str,
    strokes: Sequence[Sequence[tuple[float, float]]],
    reach: float,
    marks: Iterable[tuple[float, str]] = (),
    from_zero: bool = False,
) -> str:
    """Curves of (seconds, value), one for each attempt; `marks` are (seconds, what happened)."""
    wide, high = WIDTH - LEFT - RIGHT, 170
    named = list(_named((LEFT + _part(seconds, reach) * wide, what) for seconds, what in marks))
    top = 12 + 14 * max((row + 1 for *_, row in named), default=0)
    height = top + high + 28
    known = [value for stroke in strokes for _, value in stroke]
    logs = not from_zero and logarithmic(known)
    low, high_value = (min(known), max(known)) if known else (0.0, 1.0)
    if from_zero:
        low = min(low, 0.0)
    if not logs:
        high_value += (high_value / 2 - low / 2) * 0.1 * (abs(high_value) < 1e300)
    if high_value <= low:
        low, high_value = (low - 0.5, high_value + 0.5) if math.isfinite(low - 0.5) else (0.0, 1.0)
    # By halves: the difference of two that are as large as numbers get is infinite.
    scale = (lambda value: math.log(value)) if logs else (lambda value: value / 2)

    def at(seconds: float, value: float) -> tuple[float, float]:
        share = (scale(value) - scale(low)) / (scale(high_value) - scale(low))
        return LEFT + _part(seconds, reach) * wide, top + (1 - share) * high

    parts: list[str] = []
    for value in _levels(low, high_value, logs):
        y = at(0, value)[1]
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + wide}" y2="{y:.1f}"/>')
        parts.append(f'<text class="label" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')
    parts += _marks(named, top, high)
    for stroke in strokes:
        places = [at(seconds, value) for seconds, value in stroke]
        if len(places) == 1:
            parts.append(f'<circle class="dot" cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="2.5"/>')
        elif places:
            parts.append(f'<polyline class="curve" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
    parts += _time_axis(LEFT, wide, height - 6, reach, top)
    return _framed(name, title, about, height, parts)


def _short(words: str, room: int) -> str:
    """As much as there is room for; the table beside the plot has all of it."""
    most = max(3, room // 8)
    return text(words if len(words) <= most else f"{words[: most - 1]}…")


def _marks(named: Iterable[tuple[float, str, float | None, int]], top: float, high: float) -> Iterable[str]:
    """Lines across a plot, named above it where there is room: the table of restarts has all of them."""
    for x, what, begin, row in named:
        line = f'<line class="mark" x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{top + high}">'
        yield f"{line}<title>{text(what)}</title></line>"
        if begin is not None:
            side = f'x="{x:.1f}"' if begin >= x else f'x="{x:.1f}" text-anchor="end"'
            yield f'<text class="label" {side} y="{top - 8 - row * 14}">{_short(what, RIGHT)}</text>'


def _named(places: Iterable[tuple[float, str]]) -> Iterator[tuple[float, str, float | None, int]]:
    """(x, what, where its name begins or None, in which row), so that no name covers another."""
    ends = [0.0] * MARK_ROWS
    for x, what in places:
        length = 8.0 * min(len(what), RIGHT // 8)
        begin = x if x + length < WIDTH else x - length
        row = next((row for row, end in enumerate(ends) if end < begin), None)
        if row is None:
            yield x, what, None, 0
        else:
            ends[row] = begin + length
            yield x, what, begin, row


def _framed(name: str, title: str, about: str, height: float, parts: Iterable[str]) -> str:
    size, names = f"0 0 {WIDTH} {height:.0f}", f"{name}-title {name}-about"
    return (
        f'<div class="wide"><svg viewBox="{size}" role="img" aria-labelledby="{names}">'
        f'<title id="{name}-title">{text(title)}</title><desc id="{name}-about">{text(about)}</desc>'
        f"{''.join(parts)}</svg></div>"
    )


def _time_axis(left: float, wide: float, y: float, reach: float, top: float) -> list[str]:
    parts = []
    for seconds in _times(reach):
        x = left + _part(seconds, reach) * wide
        anchor = "start" if seconds == 0 else "middle"
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{y - 14:.1f}"/>')
        parts.append(f'<text class="label" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{when(seconds)}</text>')
    return parts


_ROUND = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Seconds at which people look for a mark."""


def _times(reach: float) -> list[float]:
    """Round moments within the reach, six or so."""
    least = reach / 6
    step = next((seconds for seconds in _ROUND if seconds >= least), 86400 * math.ceil(least / 86400))
    return [float(place * step) for place in range(int(reach / step) + 1)]


def _levels(low: float, high: float, logs: bool) -> list[float]:
    """Values for the lines of the grid."""
    if logs:
        first, last = math.log(low), math.log(high)
        return [math.exp(first + (last - first) * place / (TICKS - 1)) for place in range(TICKS)]
    rough = high / (TICKS - 1) - low / (TICKS - 1)
    if not (rough > 0 and math.isfinite(rough)):
        return [low]
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    first = math.ceil(low / step)
    return [place * step for place in range(first, first + TICKS + 2) if place * step <= high + step * 1e-9] or [low]


def _part(seconds: float, reach: float) -> float:
    return min(1.0, max(0.0, seconds / reach)) if reach > 0 else 0.0
