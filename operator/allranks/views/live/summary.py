"""The live summary at the bottom of a terminal: phase, progress, state of every rank, restarts, last failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from allranks.api.status import ProgressStatus, Status
from allranks.control_sequences import clean
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import replica_key
from allranks.views.format import plots
from allranks.views.format import progress as progress_text
from allranks.views.format.duration import elapsed, human
from allranks.views.format.log_lines import COLOURS
from allranks.views.format.outcome import failure_line, last_begin
from allranks.views.format.progress import pod_state
from allranks.views.live.terminal import set_keys, terminal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

PHASES = {"Running": "green", "Succeeded": "bold green", "Failed": "bold red", "Restarting": "yellow", "Queued": "cyan"}
GAP = 2
"""Spaces between the parts of a line."""
_ROWS_KEPT = 8
"""Lines of the terminal that are reserved for logs."""


BAR_WIDTH = 8, 60
CURVE_WIDTH = 64
OLD_SECONDS = 3.0
"""The age of older progress is shown: it lags behind the log by the interval of the reports."""


def progress_line(status: Status, unicode: bool, width: int, now: datetime) -> list[tuple[str, str]]:
    """Return bar, steps, rates, ETA, metrics and curve as (text, style), in at most `width` characters.

    Empty without progress. A part that does not fit is left out as a whole: half a number is a wrong number.
    """
    progress = status.progress
    if progress is None or progress.step is None:
        return []
    trains = progress_text.trains(status)
    fraction, curve = progress_text.fraction(progress), progress_text.values(progress)
    summary = progress_text.summary(progress)
    rates = list(progress_text.rates(progress)) if trains else []
    eta = [f"ETA {text}"] if trains and (text := progress_text.eta(progress)) else []
    metrics = list(progress_text.metrics(progress))
    smallest_bar = 0 if fraction is None else BAR_WIDTH[0] + GAP
    texts = _fitting(
        [*_age(status, progress, now), *rates, *eta, *metrics],
        [*reversed(metrics[1:]), *reversed(rates), *eta, *metrics[:1]],
        width - smallest_bar - len(summary),
    )
    room = width - len(summary) - _width(texts)
    curve_width = min(CURVE_WIDTH, 4 * len(curve), (room - smallest_bar) // 2 - GAP)
    plot = ""
    if curve_width >= min(4, len(curve)):
        plot = plots.sparkline(curve, curve_width, unicode, stretch=True).strip()
    parts = [(summary, "bold"), *((text, "") for text in texts)]
    if plot:
        room -= len(plot) + GAP
        behind = metrics[0] if metrics and metrics[0] in texts else None
        parts.insert(1 + (texts.index(behind) + 1 if behind else len(texts)), (plot, "cyan"))
    if fraction is not None and (bar := min(BAR_WIDTH[1], room - GAP)) >= BAR_WIDTH[0]:
        parts.insert(0, (plots.bar(fraction, bar, unicode), "green"))
    return [part for text, style in parts for part in ((text, style), (" " * GAP, ""))][:-1]


def _fitting(texts: list[str], least_important: Sequence[str], width: int) -> list[str]:
    """Remove texts in the order of `least_important` until the others fit into the width. Return these."""
    for text in least_important:
        if _width(texts) <= width:
            break
        texts.remove(text)
    return texts


def _width(texts: Sequence[str]) -> int:
    """Return the width of the texts with a gap before each."""
    return sum(GAP + len(text) for text in texts)


def _age(status: Status, progress: ProgressStatus, now: datetime) -> Iterator[str]:
    """Yield `12s ago`, if the numbers are old."""
    if progress.last_report and progress_text.trains(status):
        seconds = (now - progress.last_report).total_seconds()
        if seconds > OLD_SECONDS:
            yield f"{human(seconds)} ago"


@dataclass(frozen=True)
class Summary:
    """A rich renderable."""

    title: str
    seconds: float
    """Since the start of the job."""
    status: Status
    pods: Sequence[Pod]
    latest: Mapping[str, bytes]
    """Pod -> the last line of its log."""
    places: Mapping[str, int]
    """Replica -> its position among the ranks, which selects its colour."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.rule import Rule
        from rich.text import Text

        status = self.status
        head = Text.assemble((self.title, "bold"), "  ", (status.phase, PHASES.get(status.phase, "")))
        if status.ready:  # empty until the pods are counted
            head.append(f"  {status.ready} pods running")
        if status.attempt:
            head.append(f"  attempt {status.attempt}")
        head.append(f"  {elapsed(self.seconds)} ", "bold")
        unicode = plots.supports_unicode(options.encoding)
        yield Rule(head, align="left", characters="─" if unicode else "-", style="dim")
        progress = progress_line(status, unicode, options.max_width - 1, datetime.now(UTC))
        if progress:
            yield Text.assemble(" ", *progress, no_wrap=True, overflow="crop")
        yield from self._ranks(console.height - _ROWS_KEPT - bool(progress))
        if status.last_failure:
            restarts = status.restarts.counted + status.restarts.disruptions
            word = "restart" if restarts == 1 else "restarts"
            line = f" {restarts} {word}{last_begin(status)}, last failure: {failure_line(status.last_failure)}"
            yield Text(line, "red", no_wrap=True, overflow="ellipsis")

    def _ranks(self, room: int) -> Iterator[RenderableType]:
        from rich.table import Table

        # If the pods do not fit, they are counted by state.
        rows = list(self._pod_rows()) if len(self.pods) <= max(room, 1) else list(self._role_rows())
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for row in rows[: max(room, 1)]:
            table.add_row(*row)
        yield table

    def _pod_rows(self) -> Iterator[tuple[RenderableType, ...]]:
        from rich.text import Text

        now = datetime.now(UTC)
        current = [pod for pod in self.pods if pod.attempt == self.status.attempt]
        previous = [pod for pod in self.pods if pod.attempt != self.status.attempt]
        for pod in (*current, *previous):
            name = replica_key(pod.role, pod.index)
            age = ""
            if pod.started_at:
                until = pod.exit.finished_at if pod.exit and pod.phase != "Running" else now
                age = elapsed(max(0.0, (until - pod.started_at).total_seconds()))
            state, colour = pod_state(pod), COLOURS[self.places.get(name, 0) % len(COLOURS)]
            output = clean(self.latest.get(pod.name, b"").rstrip(b"\r"), colour=False)
            if pod in previous:
                name, output = f"{name} (attempt {pod.attempt})", ""
            yield (
                Text(f" {name}", colour),
                Text(state, PHASES.get(state, "dim")),
                age,
                Text(output, "dim"),
            )

    def _role_rows(self) -> Iterator[tuple[RenderableType, ...]]:
        from rich.text import Text

        roles: dict[str, Counter[str]] = {}
        for pod in self.pods:
            roles.setdefault(pod.role, Counter())[pod_state(pod)] += 1
        for number, (role, states) in enumerate(roles.items()):
            text = ", ".join(f"{count} {state}" for state, count in states.most_common())
            yield Text(f" {role}", COLOURS[number % len(COLOURS)]), Text(text), "", ""


class Screen:
    """A terminal with the summary at the bottom and scrolling text above it."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def start(self) -> None:
        # Echoed keys, and the ^C of Ctrl-C, would move the summary.
        set_keys(self._live.console.file.fileno(), echo=False)
        self._live.start()

    def draw(self, text: str, summary: Summary | None) -> None:
        """Print text above the summary, with the colours of the ranks."""
        if text:
            self._live.console.print(_Raw(text), crop=False, end="", soft_wrap=True)
        if summary:
            self._live.update(summary, refresh=True)

    def stop(self) -> None:
        self._live.stop()
        set_keys(self._live.console.file.fileno(), echo=True)


@dataclass(frozen=True)
class _Raw:
    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        yield Segment(self.text)


def open_screen(stream: TextIO, colour: bool) -> Screen | None:
    """Return None if rich is not installed or the terminal cannot move its cursor: then output is plain lines."""
    console = terminal(stream, colour)
    return Screen(console) if console else None
