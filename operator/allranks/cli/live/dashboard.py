"""What `allranks top` shows: lines of styled text from jobs with their status. Pure.

A line is a list of (text, style). The same lines are drawn on a terminal and printed plain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from allranks.api.status import ProgressStatus, Status
from allranks.cli.format import plots
from allranks.cli.format import progress as doing
from allranks.cli.format.table import age, cell, span
from allranks.cli.job_report.model import account
from allranks.cli.live.summary import PHASES, duration, failure_line
from allranks.core import time_accounting
from allranks.kube.job_codec import status_of

Line = list[tuple[str, str]]
KINDS = {"queued": "bright_black", "starting": "yellow", "productive": "green", "lost": "red"}
CURVE_LINES = 6
WIDTH = 84
"""Of plots, where there is room."""
_ORDER = {"Running": 0, "Restarting": 0, "Pending": 1, "Suspended": 2, "Failed": 3, "Succeeded": 4}


class Known(NamedTuple):
    """A job, and its status read: with a thousand of them, not anew for each drawing."""

    job: Mapping[str, Any]
    status: Status


def known(job: Mapping[str, Any]) -> Known:
    return Known(job, status_of(dict(job)))


def data(found: Known, now: datetime) -> dict[str, Any]:
    """What is shown of one job, for programs."""
    job, status = found
    progress = status.progress
    rate, share = doing.step_rate(progress), doing.goodput(status, now)
    return {
        "name": job["metadata"]["name"],
        "namespace": job["metadata"].get("namespace", ""),
        "framework": (job.get("spec") or {}).get("framework", ""),
        "phase": status.phase,
        "ready": status.ready,
        "attempt": status.attempt,
        "restarts": status.restarts.model_dump(by_alias=True, mode="json"),
        "stepsPerSecond": round(rate, 4) if rate is not None and doing.trains(status) else None,
        "progress": progress and progress.model_dump(by_alias=True, exclude_none=True, mode="json"),
        "times": doing.times(status, now) or None,
        "lostBy": doing.lost_by(status, now),
        "goodput": share,
        "measured": bool(status.times and status.times.measured),
    }


# --- all jobs --------------------------------------------------------------------------------------------------------


def jobs(
    found: Sequence[Known], now: datetime, width: int, height: int, unicode: bool, *, namespaces: bool
) -> Iterator[Line]:
    """A table of jobs, those that run first. `height` 0: all of them; `width` 0: all columns."""
    seen = [_Seen(job, status, now, unicode) for job, status in found]
    seen.sort(key=lambda one: (_ORDER.get(one.status.phase, 9), one.namespace, one.name))
    yield _totals(seen)
    yield []
    room = len(seen) if not height else max(1, height - 4)
    shown = seen if len(seen) <= room else seen[: room - 1]
    yield from _table([column for column in _COLUMNS if namespaces or column.title != "NAMESPACE"], shown, width)
    if len(shown) < len(seen):
        yield [(f"and {len(seen) - len(shown)} more", "dim")]


@dataclass(frozen=True)
class _Seen:
    """One row's job."""

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
        fraction = doing.fraction(progress)
        front = "" if fraction is None else f"{plots.bar(fraction, 8, self.unicode)} "
        return front + doing.summary(progress)

    def rate(self) -> str:
        if self.status.progress is None or not doing.trains(self.status):
            return ""
        return next(iter(doing.rates(self.status.progress)), "")

    def restarts(self) -> str:
        return str(self.status.restarts.counted + self.status.restarts.disruptions)

    def slow(self) -> str:
        progress = self.status.progress
        return str(len(progress.stragglers)) if progress and progress.stragglers else ""


@dataclass(frozen=True)
class _Column:
    title: str
    text: Callable[[_Seen], str]
    style: Callable[[_Seen], str] = lambda _seen: ""
    spared: int = 0
    """Where there is little room, the highest go first; 0 stays."""


