"""The report on a job as text, for terminals and CI logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath

from allranks.api.status import MetricRecord, ProgressStatus
from allranks.control_sequences import clean
from allranks.core.facts.naming import rank_name
from allranks.local.run_directories import INTERRUPTED
from allranks.views.format import cost as costs
from allranks.views.format import plots
from allranks.views.format import progress as progress_text
from allranks.views.format.duration import elapsed, moment
from allranks.views.format.table import Grid, cell
from allranks.views.report import data
from allranks.views.report.model import Point, Report
from allranks.views.report.timeline import FORGOTTEN, Attempt, Cause, Segment

CURVE_LINES = 6
DIFFERENCE_LINES = 200
"""More are only counted."""
MARGIN = 12
"""Characters in front of plots."""


def lines(report: Report, width: int = 100, unicode: bool = True) -> Iterator[str]:
    """Yield the report. Only texts of users and programs can be longer than `width`."""
    room = max(20, width - MARGIN - 16)
    yield cell(report.verdict)
    if report.why:
        yield cell(report.why)
    yield ""
    for title, text in facts(report):
        yield f"{title:<{MARGIN}}{cell(text)}"
    yield from _section("Time", _times(report, room, unicode))
    yield from _section("Attempts", _attempts(report, room, unicode))
    yield from _section(curve_title(report), _curve(report, lambda point: point.value, room, unicode, CURVE_LINES))
    unit, rate = report.throughput()
    yield from _section(f"Throughput in {unit}", _curve(report, rate, room, unicode, 3, 0.0))
    yield from _section("Lost time by cause", _lost(report, unicode))
    for title, table in tables(report):
        yield from _section(title, table.plain())
    yield from _section(metrics_title(report), metrics(report).plain() if _has_metrics(report) else ())
    yield from _section("Last failure", (f"  {clean(line.encode(), colour=False)}" for line in report.failure))
    yield from _section(differences_title(report), _first_differences(report))


# --- also used by the HTML report ------------------------------------------------------------------------------------


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """Yield (title, value) of the head of the report."""
    yield "Job", f"{report.namespace}/{report.name}" if report.namespace else report.name
    yield "Framework", ", ".join(part for part in (report.framework, report.size) if part)
    yield from ([("Image", report.image)] if report.image else [])
    yield from ([("Command", report.command)] if report.command else [])
    yield from ([("Variables", ", ".join(report.environment))] if report.environment else [])
    if report.commit:
        yield "Code", f"commit {report.commit}{' with uncommitted changes' if report.dirty else ''}"
    elif report.sha256 or report.source:
        yield "Code", report.source or f"SHA-256 {report.sha256}"
    yield from ([("Changes", report.changes)] if report.changes else [])
    yield from ([("Logs", str(PurePath(report.logs[0]).parent))] if report.logs else [])
    yield "Created", timestamp(report.began)
    ended = "Ended" if report.over else "As of"
    yield ended, f"{timestamp(report.until)}, after {elapsed(report.seconds)}"
    progress = report.progress
    if progress and progress.step is not None:
        epoch = [] if progress.epoch is None else [f"epoch {progress.epoch}"]
        yield "Progress", ", ".join([progress_text.summary(progress), *epoch, *progress_text.metrics(progress)])
        if progress.stalled and not report.over:
            yield "Stalled", cell(progress.stalled)
        if report.eta:
            yield "ETA", report.eta
        if mean := mean_rate(report):
            yield "Throughput", mean
    yield from ([("Outputs", report.uploads)] if report.uploads else [])
    yield "Goodput", goodput(report)
    yield from ([("GPU time", costs.summary(report.cost))] if report.cost else [])
    yield "Restarts", restarts(report)


def tables(report: Report) -> Iterator[tuple[str, Grid]]:
    """Yield (title, table) of the sections that are only a table."""
    if report.cost and report.cost.total_hours:
        priced = report.cost.spent is not None
        lines: list[Sequence[object]] = [row if priced else row[:2] for row in costs.rows(report.cost)]
        yield "GPU time", Grid(["What", "GPU-hours", *(["Price"] if priced else [])], lines)
    yield from data.tables(report.inputs, report.outputs)
    ended = [attempt for attempt in report.attempts if attempt.over]
    failed = [
        attempt for attempt in ended if attempt.cause is not None or attempt.reason not in ("Completed", INTERRUPTED)
    ]
    if failed:
        headers = ["At", "Attempt", "Cause", "Counted", "Who", "Node", "Exit", "Steps", "Last line"]
        rows = [_failed(report, attempt) for attempt in failed]
        if any(attempt.next_began for attempt in failed):
            headers = [*headers[:4], "Next", *headers[4:]]
            rows = [[*row[:4], attempt.next_began, *row[4:]] for row, attempt in zip(rows, failed, strict=True)]
        yield "Restarts and failures", Grid(headers, rows)
    if report.restarts:
        headers = ["Replica", "Times", "Cause", "Counted", "Node", "Exit", "Last line"]
        rows = [
            [
                restart.replica,
                restart.count,
                restart.cause.reason if restart.cause else "",
                _yes(restart.counted),
                *_where_and_how(restart.cause),
            ]
            for restart in report.restarts
        ]
        yield "Restarts of single replicas", Grid(headers, rows)
    if stragglers := list(progress_text.stragglers(report.progress)):
        yield "Stragglers", Grid(["Rank", "Replica", "Node", "Slowdown"], stragglers)


def differences_title(report: Report) -> str:
    return f"Differences from commit {report.commit[:12]}"


def differences(report: Report) -> Iterator[str]:
    """Yield the lines of the differences, or why there are none."""
    for line in report.differences.split("\n")[:-1]:
        yield clean(line.encode(errors="replace"), colour=False)
    if report.differences_note:
        yield f"# {cell(report.differences_note)}"
    elif not report.differences:
        if report.source:
            yield f"# the code is in {cell(report.source)}, and the job names no commit"
        else:
            yield f"# no differences from commit {report.commit}" if report.commit else "# the code has no commit"


def _has_metrics(report: Report) -> bool:
    return bool(report.progress and report.progress.records) or len(report.metric_names()) > 1


def metrics_title(report: Report) -> str:
    """Say what the table covers: without records, it does not have each value of the program."""
    if report.progress and report.progress.records:
        return "Metrics"
    count = len(report.points)
    return f"Metrics at {count} point{'s' * (count != 1)}"


def metrics(report: Report) -> Grid:
    """Make a table of the first, last, lowest and highest value of each metric."""
    if report.progress and report.progress.records:
        return _recorded_metrics(report.progress, report.progress.records)
    rows = []
    for name in report.metric_names():
        values = [value for point in report.points if math.isfinite(value := point.metrics.get(name, math.nan))]
        if values:
            rows.append([name, *map(progress_text.number, (values[0], values[-1], min(values), max(values)))])
    return Grid(["Metric", "First", "Last", "Lowest", "Highest"], rows)


def _recorded_metrics(progress: ProgressStatus, records: Mapping[str, MetricRecord]) -> Grid:
    lost = any(record.not_finite_step is not None for record in records.values())
    rows = []
    for name in sorted(records, key=lambda name: (name != progress.curve_metric, name)):
        record = records[name]
        values = (record.first, progress.metrics.get(name))
        row = [name, *map(_value, values), _value(record.lowest), _step(record.lowest_step)]
        row += [_value(record.highest), _step(record.highest_step)]
        rows.append([*row, *([_since(record.not_finite_step)] if lost else [])])
    headers = ["Metric", "First", "Last", "Lowest", "At step", "Highest", "At step"]
    return Grid([*headers, *(["Not finite"] if lost else [])], rows)


def _value(value: float | None) -> str:
    return "" if value is None else progress_text.number(value)


def _step(step: int | None) -> str:
    return "" if step is None else str(step)


def _since(step: int | None) -> str:
    return "" if step is None else f"at step {step}"


def _failed(report: Report, attempt: Attempt) -> list[object]:
    who = _who(attempt.cause)
    node, exited, last_line = _where_and_how(attempt.cause)
    front = [moment(attempt.end, report.seconds), attempt.number, attempt.reason, _yes(attempt.counted)]
    return [*front, who, node, exited, steps(attempt), last_line]


def _who(cause: Cause | None) -> str:
    """Write `rank 3 (worker-2)`."""
    if cause is None:
        return ""
    return rank_name(cause.rank, cause.who)


def _where_and_how(cause: Cause | None) -> tuple[str, str, str]:
    """Return (node, exit code or signal, last line). A lost pod has no exit code."""
    if cause is None:
        return "", "", ""
    return cause.node, cause.how if cause.how != cause.reason else "", cause.last_line


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def goodput(report: Report) -> str:
    """Write the goodput, and how it was measured."""
    if report.goodput is None and report.goodput_limit is None:
        return "not available: nothing has run yet" if report.times else "not available: no time accounting"
    if report.goodput is None:
        return f"{progress_text.NOT_MEASURED}: {progress_text.limit_note(report.goodput_limit)}"
    left_out = "queued and uploading" if "uploading" in report.times else "queued"
    return f"{progress_text.percent(report.goodput)} (productive / all but {left_out}, by reports)"


def restarts(report: Report) -> str:
    if not report.all_restarts:
        return "none"
    parts = [f"{report.counted} after failures of the program"] if report.counted else []
    parts += [f"{report.disruptions} by disruptions, which do not count"] if report.disruptions else []
    return ", ".join(parts)


def mean_rate(report: Report) -> str:
    unit, rate = report.throughput()
    values = [value for stroke in report.strokes(rate) for _, value in stroke]
    return f"{progress_text.number(sum(values) / len(values))} {unit} on average" if values else ""


def curve_title(report: Report) -> str:
    return f"{report.metric or 'Curve'}{scale(point.value for point in report.points)}"


def scale(values: Iterable[float | None]) -> str:
    return " (logarithmic scale)" if plots.logarithmic(list(values)) else ""


def timestamp(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def outcome(attempt: Attempt) -> str:
    return attempt.reason if attempt.over else "running"


def steps(attempt: Attempt) -> str:
    """Write `0-120`."""
    if attempt.last_step is None:
        return ""
    return f"{'' if attempt.first_step is None else attempt.first_step}-{attempt.last_step}"


def dropped_attempts(report: Report) -> str:
    if not report.forgotten:
        return ""
    return f"The status no longer has the details of attempts 0 to {report.forgotten - 1}, only their time."


def with_wait(report: Report, attempt: Attempt) -> list[Segment]:
    """Return the segments of an attempt, and before them the time before it that belongs to no attempt."""
    front = [part for part in report.between if part.begin < attempt.begin <= part.begin + part.seconds + 1e-6]
    return [*front, *attempt.segments]


# --- sections --------------------------------------------------------------------------------------------------------


def _section(title: str, content: Iterable[str]) -> Iterator[str]:
    lines = list(content)
    if lines:
        yield ""
        yield cell(title)
        yield from lines


def _first_differences(report: Report) -> Iterator[str]:
    if not report.differences and not report.differences_note:
        return
    lines = list(differences(report))
    yield from (f"  {line}" for line in lines[:DIFFERENCE_LINES])
    if len(lines) > DIFFERENCE_LINES:
        yield f"  ... and {len(lines) - DIFFERENCE_LINES} more lines: allranks report {report.name} -o diff"


def _times(report: Report, room: int, unicode: bool) -> Iterator[str]:
    total = sum(report.times.values())
    if total <= 0:
        return
    yield f"{'':{MARGIN}}{''.join(text for _, text in plots.parts(report.times, room, unicode))}"
    for kind, seconds in report.times.items():
        name, share = progress_text.kind_name(kind, report.measured), progress_text.percent(seconds / total)
        yield f"  {plots.part(kind, unicode)} {name:<12}{elapsed(seconds):>10}{share:>8}"


def _attempts(report: Report, room: int, unicode: bool) -> Iterator[str]:
    if not report.attempts or report.seconds <= 0:
        return
    if dropped := dropped_attempts(report):
        yield f"  {dropped}"
    for attempt in report.attempts:
        bar = _bar(with_wait(report, attempt), report.seconds, room, unicode)
        yield f"{f'  {attempt.number}':<{MARGIN}}{bar}  {cell(outcome(attempt))}"
    yield _axis(report, room)


def _bar(segments: Iterable[Segment], seconds: float, room: int, unicode: bool) -> str:
    row = [" "] * room
    for segment in segments:
        first = min(room - 1, int(segment.begin / seconds * room))
        last = min(room, max(first + 1, round((segment.begin + segment.seconds) / seconds * room)))
        mark = "?" if segment.kind == FORGOTTEN else plots.part(segment.kind, unicode)
        row[first:last] = mark * (last - first)
    return "".join(row)


def _axis(report: Report, room: int) -> str:
    end = moment(report.seconds, report.seconds)
    return f"{'':{MARGIN}}{moment(0, report.seconds):<{room - len(end)}}{end}"


def _curve(
    report: Report,
    value: Callable[[Point], float | None],
    room: int,
    unicode: bool,
    height: int,
    floor: float | None = None,
) -> Iterator[str]:
    strokes = report.strokes(value)
    values = [y for stroke in strokes for _, y in stroke]
    if len(values) < 2 or report.seconds <= 0:
        return
    rows = plots.curve(strokes, room, height, unicode, (0.0, report.seconds), floor)
    lowest = min(values) if floor is None else floor
    labels = {0: progress_text.number(max(values)), height - 1: progress_text.number(lowest)}
    for place, row in enumerate(rows):
        yield f"{labels.get(place, ''):>{MARGIN - 2}}  {row}".rstrip(" \u2800")
    marks = [" "] * room
    for at, _ in report.ends:
        marks[min(room - 1, int(at / report.seconds * room))] = "^"
    if report.ends:
        yield f"{'restarts':>{MARGIN - 2}}  {''.join(marks)}".rstrip()
    yield _axis(report, room)


def _lost(report: Report, unicode: bool) -> Iterator[str]:
    total = sum(report.lost.values())
    width = max((len(cell(reason)) for reason in report.lost), default=0)
    for reason, seconds in report.lost.items():
        share = seconds / total if total else 0.0
        bar = plots.bar(share, 30, unicode).rstrip("░-")
        yield f"  {cell(reason):<{width}}{elapsed(seconds):>10}{progress_text.percent(share):>8}  {bar}"
