"""The report on a job as one HTML file: no script, no external resources, light and dark, printable.

report.html.j2 is rendered with autoescape. Every value is cleaned of control characters and escaped by the template
engine, so no text of a user or a program can become markup.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from allranks.control_sequences import clean
from allranks.errors import AllranksError
from allranks.extras import install_command
from allranks.version import __version__
from allranks.views.format import cost as costs
from allranks.views.format import progress as progress_text
from allranks.views.format.duration import elapsed, moment
from allranks.views.format.table import Grid
from allranks.views.report import plots, text
from allranks.views.report.model import Point, Report
from allranks.views.report.plots import Bar, Plot, Row
from allranks.views.report.timeline import FORGOTTEN, Attempt, Segment

if TYPE_CHECKING:
    from jinja2 import Environment

POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
"""A second line of defence: the browser runs no script and sends no request."""
X_SCALE = 1000
"""Units of a curve's own coordinates: points of a polyline cannot be percentages."""
MOST_METRICS = 16
"""Further metrics are in a table."""
MOST_ROWS = 100
"""Rows of the table of a plot."""
_DIFF_CLASSES = {"+": "added", "-": "removed", "@": "place", "#": "place", "d": "file"}
_KINDS = (FORGOTTEN, *progress_text.KINDS)


def page(report: Report, folder: Path | None = None) -> str:
    """Write the page. Its links to logs are relative to `folder`, its directory."""
    template = environment().get_template("report.html.j2")
    return template.render(
        policy=POLICY,
        report=report,
        tiles=list(tiles(report)),
        sections=list(sections(report, folder)),
        footer=f"allranks {__version__}, report of {text.timestamp(report.until)}",
    )


def environment(templates: str = "") -> Environment:
    """Load the templates of the report. The package `templates` comes before them. Raises AllranksError."""
    try:
        from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise AllranksError(f"HTML reports need further packages ({error}): {install_command('cli')}") from error
    of_report = PackageLoader("allranks.views.report", ".")
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(templates), of_report]) if templates else of_report,
        autoescape=True,
        finalize=_without_control_characters,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(bar_height=plots.BAR, axis_height=plots.AXIS, x_scale=X_SCALE)
    return environment


def _without_control_characters(value: Any) -> Any:
    """Applied to every expression of the template. Markup is the output of a macro, which has been cleaned."""
    return value if hasattr(value, "__html__") else clean(str(value).encode(errors="replace"), colour=False)


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    plot: Plot | None = None
    legend: Sequence[tuple[str, str]] = ()
    """(CSS class, name)"""
    notes: Sequence[str] = ()
    table: Grid | None = None
    summary: str = ""
    """If set, the table is folded below this line."""
    kinds: Sequence[str] = ()
    """CSS class of each row of a table of kinds of time."""
    links: Sequence[tuple[str, str]] = ()
    """(address, text)"""
    half: bool = False
    """Whether two of them fit side by side."""
    of_metric: bool = False
    """Whether it is the curve of a metric, which the web UI draws with a script."""
    lines: Sequence[tuple[str, str]] = ()
    """(CSS class, line) of a diff, which is folded below `summary`."""


def sections(report: Report, folder: Path | None = None) -> Iterator[Section]:
    """Yield the parts of the page below its head."""
    yield from _timeline(report)
    yield from _times(report)
    metric = report.metric or "curve"
    yield from _curve(report, "curve", text.curve_title(report), metric, lambda point: point.value, of_metric=True)
    unit, rate = report.throughput()
    yield from _curve(report, "rate", f"Throughput in {unit}", unit, rate, from_zero=True)
    others = [name for name in report.metric_names() if name != report.metric]
    for place, name in enumerate(others[:MOST_METRICS]):
        value = partial(_metric, name)
        yield from _curve(
            report,
            f"metric-{place}",
            name + text.scale(map(value, report.points)),
            name,
            value,
            half=True,
            of_metric=True,
        )
    if len(others) > MOST_METRICS or (report.progress and report.progress.records):
        yield Section(text.metrics_title(report), table=text.metrics(report))
    yield from _lost(report)
    for title, table in text.tables(report):
        yield Section(title, table=table)
    yield Section("The job", table=Grid((), list(text.facts(report))))
    if report.differences or report.differences_note:
        yield _differences(report)
    if report.logs:
        yield Section("Logs", links=[_link(Path(log), folder) for log in report.logs])


