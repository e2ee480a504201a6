"""What a sweep prints while it runs: a table of the trials on a terminal, otherwise a line for each event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

import click

from allranks.api import sweep_values
from allranks.api.sweep import Sweep
from allranks.api.sweep_status import ENDED, SweepStatus, Trial
from allranks.cli.format.table import Grid, Styled
from allranks.core.facts.model import Event

if TYPE_CHECKING:
    from rich.live import Live

_STYLES = {"Succeeded": "green", "Failed": "red", "Lost": "red", "Stopped": "yellow", "Pending": "dim"}
_SHOWN = 20
"""Rows of the live table: the active trials, then the newest ones that have ended."""


class SweepView:
    """A listener of a local sweep."""

    def __init__(self, sweep: Sweep, out: TextIO, *, live: bool, quiet: bool, colour: bool) -> None:
        self._sweep, self._out, self._quiet, self._colour = sweep, out, quiet, colour
        self._live: Live | None = None
        if live and not quiet:
            from rich.live import Live as RichLive

            from allranks.cli.safe_output import console

            self._live = RichLive(console=console(out, colour), auto_refresh=False, transient=True)
            self._live.start()

    def status(self, status: SweepStatus) -> None:
        if self._live:
            from rich.console import Group

            table = trials_table(self._sweep, status, _SHOWN).rich(wrap=False)
            self._live.update(Group(_headline(self._sweep, status), table), refresh=True)

    def event(self, event: Event) -> None:
        if self._live is None and not self._quiet and event.reason not in ("TrialsEnded", "SameFailure", "NoResult"):
            click.echo(event.message, file=self._out)

    def end(self, status: SweepStatus) -> None:
        """Removes the live table and prints the complete one."""
        if self._live:
            self._live.stop()
            for line in (_headline(self._sweep, status), *trials_table(self._sweep, status).plain()):
                click.echo(line, file=self._out)

    def message(self, text: str) -> None:
        if self._live:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            click.echo(text, file=self._out)


def _headline(sweep: Sweep, status: SweepStatus) -> str:
    counts = status.counts
    parts = [f"{sweep.name}: {status.summary or '0'} trials"]
    named = {"running": counts.running, "stopped early": counts.stopped, "failed": counts.failed, "lost": counts.lost}
    parts += [f"{number} {name}" for name, number in named.items() if number]
    best = f"best {sweep.spec.objective.metric} {status.best_summary}" if status.best else ""
    return ", ".join([*parts, *([best] if best else [])])


def trials_table(sweep: Sweep, status: SweepStatus, most: int = 10_000) -> Grid:
    """One row for each trial: the best one is marked."""
    names = sweep_values.names(sweep.spec)
    trials = status.trials
    if len(trials) > most:
        active = [trial for trial in trials if trial.phase not in ENDED]
        ended = [trial for trial in trials if trial.phase in ENDED]
        trials = sorted([*ended[-max(1, most - len(active)) :], *active], key=lambda trial: trial.number)
    best = status.best.trial if status.best else None
    rows = [_row(trial, names, trial.number == best) for trial in trials]
    return Grid(["trial", *names, "phase", "step", sweep.spec.objective.metric, "note"], rows)


def _row(trial: Trial, names: Any, best: bool) -> list[Any]:
    value = "" if trial.value is None else f"{trial.value:.4g}"
    note = "best" if best else trial.message if trial.phase in ("Failed", "Lost") else trial.reason
    phase = Styled(trial.phase, _STYLES.get(trial.phase, ""))
    return [trial.number, *(trial.parameters[name] for name in names), phase, trial.step, value, note]
