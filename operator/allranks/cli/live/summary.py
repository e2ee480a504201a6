"""The live summary at the bottom of a terminal: phase, progress, state of every rank, restarts, last failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from allranks.api.status import Status
from allranks.cli.format import plots
from allranks.cli.format import progress as progress_text
from allranks.cli.format.duration import elapsed
from allranks.cli.format.log_lines import COLOURS
from allranks.cli.format.outcome import failure_line
from allranks.cli.format.progress import pod_state
from allranks.cli.live.terminal import set_keys, terminal
from allranks.control_sequences import clean
from allranks.core.model import Pod
from allranks.core.naming import replica_key

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

PHASES = {"Running": "green", "Succeeded": "bold green", "Failed": "bold red", "Restarting": "yellow"}
_ROWS_KEPT = 8
"""Lines of the terminal that are reserved for logs."""


def progress_line(status: Status, unicode: bool) -> list[tuple[str, str]]:
    """Bar, steps, rates, ETA, metrics and curve as (text, style); empty without progress."""
    progress = status.progress
    if progress is None or progress.step is None:
        return []
    parts: list[tuple[str, str]] = []
    if (fraction := progress_text.fraction(progress)) is not None:
        parts.append((plots.bar(fraction, 16, unicode), "green"))
    parts.append((progress_text.summary(progress), "bold"))
    if progress_text.trains(status):
        parts += [(text, "") for text in progress_text.rates(progress)]
        parts += [(f"ETA {left}", "")] if (left := progress_text.eta(progress)) else []
    first, *others = [*progress_text.metrics(progress), ""]
    parts += [(first, "")] if first else []
    if curve := plots.sparkline(progress_text.values(progress), 20, unicode).strip():
        parts.append((curve, "cyan"))
    parts += [(text, "dim") for text in others if text]
    return [part for text, style in parts for part in ((text, style), ("  ", ""))][:-1]


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
        head = Text.assemble(
            (self.title, "bold"), "  ", (status.phase, PHASES.get(status.phase, "")), f"  {status.ready} pods running"
        )
        if status.attempt:
            head.append(f"  attempt {status.attempt}")
        head.append(f"  {elapsed(self.seconds)} ", "bold")
        unicode = plots.supports_unicode(options.encoding)
        yield Rule(head, align="left", characters="─" if unicode else "-", style="dim")
        progress = progress_line(status, unicode)
        if progress:
            yield Text.assemble(" ", *progress, no_wrap=True, overflow="ellipsis" if unicode else "crop")
        yield from self._ranks(console.height - _ROWS_KEPT - bool(progress))
        if status.last_failure:
            restarts = status.restarts.counted + status.restarts.disruptions
            word = "restart" if restarts == 1 else "restarts"
            line = f" {restarts} {word}, last failure: {failure_line(status.last_failure)}"
            yield Text(line, "red", no_wrap=True, overflow="ellipsis")

    def _ranks(self, room: int) -> Iterator[RenderableType]:
        from rich.table import Table

        # If the pods do not fit, they are counted by state.
        rows = list(self._each()) if len(self.pods) <= max(room, 1) else list(self._counts())
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for row in rows[: max(room, 1)]:
            table.add_row(*row)
        yield table

    def _each(self) -> Iterator[tuple[RenderableType, ...]]:
        from rich.text import Text

        now = datetime.now(UTC)
        current = [pod for pod in self.pods if pod.attempt == self.status.attempt]
        others = [pod for pod in self.pods if pod.attempt != self.status.attempt]
        for pod in (*current, *others):
            name = replica_key(pod.role, pod.index)
            age = ""
            if pod.started_at:
                until = pod.exit.finished_at if pod.exit and pod.phase != "Running" else now
                age = elapsed(max(0.0, (until - pod.started_at).total_seconds()))
            state, colour = pod_state(pod), COLOURS[self.places.get(name, 0) % len(COLOURS)]
            output = clean(self.latest.get(pod.name, b"").rstrip(b"\r"), colour=False)
            if pod in others:
                name, output = f"{name} (attempt {pod.attempt})", ""
            yield (
                Text(f" {name}", colour),
                Text(state, PHASES.get(state, "dim")),
                age,
                Text(output, "dim"),
            )

    def _counts(self) -> Iterator[tuple[RenderableType, ...]]:
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
        """Prints text above the summary, with the colours of the ranks."""
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
    """None if rich is not installed or the terminal cannot move its cursor: then output is plain lines."""
    console = terminal(stream, colour)
    return Screen(console) if console else None
