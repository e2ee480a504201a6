"""The account of a job as one page for a browser: no script, nothing from elsewhere, light or dark, to be printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from allranks.cli.format import progress as doing
from allranks.cli.job_report import text as words
from allranks.cli.job_report.model import Account, Point
from allranks.cli.job_report.plots import Bar, Row, curve, rows, spaced, text
from allranks.cli.job_report.style import STYLE
from allranks.cli.job_report.timeline import FORGOTTEN, Attempt, Segment
from allranks.cli.live.summary import duration
from allranks.version import __version__

POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
"""Even if a text that a program wrote should get through: a browser runs nothing and asks nobody."""


def page(told: Account) -> str:
    """The whole document. Every text in it that is not ours goes through `text`."""
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{text(told.name)}: {text(told.phase)}</title>'
        f"<style>{STYLE}</style>"
    )
    body = "\n".join(part for part in _sections(told) if part)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n<main>\n{body}\n</main>\n'
        f"<footer>allranks {text(__version__)}, account of {words.stamp(told.until)}</footer>\n</body>\n</html>\n"
    )


def _sections(told: Account) -> Iterator[str]:
    yield _head(told)
    yield _tiles(told)
    yield _section("Timeline of attempts", _timeline(told))
    yield _section("Where the time went", _times(told))
    yield _section(words.curve_title(told), _curve(told, told.metric or "curve", lambda point: point.value))
    unit, rate = told.throughput()
    yield _section(f"Throughput in {unit}", _curve(told, unit, rate, from_zero=True))
    yield _section("Lost time by cause", _lost(told))
    yield _section("Restarts and failures", _restarts(told))
    yield _section("Restarts of single replicas", _alone(told))
    yield _section("Stragglers", _stragglers(told))
    yield _section("The job", _facts(told))


def _section(title: str, content: str) -> str:
    return f"<section><h2>{text(title)}</h2>{content}</section>" if content else ""


def _head(told: Account) -> str:
    failure = "".join(f"{spaced(line)}\n" for line in told.failure)
    why = f"<p>{text(told.why)}</p>" if told.why else ""
    return (
        f'<header><h1>{text(told.name)} <span class="phase {text(told.phase.lower())}">{text(told.phase)}</span></h1>'
        f'<p class="verdict">{text(told.verdict)}</p>{why}{f"<pre>{failure}</pre>" if failure else ""}</header>'
    )


def _tiles(told: Account) -> str:
    progress = told.progress
    tiles = [("Goodput", doing.percent(told.goodput) or "not known", "" if told.measured else doing.UNMEASURED)]
    if progress and progress.step is not None:
        tiles.append(("Progress", doing.summary(progress), ", ".join(list(doing.metrics(progress))[:4])))
        if (left := doing.eta(progress)) and told.phase == "Running":
            tiles.append(("ETA", left, ""))
    unit, _ = told.throughput()
    if mean := words.mean_rate(told):
        tiles.append((unit, mean.split()[0], "on average, while it trained"))
    tiles.append(("Duration", words.when(told.seconds), "" if told.over else "so far"))
    ended = told.counted + told.disruptions
    tiles.append(("Restarts", str(ended), words.restarts(told) if ended else ""))
    made = (f"<div><dt>{text(a)}</dt><dd>{text(b)}<small>{text(c)}</small></dd></div>" for a, b, c in tiles)
    return f'<dl class="tiles">{"".join(made)}</dl>'


def _timeline(told: Account) -> str:
    if not told.attempts or told.seconds <= 0:
        return ""
    content = []
    for attempt in told.attempts:
        front = [part for part in told.between if part.begin < attempt.begin <= part.begin + part.seconds + 1e-6]
        bars = [_bar(segment) for segment in (*front, *attempt.segments)]
        content.append(Row(str(attempt.number), bars, words.outcome(attempt)))
    there = {bar.kind for row in content for bar in row.bars}
    legend = "".join(f'<li><i class="{kind}"></i>{_called(kind)}</li>' for kind in _KINDS if kind in there)
    count = len(told.attempts)
    about = f"{count} attempt{'s' * (count != 1)} in {words.when(told.seconds)}: " + "; ".join(
        f"attempt {one.number} from {words.when(one.begin)} to {words.when(one.end)}, {words.outcome(one)}"
        for one in told.attempts
    )
    plot = rows("timeline", "Timeline of attempts", about, content, told.seconds)
    seconds = [
        [one.number, words.when(one.begin), words.when(one.end), words.outcome(one), *_by_kind(one), words.steps(one)]
        for one in told.attempts
    ]
    titles = ["Attempt", "From", "To", "Ended by", *(kind.capitalize() for kind in doing.KINDS), "Steps"]
    older = f"<p>Of attempts 0 to {told.forgotten - 1} nothing is kept but their times.</p>" if told.forgotten else ""
    return f'<ul class="legend">{legend}</ul>{plot}{older}{_details("attempts", titles, seconds)}'


_KINDS = (FORGOTTEN, *doing.KINDS)


def _called(kind: str) -> str:
    return "not kept" if kind == FORGOTTEN else kind


def _bar(segment: Segment) -> Bar:
    title = f"{_called(segment.kind)}: {duration(segment.seconds)} from {words.when(segment.begin)}"
    return Bar(segment.kind, segment.begin, segment.seconds, title)


def _by_kind(attempt: Attempt) -> Iterator[str]:
    for kind in doing.KINDS:
        seconds = sum(part.seconds for part in attempt.segments if part.kind == kind)
        yield duration(seconds) if seconds else ""


def _times(told: Account) -> str:
    total = sum(told.times.values())
    if total <= 0:
        return ""
    bars, place = [], 0.0
    for kind, seconds in told.times.items():
        share = doing.percent(seconds / total)
        if seconds > 0:
            bars.append(Bar(kind, place, seconds, f"{kind}: {duration(seconds)}, {share}"))
        place += seconds
    shares = {kind: (duration(seconds), doing.percent(seconds / total)) for kind, seconds in told.times.items()}
    about = ", ".join(f"{kind} {took} ({share})" for kind, (took, share) in shares.items())
    plot = rows("times", "Where the time went", about, [Row("", bars)], total, ticks=False, left=2)
    content = [[kind, *shares[kind]] for kind in told.times]
    return f"{plot}{_table(['Kind', 'Time', 'Share'], content, keys=True)}<p>Goodput: {text(words.goodput(told))}.</p>"


def _curve(told: Account, name: str, value: Callable[[Point], float | None], from_zero: bool = False) -> str:
    strokes = told.strokes(value)
    known = [y for stroke in strokes for _, y in stroke]
    if len(known) < 2 or told.seconds <= 0:
        return ""
    first, last = known[0], known[-1]
    about = (
        f"{len(known)} points: from {doing.number(first)} to {doing.number(last)}, "
        f"at least {doing.number(min(known))}, at most {doing.number(max(known))}"
    )
    marks = [(at, f"{reason}") for at, reason in told.ends]
    identity = "rate" if from_zero else "curve"
    plot = curve(identity, f"{name} over time", about, strokes, told.seconds, marks, from_zero)
    content = [
        [words.when(point.at), point.attempt, point.step, doing.number(found)]
        for point in told.points
        if (found := value(point)) is not None
    ]
    return f"{plot}{_details(f'{len(content)} points', ['Time', 'Attempt', 'Step', name], content)}"


def _lost(told: Account) -> str:
    total = sum(told.lost.values())
    if total <= 0:
        return ""
    content = [
        Row(reason, [Bar("lost", 0.0, seconds, f"{reason}: {duration(seconds)}")], duration(seconds))
        for reason, seconds in told.lost.items()
    ]
    about = ", ".join(f"{reason} {duration(seconds)}" for reason, seconds in told.lost.items())
    most = max(told.lost.values())
    plot = rows("lost", "Lost time by cause", about, content, most, ticks=False, left=200)
    shares = [[reason, duration(seconds), doing.percent(seconds / total)] for reason, seconds in told.lost.items()]
    return f"{plot}{_table(['Cause', 'Lost', 'Share'], shares)}"


def _restarts(told: Account) -> str:
    content = [
        [
            words.when(one.end),
            one.number,
            one.reason,
            "yes" if one.counted else "no",
            words.ranks(one.cause),
            one.cause.node if one.cause else "",
            words.exited(one.cause),
            words.steps(one),
            one.cause.last_line if one.cause else "",
        ]
        for one in told.attempts
        if words.told_of(one)
    ]
    return _table(["At", "Attempt", "Cause", "Counted", "Who", "Node", "Exit", "Steps", "Last line"], content)


def _alone(told: Account) -> str:
    content = [
        [
            one.replica,
            one.count,
            one.cause.reason if one.cause else "",
            "yes" if one.counted else "no",
            one.cause.node if one.cause else "",
            words.exited(one.cause),
            one.cause.last_line if one.cause else "",
        ]
        for one in told.restarts
    ]
    return _table(["Replica", "Times", "Cause", "Counted", "Node", "Exit", "Last line"], content)


def _stragglers(told: Account) -> str:
    slow = told.progress.stragglers if told.progress else []
    content = [
        ["-" if one.rank is None else one.rank, one.replica, one.node or "", f"{one.slowdown:.2g}x"] for one in slow
    ]
    return _table(["Rank", "Replica", "Node", "Slowdown"], content)


def _facts(told: Account) -> str:
    return _table(["", ""], [[title, value] for title, value in words.facts(told)], headers=False)


def _details(what: str, titles: Sequence[str], content: Sequence[Sequence[object]]) -> str:
    return f"<details><summary>Table: {text(what)}</summary>{_table(titles, content)}</details>"


def _table(
    titles: Sequence[str], content: Sequence[Sequence[object]], *, headers: bool = True, keys: bool = False
) -> str:
    """`keys`: the first column names kinds of time, and is shown with their colours."""
    if not content:
        return ""
    head = "".join(f'<th scope="col">{text(title)}</th>' for title in titles)
    body = "".join(f"<tr>{''.join(_cells(row, keys))}</tr>" for row in content)
    above = f"<thead><tr>{head}</tr></thead>" if headers else ""
    return f'<div class="wide"><table>{above}<tbody>{body}</tbody></table></div>'


def _cells(row: Iterable[object], keys: bool) -> Iterator[str]:
    for place, value in enumerate(row):
        key = f'<i class="{text(value)}"></i>' if keys and not place else ""
        yield f'<th scope="row">{key}{text(value)}</th>' if not place else f"<td>{text(value)}</td>"
