"""The content of `allranks top`: lines and tables, from jobs with their status. Pure.

A line is a list of (text, style). rich draws lines and tables on a terminal; elsewhere they are printed as plain text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from allranks.api.status import ProgressStatus
from allranks.core.accounting import time_accounting
from allranks.core.facts.naming import rank_name
from allranks.fields import encode
from allranks.views.format import plots
from allranks.views.format import progress as progress_text
from allranks.views.format.duration import age, elapsed, human
from allranks.views.format.json_form import as_json
from allranks.views.format.outcome import failure_line, last_begin
from allranks.views.format.table import Grid, Styled, cell
from allranks.views.job_view import LAST, ORDER, JobView
from allranks.views.live.summary import PHASES
from allranks.views.live.terminal import Line
from allranks.views.report.model import Report, build_report

KINDS = {"queued": "bright_black", "starting": "yellow", "productive": "green", "lost": "red", "uploading": "cyan"}
"""Kind of time -> style."""
CURVE_LINES = 6
WIDTH = 84
"""Width of plots, if the terminal is wide enough."""
GAP = 2
"""Spaces between the columns of tables."""


def data(view: JobView) -> dict[str, Any]:
    """Return the shown facts of a job, as JSON."""
    status, progress, share = view.status, view.status.progress, view.goodput_share
    rate = progress_text.step_rate(progress)
    return {
        "name": view.name,
        "namespace": view.namespace,
        "framework": view.framework,
        "phase": view.phase,
        "ready": status.ready,
        "gpus": view.gpus,
        "attempt": status.attempt,
        "restarts": as_json(status.restarts),
        "stepsPerSecond": round(rate, 4) if rate is not None and view.running else None,
        "progress": progress and encode(progress),
        "times": view.times or None,
        "lostBy": view.lost,
        "goodput": share if view.measured else None,
        "goodputLimit": None if view.measured else share,
        "measured": view.measured,
    }


# --- all jobs --------------------------------------------------------------------------------------------------------


def jobs(
    views: Sequence[JobView], width: int, height: int, unicode: bool, *, namespaces: bool
) -> Iterator[Line | Grid]:
    """Make a table of jobs, running jobs first. `height` 0: all jobs; `width` 0: all columns."""
    ordered = sorted(views, key=lambda view: (ORDER.get(view.phase, LAST), cell(view.namespace), cell(view.name)))
    yield _totals(ordered)
    yield []
    room = len(ordered) if not height else max(1, height - 4)
    shown = ordered if len(ordered) <= room else ordered[: room - 1]
    yield _table([column for column in _columns(unicode) if namespaces or column.title != "NAMESPACE"], shown, width)
    if len(shown) < len(ordered):
        yield [(f"and {len(ordered) - len(shown)} more", "dim")]


@dataclass(frozen=True)
class _Column:
    title: str
    text: Callable[[JobView], str]
    style: Callable[[JobView], str] = lambda _view: ""
    priority: int = 0
    """On a narrow terminal the columns with the highest number are left out; 0 is always shown."""


def _columns(unicode: bool) -> list[_Column]:
    return [
        _Column("NAMESPACE", lambda view: cell(view.namespace)),
        _Column("NAME", lambda view: cell(view.name), lambda _view: "bold"),
        _Column("FRAMEWORK", lambda view: cell(view.framework), priority=5),
        _Column("PHASE", lambda view: view.phase, lambda view: PHASES.get(view.phase, "")),
        _Column("PROGRESS", lambda view: _bar(view, 8, unicode) + view.progress),
        _Column("RATE", lambda view: view.rate, priority=2),
        _Column("ETA", lambda view: view.eta),
        _Column("RESTARTS", lambda view: str(view.restarts), priority=1),
        _Column("GOODPUT", lambda view: view.goodput),
        _Column("SLOW", lambda view: str(view.stragglers or ""), lambda _view: "yellow", priority=3),
        _Column("CURVE", lambda view: plots.sparkline(view.curve, 16, unicode), lambda _view: "cyan", priority=4),
    ]


def _bar(view: JobView, width: int, unicode: bool) -> str:
    return "" if view.fraction is None else f"{plots.bar(view.fraction, width, unicode)} "


def _totals(views: Sequence[JobView]) -> Line:
    """Return the number of jobs by phase, and the goodput of all jobs that report steps."""
    phases = Counter(view.phase for view in views)
    count = f"{len(views)} job{'s' * (len(views) != 1)}"
    words = [f"{number} {phase}" for phase, number in sorted(phases.items(), key=lambda item: ORDER.get(item[0], LAST))]
    totals = [times for view in views if view.measured and (times := time_accounting.up_to(view.status, view.until))]
    used = sum(times.starting + times.productive + times.lost for times in totals)
    productive = sum(times.productive for times in totals)
    share = f"; goodput {progress_text.percent(productive / used)}" if used > 0 else ""
    return [(count, "bold"), (f": {', '.join(words)}{share}" if words else "", "")]


def _table(columns: Sequence[_Column], views: Sequence[JobView], width: int) -> Grid:
    texts = {column.title: [column.text(view) for view in views] for column in columns}
    widths = {title: max(len(title), *map(len, cells)) if cells else len(title) for title, cells in texts.items()}
    kept = list(columns)
    while width and sum(widths[column.title] + GAP for column in kept) - GAP > width:
        least = max(kept, key=lambda column: column.priority)
        if not least.priority:
            break
        kept.remove(least)
    rows = [
        [Styled(texts[column.title][place], column.style(view)) for column in kept] for place, view in enumerate(views)
    ]
    return Grid([column.title for column in kept], rows, indent="", gap=GAP)


# --- one job ---------------------------------------------------------------------------------------------------------


def job(view: JobView, width: int, height: int, unicode: bool) -> Iterator[Line | Grid]:
    """Show the details of a job. `height` 0: no limit."""
    progress = view.status.progress
    report = build_report(view.manifest, view.until)
    yield _head(view, report.seconds)
    if view.reason:
        yield [(cell(view.reason), "dim")]
    yield []
    above: list[Line] = []
    if progress:
        above += _progress(view, progress, unicode)
        strokes = report.strokes(lambda point: point.value)
        values = [value for stroke in strokes for _, value in stroke]
        if len(values) > 1:
            above += _curve(report.metric, values, strokes, min(width or WIDTH, WIDTH), unicode)
    above += _times(report, min(width or WIDTH, WIDTH), unicode)
    above += _facts(view)
    yield from above
    if progress and progress.ranks:
        room = 0 if not height else max(2, height - len(above) - 5)
        yield []
        yield from _ranks(progress, room)


def _head(view: JobView, seconds: float) -> Line:
    status = view.status
    parts = [
        (cell(view.name), "bold"),
        (cell(view.namespace), "dim"),
        (cell(view.framework), ""),
        (view.phase, PHASES.get(view.phase, "")),
        (f"{status.ready} pods running" if status.ready and not status.completion_time else "", ""),
        (f"{view.gpus} GPU{'s' * (view.gpus != 1)}" if view.gpus else "", ""),
        (f"attempt {status.attempt}" if status.attempt else "", ""),
        (elapsed(seconds), "bold"),
    ]
    return [part for text, style in parts if text for part in ((text, style), ("  ", ""))][:-1]


def _progress(view: JobView, progress: ProgressStatus, unicode: bool) -> Iterator[Line]:
    line: list[tuple[str, str]] = []
    if view.fraction is not None:
        line += [(plots.bar(view.fraction, 32, unicode), "green"), ("  ", "")]
    line.append((view.progress, "bold"))
    words = [word for word in (view.epoch, *view.rates, f"ETA {view.eta}" if view.eta else "") if word]
    yield line + [(f"  {word}", "") for word in words]
    words = view.metrics
    if not view.status.completion_time:
        if progress.checkpoint_time:
            step = "" if progress.checkpoint_step is None else f" of step {progress.checkpoint_step}"
            words.append(f"checkpoint{step} {age(progress.checkpoint_time, view.until)} ago")
        words += [view.reported] if view.reported else []
    yield [(", ".join(words), "")]
    yield []


def _curve(
    metric: str,
    values: Sequence[float],
    strokes: Sequence[Sequence[tuple[float, float]]],
    width: int,
    unicode: bool,
) -> Iterator[Line]:
    rows = plots.curve(strokes, max(16, width - 12), CURVE_LINES, unicode)
    labels = {0: progress_text.number(max(values)), CURVE_LINES - 1: progress_text.number(min(values))}
    yield [(cell(metric), "dim"), (" (logarithmic scale)" if plots.logarithmic(values) else "", "dim")]
    for place, row in enumerate(rows):
        yield [(f"{labels.get(place, ''):>10}  ", "dim"), (row.rstrip(" \u2800"), "cyan")]
    yield []


def _times(report: Report, width: int, unicode: bool) -> Iterator[Line]:
    times = report.times
    total = sum(times.values())
    if total <= 0:
        return
    bar = plots.parts(dict(times), max(16, width - 12), unicode)
    yield [("times       ", "dim"), *((text, KINDS[kind]) for kind, text in bar)]
    line = [(" " * 12, "")]
    for kind, seconds in times.items():
        name, share = progress_text.kind_name(kind, report.measured), progress_text.percent(seconds / total)
        line.append((f"{plots.part(kind, unicode)} {name} {human(seconds)} {share}   ", KINDS[kind]))
    yield line


def _facts(view: JobView) -> Iterator[Line]:
    status = view.status
    if view.goodput_limit:
        yield [("goodput     ", "dim"), (progress_text.NOT_MEASURED, "bold"), (f"   ({view.goodput_limit})", "dim")]
    elif view.goodput:
        lost = f"   lost by {cell(view.lost_by)}" if view.lost else ""
        yield [("goodput     ", "dim"), (view.goodput, "bold"), (lost, "")]
    if view.restarts:
        counted = f", {status.restarts.counted} counted" if status.restarts.disruptions else ""
        reasons = f" ({cell(view.restart_reasons)})" if view.restart_reasons else ""
        yield [("restarts    ", "dim"), (f"{view.restarts}{counted}{reasons}{cell(last_begin(status))}", "")]
    if failure := status.last_failure:
        where = f"on {cell(failure.node)}: " if failure.node else ""
        yield [("last failure ", "dim"), (f"{where}{cell(failure_line(failure))}", "red")]
    for place, slow in enumerate(status.progress.stragglers if status.progress else ()):
        rank = rank_name(slow.rank, cell(slow.replica))
        where = f" on {cell(slow.node)}" if slow.node else ""
        cause = ", waits for data" if slow.loading else ""
        title = " " * 12 if place else "slow        "
        yield [(title, "dim"), (f"{rank}{where}: {slow.slowdown:.2g}x the time of its peers{cause}", "yellow")]


def _ranks(progress: ProgressStatus, room: int) -> Iterator[Line | Grid]:
    total = max(progress.reporting, len(progress.ranks))
    shown = progress.ranks if not room or len(progress.ranks) < room else progress.ranks[: max(1, room - 2)]
    if len(shown) < total:
        yield [(f"{len(shown)} of {total} ranks: those that lag most, then the slowest", "dim")]
    slow = {(straggler.rank, straggler.replica) for straggler in progress.stragglers}
    rows = []
    for report in shown:
        style = "yellow" if (report.rank, report.replica) in slow else ""
        rank = "-" if report.rank is None else report.rank
        values = (
            rank,
            report.replica,
            report.step,
            report.lag or "",
            _seconds(report.step_seconds),
            _seconds(report.busy_seconds),
        )
        rows.append([Styled(value, style) for value in values])
    yield Grid(["RANK", "REPLICA", "STEP", "LAG", "STEP TIME", "BUSY"], rows, gap=GAP)


def _seconds(value: float | None) -> str:
    """Write `480 ms`, `2.1 s`."""
    if value is None:
        return ""
    return f"{progress_text.number(value * 1000)} ms" if value < 1 else f"{progress_text.number(value)} s"


def plain(content: Iterator[Line | Grid]) -> Iterator[str]:
    """Return the content as text."""
    for item in content:
        if isinstance(item, Grid):
            yield from item.plain()
        else:
            yield "".join(text for text, _ in item).rstrip()
