"""The loss curve in the terminal, and as a picture if matplotlib is installed."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common.files import write_atomically

BRAILLE = 0x2800
# Bit of each dot in a braille character, by row (0-3) and column (0-1).
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def draw_curve(losses: Sequence[float], width: int = 60, height: int = 10) -> str:
    """A plot of the losses of epochs 1, 2, ... with `height` lines of text plus the axis."""
    finite = [loss for loss in losses if abs(loss) < float("inf")]  # false for NaN too
    if not finite:
        return "no loss to draw"
    low, high = min(finite), max(finite)
    cells = [[0] * width for _ in range(height)]
    for x, y in curve_dots(losses, low, high, 2 * width, 4 * height):
        cells[y // 4][x // 2] |= DOTS[y % 4][x % 2]

    labels = {0: f"{high:.4f}", height - 1: f"{low:.4f}"}
    margin = max(map(len, labels.values()))
    lines = [f"{labels.get(row, ''):>{margin}} │{''.join(map(cell, cells[row])).rstrip()}" for row in range(height)]
    first, last = "epoch 1", str(len(losses))
    lines.append(" " * margin + " └" + "─" * width)
    lines.append(" " * (margin + 2) + first + last.rjust(width - len(first)))
    text = "\n".join(lines)
    return text if can_print(text) else text.translate(ASCII)


ASCII = {ord("│"): "|", ord("└"): "+", ord("─"): "-"} | {BRAILLE + bits: "*" for bits in range(1, 256)}


def cell(bits: int) -> str:
    """The character with these dots."""
    return chr(BRAILLE + bits) if bits else " "


def can_print(text: str) -> bool:
    """Whether the terminal's encoding has these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def curve_dots(losses: Sequence[float], low: float, high: float, columns: int, rows: int) -> set[tuple[int, int]]:
    """(column, row) of each dot of the line through the losses, row 0 at the top. A loss that is not finite is a
    gap."""

    def dot(index: int) -> tuple[float, float] | None:
        if not abs(losses[index]) < float("inf"):
            return None
        x = index * (columns - 1) / max(1, len(losses) - 1)
        y = (high - losses[index]) * (rows - 1) / ((high - low) or 1.0)
        return x, y

    points = [dot(index) for index in range(len(losses))]
    dots = {(round(point[0]), round(point[1])) for point in points if point}
    for start, end in itertools.pairwise(points):
        if start and end:
            steps = 1 + round(max(abs(end[0] - start[0]), abs(end[1] - start[1])))
            for step in range(steps + 1):
                share = step / steps
                dots.add((round(start[0] + share * (end[0] - start[0])), round(start[1] + share * (end[1] - start[1]))))
    return dots


def save_picture(
    curves: Mapping[str, Sequence[float]],
    path: Path,
    title: str,
    write: Callable[[Path, bytes], None] = write_atomically,
) -> bool:
    """Save the losses of epochs 1, 2, ... by name as a PNG. False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")  # no pyplot: it would look for a display
    axes = figure.add_subplot()
    for name, losses in curves.items():
        marker = "." if len(losses) < 60 else ""
        axes.plot(range(1, len(losses) + 1), losses, marker=marker, linewidth=1.5, label=name)
    axes.set(xlabel="epoch", ylabel="loss", title=title)
    axes.legend()
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write(path, picture.getvalue())
    return True