def _differences(report: Report) -> Section:
    lines = report.differences.split("\n")[:-1]
    return Section(
        text.differences_title(report),
        notes=[report.differences_note] if report.differences_note else (),
        summary=f"{len(lines)} lines" if lines else "",
        lines=[(_DIFF_CLASSES.get(line[:1], ""), line) for line in lines],
    )


def _metric(name: str, point: Point) -> float | None:
    return point.metrics.get(name)


def _link(log: Path, folder: Path | None) -> tuple[str, str]:
    """Return (address, name of the pod). The address begins with ./ or file:, so that no name can be a scheme."""
    if folder is None:
        return log.absolute().as_uri(), log.stem
    relative = os.path.relpath(log.absolute(), folder.absolute())
    return f"./{quote(relative)}", log.stem


def tiles(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield (title, value, note)."""
    progress = report.progress
    if report.goodput is not None:
        yield "Goodput", progress_text.percent(report.goodput), ""
    elif report.goodput_limit is not None:
        yield "Goodput", progress_text.NOT_MEASURED, progress_text.limit_note(report.goodput_limit)
    else:
        yield "Goodput", "not available", ""
    if progress and progress.step is not None:
        metrics = ", ".join(list(progress_text.metrics(progress))[:4])
        yield "Progress", progress_text.summary(progress), metrics
        if report.eta:
            yield "ETA", report.eta, ""
    unit, _ = report.throughput()
    if mean := text.mean_rate(report):
        yield unit, mean.split()[0], "on average while training"
    if progress and progress.loading is not None:
        yield "Waiting for data", f"{progress.loading:.0%}", "of a step"
    yield "Duration", elapsed(report.seconds), "" if report.over else "so far"
    if report.cost:
        money = costs.amount(report.cost.total_money, report.cost.currency)
        hours = costs.hours(report.cost.total_hours)
        yield ("Cost", money, hours) if money else ("GPU time", hours, "")
    yield "Restarts", str(report.all_restarts), text.restarts(report) if report.all_restarts else ""


def _timeline(report: Report) -> Iterator[Section]:
    if not report.attempts or report.seconds <= 0:
        return
    rows = [
        Row(
            f"attempt {attempt.number}: {text.outcome(attempt)}",
            [_bar(report, part) for part in text.with_wait(report, attempt)],
        )
        for attempt in report.attempts
    ]
    present = {bar.kind for row in rows for bar in row.bars}
    count = len(report.attempts)
    whole = report.seconds
    description = f"{count} attempt{'s' * (count != 1)} in {elapsed(whole)}: " + "; ".join(
        f"attempt {attempt.number} from {moment(attempt.begin, whole)} to {moment(attempt.end, whole)}, "
        f"{text.outcome(attempt)}"
        for attempt in report.attempts
    )
    kinds = [_kind_name(report, kind) for kind in report.times]
    dropped = text.dropped_attempts(report)
    yield Section(
        "Timeline of attempts",
        plots.bars("timeline", "Timeline of attempts", description, rows, report.seconds),
        legend=[(kind, _kind_name(report, kind)) for kind in _KINDS if kind in present],
        notes=[dropped] if dropped else [],
        table=Grid(
            ["Attempt", "From", "To", "Ended by", *(kind.capitalize() for kind in kinds), "Steps"],
            [
                [
                    attempt.number,
                    moment(attempt.begin, whole),
                    moment(attempt.end, whole),
                    text.outcome(attempt),
                    *_by_kind(attempt, report.times),
                    text.steps(attempt),
                ]
                for attempt in report.attempts
            ],
        ),
        summary="Table: attempts",
    )


def _kind_name(report: Report, kind: str) -> str:
    return "no details" if kind == FORGOTTEN else progress_text.kind_name(kind, report.measured)


def _bar(report: Report, segment: Segment) -> Bar:
    begin = moment(segment.begin, report.seconds)
    title = f"{_kind_name(report, segment.kind)}: {elapsed(segment.seconds)} from {begin}"
    return Bar(segment.kind, segment.begin, segment.seconds, title)


def _by_kind(attempt: Attempt, kinds: Iterable[str]) -> Iterator[str]:
    for kind in kinds:
        seconds = sum(part.seconds for part in attempt.segments if part.kind == kind)
        yield elapsed(seconds) if seconds else ""


def _times(report: Report) -> Iterator[Section]:
    total = sum(report.times.values())
    if total <= 0:
        return
    shares = [
        (_kind_name(report, kind), elapsed(s), progress_text.percent(s / total)) for kind, s in report.times.items()
    ]
    bars, begin = [], 0.0
    for (name, took, share), (kind, seconds) in zip(shares, report.times.items(), strict=True):
        if seconds > 0:
            bars.append(Bar(kind, begin, seconds, f"{name}: {took}, {share}"))
        begin += seconds
    title = "Where the time went"
    description = ", ".join(f"{name} {took} ({share})" for name, took, share in shares)
    yield Section(
        title,
        plots.bars("times", title, description, [Row("", bars)], total, axes=False),
        notes=[f"Goodput: {text.goodput(report)}."],
        table=Grid(["Kind", "Time", "Share"], shares),
        kinds=list(report.times),
    )


def _curve(
    report: Report,
    id: str,
    title: str,
    name: str,
    value: Callable[[Point], float | None],
    *,
    from_zero: bool = False,
    half: bool = False,
    of_metric: bool = False,
) -> Iterator[Section]:
    strokes = report.strokes(value)
    values = [y for stroke in strokes for _, y in stroke]
    if len(values) < 2 or report.seconds <= 0:
        return
    first, last, low, high = map(progress_text.number, (values[0], values[-1], min(values), max(values)))
    description = f"{len(values)} points: from {first} to {last}, minimum {low}, maximum {high}"
    plot = plots.curve(id, f"{name} over time", description, strokes, report.seconds, report.ends, from_zero)
    rows = [
        [moment(point.at, report.seconds), point.attempt, point.step, progress_text.number(y)]
        for point in report.points
        if (y := value(point)) is not None
    ]
    count = f"{len(rows)} points" if len(rows) <= MOST_ROWS else f"{MOST_ROWS} of {len(rows)} points"
    if len(rows) > MOST_ROWS:
        rows = [rows[place * (len(rows) - 1) // (MOST_ROWS - 1)] for place in range(MOST_ROWS)]
    yield Section(
        title,
        plot,
        notes=["Dashed lines: restarts."] if report.ends and not half else [],
        table=Grid(["Time", "Attempt", "Step", name], rows),
        summary=f"Table: {count}",
        half=half,
        of_metric=of_metric,
    )


def _lost(report: Report) -> Iterator[Section]:
    total = sum(report.lost.values())
    if total <= 0:
        return
    shares = [(cause, elapsed(s), progress_text.percent(s / total)) for cause, s in report.lost.items()]
    rows = [
        Row(f"{cause}: {took}", [Bar("lost", 0.0, seconds, f"{cause}: {took}")])
        for (cause, took, _), seconds in zip(shares, report.lost.values(), strict=True)
    ]
    title, description = "Lost time by cause", ", ".join(f"{cause} {took}" for cause, took, _ in shares)
    plot = plots.bars("lost", title, description, rows, max(report.lost.values()), axes=False)
    yield Section(title, plot, table=Grid(["Cause", "Lost", "Share"], shares))