_COLUMNS = (
    _Column("NAMESPACE", lambda one: one.namespace),
    _Column("NAME", lambda one: one.name, lambda _one: "bold"),
    _Column("FRAMEWORK", lambda one: cell((one.job.get("spec") or {}).get("framework")), spared=5),
    _Column("PHASE", lambda one: one.status.phase, lambda one: PHASES.get(one.status.phase, "")),
    _Column("PROGRESS", _Seen.progress),
    _Column("RATE", _Seen.rate, spared=2),
    _Column("ETA", lambda one: doing.eta(one.status.progress) if doing.trains(one.status) else ""),
    _Column("RESTARTS", _Seen.restarts, spared=1),
    _Column("GOODPUT", lambda one: doing.percent(doing.goodput(one.status, one.now))),
    _Column("SLOW", _Seen.slow, lambda _one: "yellow", spared=3),
    _Column(
        "CURVE",
        lambda one: plots.sparkline(doing.values(one.status.progress), 16, one.unicode),
        lambda _one: "cyan",
        spared=4,
    ),
)


def _totals(seen: Sequence[_Seen]) -> Line:
    """How many, and what became of all their time."""
    phases = Counter(one.status.phase for one in seen)
    count = f"{len(seen)} job{'s' * (len(seen) != 1)}"
    words = [f"{number} {phase}" for phase, number in sorted(phases.items(), key=lambda item: _ORDER.get(item[0], 9))]
    told = [times for one in seen if (times := time_accounting.up_to(one.status, one.now))]
    used = sum(times.starting + times.productive + times.lost for times in told)
    share = f"; goodput {doing.percent(sum(times.productive for times in told) / used)}" if used > 0 else ""
    return [(count, "bold"), (f": {', '.join(words)}{share}" if words else "", "")]


def _table(columns: Sequence[_Column], seen: Sequence[_Seen], width: int) -> Iterator[Line]:
    texts = {column.title: [column.text(one) for one in seen] for column in columns}
    widths = {title: max(len(title), *map(len, cells)) if cells else len(title) for title, cells in texts.items()}
    kept = list(columns)
    while width and sum(widths[column.title] + 2 for column in kept) - 2 > width:
        most = max(kept, key=lambda column: column.spared)
        if not most.spared:
            break
        kept.remove(most)
    yield [(f"{column.title:<{widths[column.title]}}  ", "dim") for column in kept]
    for place, one in enumerate(seen):
        yield [
            (f"{texts[column.title][place]:<{widths[column.title]}}  ", column.style(one) if seen else "")
            for column in kept
        ]


# --- one job ---------------------------------------------------------------------------------------------------------


def job(one: Known, now: datetime, width: int, height: int, unicode: bool) -> Iterator[Line]:
    """All about one job. `height` 0: as long as it gets."""
    found, status = one
    told = account(found, now)
    yield _head(found, status, told.seconds)
    if told.why:
        yield [(cell(told.why), "dim")]
    yield []
    above: list[Line] = []
    if status.progress:
        above += _progress(status, status.progress, now, unicode)
        strokes = told.strokes(lambda point: point.value)
        values = [value for stroke in strokes for _, value in stroke]
        if len(values) > 1:
            above += _curve(told.metric, values, strokes, min(width or WIDTH, WIDTH), unicode)
    above += _times(status, told.times, min(width or WIDTH, WIDTH), unicode)
    above += _facts(status, now)
    yield from above
    if status.progress and status.progress.ranks:
        room = 0 if not height else max(2, height - len(above) - 5)
        yield []
        yield from _ranks(status.progress, room)


def _head(found: Mapping[str, Any], status: Status, seconds: float) -> Line:
    metadata = found["metadata"]
    ready = f"{status.ready} pods running" if status.ready and not status.completion_time else ""
    parts = [
        (cell(metadata["name"]), "bold"),
        (cell(metadata.get("namespace", "")), "dim"),
        (cell((found.get("spec") or {}).get("framework", "")), ""),
        (status.phase, PHASES.get(status.phase, "")),
        (ready, ""),
        (f"attempt {status.attempt}" if status.attempt else "", ""),
        (duration(seconds), "bold"),
    ]
    return [part for text, style in parts if text for part in ((text, style), ("  ", ""))][:-1]


