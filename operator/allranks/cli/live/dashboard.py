"""The content of `allranks top`: lines and tables, from jobs with their status. Pure.

A line is a list of (text, style). rich draws lines and tables on a terminal; elsewhere they are printed as plain text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from allranks.api.status import ProgressStatus, Status
from allranks.cli.live.summary import PHASES
from allranks.cli.live.terminal import Line
from allranks.core.accounting import time_accounting
from allranks.kube.job_codec import status_of
from allranks.views.format import gpus, plots
from allranks.views.format import progress as progress_text
from allranks.views.format.duration import age, elapsed, human
from allranks.views.format.outcome import failure_line
from allranks.views.format.table import Grid, Styled, cell
from allranks.views.report.model import Report, build_report

KINDS = {"queued": "bright_black", "starting": "yellow", "productive": "green", "lost": "red", "uploading": "cyan"}
"""Kind of time -> style."""
CURVE_LINES = 6
WIDTH = 84
"""Width of plots, if the terminal is wide enough."""
GAP = 2
"""Spaces between the columns of tables."""
_ORDER = {"Running": 0, "Restarting": 0, "Pending": 1, "Queued": 2, "Suspended": 2, "Failed": 3, "Succeeded": 4}


class JobRow(NamedTuple):
    """A job with its decoded status, which is decoded once for many redraws."""

    job: Mapping[str, Any]
    status: Status


def job_row(job: Mapping[str, Any]) -> JobRow:
    return JobRow(job, status_of(dict(job)))


def data(row: JobRow, now: datetime) -> dict[str, Any]:
    """Return the shown facts of a job, as JSON."""
    job, status = row
    progress = status.progress
    rate, share = progress_text.step_rate(progress), progress_text.goodput(status, now)
    measured = progress_text.is_measured(status)
    return {
        "name": job["metadata"]["name"],
        "namespace": job["metadata"].get("namespace", ""),
        "framework": (job.get("spec") or {}).get("framework", ""),
        "phase": status.phase,
        "ready": status.ready,
        "gpus": gpus.total(job, status),
        "attempt": status.attempt,
        "restarts": status.restarts.model_dump(by_alias=True, mode="json"),
        "stepsPerSecond": round(rate, 4) if rate is not None and progress_text.trains(status) else None,
        "progress": progress and progress.model_dump(by_alias=True, exclude_none=True, mode="json"),
        "times": progress_text.times(status, now) or None,
        "lostBy": progress_text.lost_by(status, now),
        "goodput": share if measured else None,
        "goodputLimit": None if measured else share,
        "measured": measured,
    }


# --- all jobs --------------------------------------------------------------------------------------------------------


def jobs(
    rows: Sequence[JobRow], now: datetime, width: int, height: int, unicode: bool, *, namespaces: bool
) -> Iterator[Line | Grid]:
    """Make a table of jobs, running jobs first. `height` 0: all jobs; `width` 0: all columns."""
    summaries = [_Summary(job, status, now, unicode) for job, status in rows]
    summaries.sort(key=lambda summary: (_ORDER.get(summary.status.phase, 9), summary.namespace, summary.name))
    yield _totals(summaries)
    yield []
    room = len(summaries) if not height else max(1, height - 4)
    shown = summaries if len(summaries) <= room else summaries[: room - 1]
    yield _table([column for column in _COLUMNS if namespaces or column.title != "NAMESPACE"], shown, width)
    if len(shown) < len(summaries):
        yield [(f"and {len(summaries) - len(shown)} more", "dim")]


@dataclass(frozen=True)
class _Summary:
    """The cells of one job."""

    job: Mapping[str, Any]
    status: Status
    now: datetime
    unicode: bool

    @property
    def name(self) -> str:
        return cell(self.job["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return cell(self.job["metadata"].get("namespace", ""))

    def progress(self) -> str:
        progress = self.status.progress
        if progress is None:
            return ""
        fraction = progress_text.fraction(progress)
        front = "" if fraction is None else f"{plots.bar(fraction, 8, self.unicode)} "
        return front + progress_text.summary(progress)

    def rate(self) -> str:
        if self.status.progress is None or not progress_text.trains(self.status):
            return ""
        return next(iter(progress_text.rates(self.status.progress)), "")

    def restarts(self) -> str:
        return str(self.status.restarts.counted + self.status.restarts.disruptions)

    def goodput(self) -> str:
        measured = progress_text.is_measured(self.status)
        return progress_text.percent(progress_text.goodput(self.status, self.now)) if measured else ""

    def slow(self) -> str:
        progress = self.status.progress
        return str(len(progress.stragglers)) if progress and progress.stragglers else ""


@dataclass(frozen=True)
class _Column:
    title: str
    text: Callable[[_Summary], str]
    style: Callable[[_Summary], str] = lambda _job: ""
    priority: int = 0
    """On a narrow terminal the columns with the highest number are left out; 0 is always shown."""


_COLUMNS = (
    _Column("NAMESPACE", lambda summary: summary.namespace),
    _Column("NAME", lambda summary: summary.name, lambda _: "bold"),
    _Column("FRAMEWORK", lambda summary: cell((summary.job.get("spec") or {}).get("framework")), priority=5),
    _Column("PHASE", lambda summary: summary.status.phase, lambda summary: PHASES.get(summary.status.phase, "")),
    _Column("PROGRESS", _Summary.progress),
    _Column("RATE", _Summary.rate, priority=2),
    _Column(
        "ETA",
        lambda summary: progress_text.eta(summary.status.progress) if progress_text.trains(summary.status) else "",
    ),
    _Column("RESTARTS", _Summary.restarts, priority=1),
    _Column("GOODPUT", _Summary.goodput),
    _Column("SLOW", _Summary.slow, lambda _: "yellow", priority=3),
    _Column(
        "CURVE",
        lambda summary: plots.sparkline(progress_text.values(summary.status.progress), 16, summary.unicode),
        lambda _: "cyan",
        priority=4,
    ),
)


def _totals(summaries: Sequence[_Summary]) -> Line:
    """Return the number of jobs by phase, and the goodput of all jobs that report steps."""
    phases = Counter(summary.status.phase for summary in summaries)
    count = f"{len(summaries)} job{'s' * (len(summaries) != 1)}"
    words = [f"{number} {phase}" for phase, number in sorted(phases.items(), key=lambda item: _ORDER.get(item[0], 9))]
    measured = [summary for summary in summaries if progress_text.is_measured(summary.status)]
    totals = [times for summary in measured if (times := time_accounting.up_to(summary.status, summary.now))]
    used = sum(times.starting + times.productive + times.lost for times in totals)
    productive = sum(times.productive for times in totals)
    share = f"; goodput {progress_text.percent(productive / used)}" if used > 0 else ""
    return [(count, "bold"), (f": {', '.join(words)}{share}" if words else "", "")]


def _table(columns: Sequence[_Column], summaries: Sequence[_Summary], width: int) -> Grid:
    texts = {column.title: [column.text(summary) for summary in summaries] for column in columns}
    widths = {title: max(len(title), *map(len, cells)) if cells else len(title) for title, cells in texts.items()}
    kept = list(columns)
    while width and sum(widths[column.title] + GAP for column in kept) - GAP > width:
        least = max(kept, key=lambda column: column.priority)
        if not least.priority:
            break
        kept.remove(least)
    rows = [
        [Styled(texts[column.title][place], column.style(summary)) for column in kept]
        for place, summary in enumerate(summaries)
    ]
    return Grid([column.title for column in kept], rows, indent="", gap=GAP)


# --- one job ---------------------------------------------------------------------------------------------------------


def job(row: JobRow, now: datetime, width: int, height: int, unicode: bool) -> Iterator[Line | Grid]:
    """Show the details of a job. `height` 0: no limit."""
    manifest, status = row
    report = build_report(manifest, now)
    yield _head(manifest, status, report.seconds)
    if report.why:
        yield [(cell(report.why), "dim")]
    yield []
    above: list[Line] = []
    if status.progress:
        above += _progress(status, status.progress, now, unicode)
        strokes = report.strokes(lambda point: point.value)
        values = [value for stroke in strokes for _, value in stroke]
        if len(values) > 1:
            above += _curve(report.metric, values, strokes, min(width or WIDTH, WIDTH), unicode)
    above += _times(report, min(width or WIDTH, WIDTH), unicode)
    above += _facts(status, now)
    yield from above
    if status.progress and status.progress.ranks:
        room = 0 if not height else max(2, height - len(above) - 5)
        yield []
        yield from _ranks(status.progress, room)


def _head(manifest: Mapping[str, Any], status: Status, seconds: float) -> Line:
    metadata = manifest["metadata"]
    ready = f"{status.ready} pods running" if status.ready and not status.completion_time else ""
    devices = gpus.total(manifest, status)
    parts = [
        (cell(metadata["name"]), "bold"),
        (cell(metadata.get("namespace", "")), "dim"),
        (cell((manifest.get("spec") or {}).get("framework", "")), ""),
        (status.phase, PHASES.get(status.phase, "")),
        (ready, ""),
        (f"{devices} GPU{'s' * (devices != 1)}" if devices else "", ""),
        (f"attempt {status.attempt}" if status.attempt else "", ""),
        (elapsed(seconds), "bold"),
    ]
    return [part for text, style in parts if text for part in ((text, style), ("  ", ""))][:-1]


def _progress(status: Status, progress: ProgressStatus, now: datetime, unicode: bool) -> Iterator[Line]:
    line: list[tuple[str, str]] = []
    if (fraction := progress_text.fraction(progress)) is not None:
        line += [(plots.bar(fraction, 32, unicode), "green"), ("  ", "")]
    line.append((progress_text.summary(progress), "bold"))
    words = [] if progress.epoch is None else [f"epoch {progress.epoch}"]
    if progress_text.trains(status):
        words += progress_text.rates(progress)
        words += [f"ETA {left}"] if (left := progress_text.eta(progress)) else []
    yield line + [(f"  {word}", "") for word in words]
    words = list(progress_text.metrics(progress))
    if progress.checkpoint_time and not status.completion_time:
        step = "" if progress.checkpoint_step is None else f" of step {progress.checkpoint_step}"
        words.append(f"checkpoint{step} {age(progress.checkpoint_time, now)} ago")
    if progress.last_report and not status.completion_time:
        words.append(f"reported {age(progress.last_report, now)} ago")
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


def _facts(status: Status, now: datetime) -> Iterator[Line]:
    share = progress_text.goodput(status, now)
    if share is not None and not progress_text.is_measured(status):
        yield [
            ("goodput     ", "dim"),
            (progress_text.NOT_MEASURED, "bold"),
            (f"   ({progress_text.limit_note(share)})", "dim"),
        ]
    elif share is not None:
        lost_by = progress_text.lost_by(status, now)
        lost = ", ".join(f"{cell(reason)} {human(seconds)}" for reason, seconds in lost_by.items())
        yield [
            ("goodput     ", "dim"),
            (progress_text.percent(share), "bold"),
            (f"   lost by {lost}" if lost else "", ""),
        ]
    restarts = status.restarts
    if number := restarts.counted + restarts.disruptions:
        reasons = ", ".join(f"{cell(reason)} {count}" for reason, count in sorted(restarts.by_reason.items()))
        counted = f", {restarts.counted} counted" if restarts.disruptions else ""
        yield [("restarts    ", "dim"), (f"{number}{counted}{f' ({reasons})' if reasons else ''}", "")]
    if failure := status.last_failure:
        where = f"on {cell(failure.node)}: " if failure.node else ""
        yield [("last failure ", "dim"), (f"{where}{cell(failure_line(failure))}", "red")]
    for place, slow in enumerate(status.progress.stragglers if status.progress else ()):
        who = cell(slow.replica) if slow.rank is None else f"rank {slow.rank} ({cell(slow.replica)})"
        where = f" on {cell(slow.node)}" if slow.node else ""
        title = "slow        " if not place else " " * 12
        yield [
            (title, "dim"),
            (
                f"{who}{where}: {slow.slowdown:.2g}x the time of its peers{', waits for data' if slow.loading else ''}",
                "yellow",
            ),
        ]


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
    """`480 ms`, `2.1 s`."""
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
