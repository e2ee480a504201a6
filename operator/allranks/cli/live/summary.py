"""The live summary at the bottom of a terminal: phase, progress, every rank's state, restarts, the last failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from allranks.api.status import Failure, Status
from allranks.cli.format import plots
from allranks.cli.format import progress as doing
from allranks.cli.live.terminal import set_keys, terminal
from allranks.control_sequences import clean
from allranks.core.model import Pod
from allranks.core.naming import replica_key

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

COLOURS = (
    "cyan",
    "yellow",
    "green",
    "magenta",
    "blue",
    "bright_cyan",
    "bright_yellow",
    "bright_green",
    "bright_magenta",
)
"""Of ranks, in their order."""
CODES = {"cyan": 36, "yellow": 33, "green": 32, "magenta": 35, "blue": 34}
CODES |= {f"bright_{name}": code + 60 for name, code in CODES.items()}
PHASES = {"Running": "green", "Succeeded": "bold green", "Failed": "bold red", "Restarting": "yellow"}
_ROWS_KEPT = 8
"""Lines of the terminal that are left to the logs."""


def prefixed(label: str, width: int, place: int, text: str, *, colour: bool, faint: bool = False) -> str:
    """A line with the rank that printed it in front. `place` in the order of ranks decides the colour."""
    front = f"{label:<{width}} |"
    if not colour:
        return f"{front} {text}"
    front = f"\x1b[{CODES[COLOURS[place % len(COLOURS)]]}m{front}\x1b[0m"
    return f"{front} \x1b[2m{text}\x1b[0m" if faint else f"{front} {text}"


def duration(seconds: float) -> str:
    """`12.3s`, `2:05`, `1:02:03`."""
    if seconds < 100:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def ended_how(exit_code: int | None, signal: int | None, reason: str) -> str:
    """`exit code 1`, `signal 9 (SIGKILL)`, `OOMKilled`."""
    if signal is not None:
        import signal as signals

        known = {number.value: number.name for number in signals.Signals}
        text = f"signal {signal} ({known[signal]})" if signal in known else f"signal {signal}"
    elif exit_code is not None:
        text = f"exit code {exit_code}"
    else:
        return reason
    return text if reason in ("Error", "") else f"{reason}, {text}"


def failure_line(failure: Failure) -> str:
    """Who failed, and how, in one line."""
    who = replica_key(failure.role, failure.index)
    how = ended_how(failure.exit_code, failure.signal, failure.reason)
    if failure.signal is not None:
        return f"{who} in attempt {failure.attempt}: {how}"  # its last lines say nothing about that
    last = next((line.strip() for line in reversed(failure.message.splitlines()) if line.strip()), "")
    return f"{who} in attempt {failure.attempt}: {how}" + (f": {clean(last.encode(), colour=False)}" if last else "")


def state_of(pod: Pod) -> str:
    """One word or two about a pod."""
    if pod.deleted_at:
        return "Stopping"
    if pod.waiting_reason in ("CrashLoopBackOff", "Unschedulable"):
        return pod.waiting_message or pod.waiting_reason
    return pod.phase


def progress_line(status: Status, unicode: bool) -> list[tuple[str, str]]:
    """Bar, steps, rates, ETA, metrics and the curve, as texts with their style; nothing while nothing is reported."""
    progress = status.progress
    if progress is None or progress.step is None:
        return []
    parts: list[tuple[str, str]] = []
    if (fraction := doing.fraction(progress)) is not None:
        parts.append((plots.bar(fraction, 16, unicode), "green"))
    parts.append((doing.summary(progress), "bold"))
    if doing.trains(status):
        parts += [(text, "") for text in doing.rates(progress)]
        parts += [(f"ETA {left}", "")] if (left := doing.eta(progress)) else []
    first, *others = [*doing.metrics(progress), ""]
    parts += [(first, "")] if first else []
    if curve := plots.sparkline(doing.values(progress), 20, unicode).strip():
        parts.append((curve, "cyan"))
    parts += [(text, "dim") for text in others if text]
    return [part for text, style in parts for part in ((text, style), ("  ", ""))][:-1]


@dataclass(frozen=True)
class Summary:
    """What is drawn. A rich renderable."""

    title: str
    elapsed: float
    status: Status
    pods: Sequence[Pod]
    latest: Mapping[str, bytes]
    """Last output by replica."""
    places: Mapping[str, int]
    """Replica -> its place in the order of ranks, which decides its colour."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.rule import Rule
        from rich.text import Text

        status = self.status
        head = Text.assemble(
            (self.title, "bold"), "  ", (status.phase, PHASES.get(status.phase, "")), f"  {status.ready} pods running"
        )
        if status.attempt:
            head.append(f"  attempt {status.attempt}")
        head.append(f"  {duration(self.elapsed)} ", "bold")
        unicode = plots.draws(options.encoding)
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

        # With 100 pods and more, a list of them tells less than a count.
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
                age = duration(max(0.0, (until - pod.started_at).total_seconds()))
            state, colour = state_of(pod), COLOURS[self.places.get(name, 0) % len(COLOURS)]
            told = clean(self.latest.get(name, b"").rstrip(b"\r"), colour=False)
            if pod in others:
                name, told = f"{name} (attempt {pod.attempt})", ""
            yield (
                Text(f" {name}", colour),
                Text(state, PHASES.get(state, "dim")),
                age,
                Text(told, "dim"),
            )

    def _counts(self) -> Iterator[tuple[RenderableType, ...]]:
        from rich.text import Text

        roles: dict[str, Counter[str]] = {}
        for pod in self.pods:
            roles.setdefault(pod.role, Counter())[state_of(pod)] += 1
        for number, (role, states) in enumerate(roles.items()):
            text = ", ".join(f"{count} {state}" for state, count in states.most_common())
            yield Text(f" {role}", COLOURS[number % len(COLOURS)]), Text(text), "", ""


class Screen:
    """A terminal with the summary at its bottom; text scrolls above it."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def start(self) -> None:
        # Typed keys, and the ^C of Ctrl-C, would be drawn into the summary and shift it.
        set_keys(self._live.console.file.fileno(), echo=False)
        self._live.start()

    def draw(self, text: str, summary: Summary | None) -> None:
        """Text goes above the summary as it is: the ranks' own colours stay."""
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
    """None where rich is not installed, or the terminal cannot move its cursor: plain lines then."""
    console = terminal(stream, colour)
    return Screen(console) if console else None
