"""The account of a job as text: for a terminal, a mail, a log of CI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from allranks.cli.format import plots
from allranks.cli.format import progress as doing
from allranks.cli.format.table import Table, cell
from allranks.cli.job_report.model import Account, Point
from allranks.cli.job_report.timeline import FORGOTTEN, Attempt, Cause, Segment
from allranks.cli.live.summary import duration
from allranks.control_sequences import clean

CURVE_LINES = 6
MARGIN = 12
"""Characters in front of plots."""


def lines(told: Account, width: int = 100, unicode: bool = True) -> Iterator[str]:
    """The report, at most so wide but for what programs and users wrote."""
    room = max(20, width - MARGIN - 16)
    yield cell(told.verdict)
    if told.why:
        yield cell(told.why)
    yield ""
    for title, text in facts(told):
        yield f"{title:<{MARGIN}}{cell(text)}"
    yield from _section("Time", _times(told, room, unicode))
    yield from _section("Attempts", _attempts(told, room, unicode))
    yield from _section(curve_title(told), _curve(told, lambda point: point.value, room, unicode, CURVE_LINES))
    unit, rate = told.throughput()
    yield from _section(f"Throughput in {unit}", _curve(told, rate, room, unicode, 3, 0.0))
    yield from _section("Lost time by cause", _lost(told, unicode))
    yield from _section("Restarts and failures", _restarts(told))
    yield from _section("Restarts of single replicas", _alone(told))
    yield from _section("Stragglers", _stragglers(told))
    yield from _section("Last failure", (f"  {clean(line.encode(), colour=False)}" for line in told.failure))


def facts(told: Account) -> Iterator[tuple[str, str]]:
    """(what, value) of the report's head."""
    yield "Job", f"{told.namespace}/{told.name}" if told.namespace else told.name
    yield "Framework", ", ".join(part for part in (told.framework, told.size) if part)
    yield from ([("Image", told.image)] if told.image else [])
    yield from ([("Command", told.command)] if told.command else [])
    yield "Created", stamp(told.began)
    ended = "Ended" if told.over else "As of"
    yield ended, f"{stamp(told.until)}, after {duration(told.seconds)}"
    progress = told.progress
    if progress and progress.step is not None:
        epoch = [] if progress.epoch is None else [f"epoch {progress.epoch}"]
        yield "Progress", ", ".join([doing.summary(progress), *epoch, *doing.metrics(progress)])
        if told.phase == "Running" and (left := doing.eta(progress)):
            yield "ETA", left
        if mean := mean_rate(told):
            yield "Throughput", mean
    yield "Goodput", goodput(told)
    yield "Restarts", restarts(told)


def goodput(told: Account) -> str:
    """With how it is known."""
    if told.goodput is None:
        return "not known: nothing ran yet" if told.times else "not known: nobody accounted for the time"
    how = "productive / all but queued, by reports" if told.measured else doing.UNMEASURED
    return f"{doing.percent(told.goodput)} ({how})"


def restarts(told: Account) -> str:
    if not told.counted and not told.disruptions:
        return "none"
    parts = [f"{told.counted} after failures of the program"] if told.counted else []
    parts += [f"{told.disruptions} by disruptions, which do not count"] if told.disruptions else []
    return ", ".join(parts)


def mean_rate(told: Account) -> str:
    unit, rate = told.throughput()
    known = [value for stroke in told.strokes(rate) for _, value in stroke]
    return f"{doing.number(sum(known) / len(known))} {unit} on average" if known else ""


def curve_title(told: Account) -> str:
    """Of the metric that the curve shows."""
    values = [point.value for point in told.points]
    scale = " (by its logarithm)" if plots.logarithmic(values) else ""
    return f"{told.metric or 'Curve'}{scale}"