def _progress(status: Status, progress: ProgressStatus, now: datetime, unicode: bool) -> Iterator[Line]:
    line: Line = []
    if (fraction := doing.fraction(progress)) is not None:
        line += [(plots.bar(fraction, 32, unicode), "green"), ("  ", "")]
    line.append((doing.summary(progress), "bold"))
    words = [] if progress.epoch is None else [f"epoch {progress.epoch}"]
    if doing.trains(status):
        words += doing.rates(progress)
        words += [f"ETA {left}"] if (left := doing.eta(progress)) else []
    yield line + [(f"  {word}", "") for word in words]
    words = list(doing.metrics(progress))
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
    labels = {0: doing.number(max(values)), CURVE_LINES - 1: doing.number(min(values))}
    yield [(cell(metric), "dim"), (" (by its logarithm)" if plots.logarithmic(values) else "", "dim")]
    for place, row in enumerate(rows):
        yield [(f"{labels.get(place, ''):>10}  ", "dim"), (row.rstrip(" \u2800"), "cyan")]
    yield []


def _times(status: Status, times: Mapping[str, float], width: int, unicode: bool) -> Iterator[Line]:
    total = sum(times.values())
    if total <= 0:
        return
    bar = plots.parts(dict(times), max(16, width - 12), unicode)
    yield [("times       ", "dim"), *((text, KINDS[kind]) for kind, text in bar)]
    line: Line = [(" " * 12, "")]
    for kind, seconds in times.items():
        text = f"{plots.part(kind, unicode)} {kind} {span(seconds)} {doing.percent(seconds / total)}   "
        line.append((text, KINDS[kind]))
    yield line


def _facts(status: Status, now: datetime) -> Iterator[Line]:
    share = doing.goodput(status, now)
    if share is not None:
        lost = ", ".join(f"{cell(reason)} {span(seconds)}" for reason, seconds in doing.lost_by(status, now).items())
        how = "" if status.times and status.times.measured else f"   ({doing.UNMEASURED})"
        yield [
            ("goodput     ", "dim"),
            (doing.percent(share), "bold"),
            (f"   lost by {lost}" if lost else "", ""),
            (how, "dim"),
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
        yield [(title, "dim"), (f"{who}{where}: {slow.slowdown:.2g}x the time of its peers", "yellow")]


def _ranks(progress: ProgressStatus, room: int) -> Iterator[Line]:
    total = max(progress.reporting, len(progress.ranks))
    shown = progress.ranks if not room or len(progress.ranks) < room else progress.ranks[: max(1, room - 2)]
    if len(shown) < total:
        yield [(f"{len(shown)} of {total} ranks: those that lag most, then the slowest", "dim")]
    slow = {(one.rank, one.replica) for one in progress.stragglers}
    widest = max(7, *(len(one.replica) for one in shown))
    yield [(f"{'RANK':>6}  {'REPLICA':<{widest}}  {'STEP':>10}  {'LAG':>6}  {'STEP TIME':>10}  {'BUSY':>10}", "dim")]
    for one in shown:
        rank, step = "-" if one.rank is None else one.rank, "" if one.step is None else one.step
        text = f"{rank:>6}  {cell(one.replica):<{widest}}  {step:>10}  {one.lag or '':>6}"
        times = f"  {_seconds(one.step_seconds):>10}  {_seconds(one.busy_seconds):>10}"
        yield [(text + times, "yellow" if (one.rank, one.replica) in slow else "")]


def _seconds(value: float | None) -> str:
    """`480 ms`, `2.1 s`."""
    if value is None:
        return ""
    return f"{doing.number(value * 1000)} ms" if value < 1 else f"{doing.number(value)} s"