def when(seconds: float) -> str:
    """Since the job's creation: `0:00`, `2:05`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def exited(cause: Cause | None) -> str:
    """`1`, `137 SIGKILL`; empty for a pod that was lost without."""
    if cause is None:
        return ""
    return cause.how if cause.how != cause.reason else ""


def ranks(cause: Cause | None) -> str:
    """`rank 3 (worker-2)`."""
    if cause is None:
        return ""
    return cause.who if cause.rank is None else f"rank {cause.rank} ({cause.who})"


def outcome(attempt: Attempt) -> str:
    return attempt.reason if attempt.over else "goes on"


def _section(title: str, content: Iterable[str]) -> Iterator[str]:
    found = list(content)
    if found:
        yield ""
        yield cell(title)
        yield from found


def _times(told: Account, room: int, unicode: bool) -> Iterator[str]:
    total = sum(told.times.values())
    if total <= 0:
        return
    yield f"{'':{MARGIN}}{''.join(text for _, text in plots.parts(told.times, room, unicode))}"
    for kind, seconds in told.times.items():
        share = doing.percent(seconds / total)
        yield f"  {plots.part(kind, unicode)} {kind:<12}{duration(seconds):>10}{share:>8}"


def _attempts(told: Account, room: int, unicode: bool) -> Iterator[str]:
    if not told.attempts or told.seconds <= 0:
        return
    if told.forgotten:
        yield f"  Of attempts 0 to {told.forgotten - 1} nothing is kept but their times."
    for attempt in told.attempts:
        # What goes before it on the same line: the wait for it.
        front = [part for part in told.between if part.begin < attempt.begin <= part.begin + part.seconds + 1e-6]
        cells = _drawn([*front, *attempt.segments], told.seconds, room, unicode)
        yield f"{f'  {attempt.number}':<{MARGIN}}{cells}  {cell(outcome(attempt))}"
    yield _axis(told, room)


def _drawn(segments: Iterable[Segment], seconds: float, room: int, unicode: bool) -> str:
    row = [" "] * room
    for segment in segments:
        first = min(room - 1, int(segment.begin / seconds * room))
        last = min(room, max(first + 1, round((segment.begin + segment.seconds) / seconds * room)))
        mark = "?" if segment.kind == FORGOTTEN else plots.part(segment.kind, unicode)
        row[first:last] = mark * (last - first)
    return "".join(row)


def _axis(told: Account, room: int) -> str:
    end = when(told.seconds)
    return f"{'':{MARGIN}}{when(0):<{room - len(end)}}{end}"


def _curve(
    told: Account,
    value: Callable[[Point], float | None],
    room: int,
    unicode: bool,
    height: int,
    floor: float | None = None,
) -> Iterator[str]:
    strokes = told.strokes(value)
    known = [y for stroke in strokes for _, y in stroke]
    if len(known) < 2 or told.seconds <= 0:
        return
    rows = plots.curve(strokes, room, height, unicode, (0.0, told.seconds), floor)
    labels = {0: doing.number(max(known)), height - 1: doing.number(min(known) if floor is None else floor)}
    for place, row in enumerate(rows):
        yield f"{labels.get(place, ''):>{MARGIN - 2}}  {row}".rstrip(" \u2800")
    marks = [" "] * room
    for at, _ in told.ends:
        marks[min(room - 1, int(at / told.seconds * room))] = "^"
    if told.ends:
        yield f"{'restarts':>{MARGIN - 2}}  {''.join(marks)}".rstrip()
    yield _axis(told, room)


def _lost(told: Account, unicode: bool) -> Iterator[str]:
    total = sum(told.lost.values())
    width = max((len(cell(reason)) for reason in told.lost), default=0)
    for reason, seconds in told.lost.items():
        share = seconds / total if total else 0.0
        bar = plots.bar(share, 30, unicode).rstrip("░-")
        yield f"  {cell(reason):<{width}}{duration(seconds):>10}{doing.percent(share):>8}  {bar}"


def _restarts(told: Account) -> Iterator[str]:
    ended = [attempt for attempt in told.attempts if told_of(attempt)]
    if not ended:
        return
    table = Table(["At", "Attempt", "Cause", "Counted", "Who", "Node", "Exit", "Steps", "Last line"], indent="  ")
    yield from table.lines(
        (
            when(attempt.end),
            attempt.number,
            attempt.reason,
            "yes" if attempt.counted else "no",
            ranks(attempt.cause),
            attempt.cause.node if attempt.cause else "",
            exited(attempt.cause),
            steps(attempt),
            attempt.cause.last_line if attempt.cause else "",
        )
        for attempt in ended
    )


def told_of(attempt: Attempt) -> bool:
    """Whether its end is to be explained."""
    return attempt.over and (attempt.cause is not None or attempt.reason != "Completed")


def steps(attempt: Attempt) -> str:
    """`0-120`."""
    if attempt.last_step is None:
        return ""
    return f"{'' if attempt.first_step is None else attempt.first_step}-{attempt.last_step}"


def _alone(told: Account) -> Iterator[str]:
    if not told.restarts:
        return
    table = Table(["Replica", "Times", "Cause", "Counted", "Node", "Exit", "Last line"], indent="  ")
    yield from table.lines(
        (
            one.replica,
            one.count,
            one.cause.reason if one.cause else "",
            "yes" if one.counted else "no",
            one.cause.node if one.cause else "",
            exited(one.cause),
            one.cause.last_line if one.cause else "",
        )
        for one in told.restarts
    )


def _stragglers(told: Account) -> Iterator[str]:
    if told.progress and told.progress.stragglers:
        table = Table(["Rank", "Replica", "Node", "Slowdown"], indent="  ")
        yield from table.lines(doing.slow(told.progress, ""))
