"""Runs a sweep on this machine with its view, passes signals on, and prints the result."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from allranks.api import sweep_values
from allranks.api.sweep import Sweep
from allranks.api.sweep_status import ENDED, SweepStatus, Trial
from allranks.authoring.yaml_text import dump
from allranks.cli.live.session import NOT_STARTED, exit_on_ctrl_c
from allranks.cli.options import FAILED, OK, print_error, unknown_volumes
from allranks.core.facts.model import Event
from allranks.views.format.objects import render_data
from allranks.views.format.table import Grid, Styled
from allranks.views.safe_output import use_colour

if TYPE_CHECKING:
    from rich.live import Live

    from allranks.authoring.sweep_manifests import LoadedSweep
    from allranks.local.sweep import LocalSweep


def run_sweep(
    loaded: LoadedSweep,
    *,
    run_dir: Path | None,
    workdir: Path,
    volumes: Mapping[str, Path],
    grace: float | None,
    output: str | None,
    quiet: bool,
    no_color: bool,
) -> int:
    """Return the exit status. stdout gets the manifest of the best trial, or with `output` the sweep."""
    from allranks.errors import AllranksError, InvalidManifest
    from allranks.local import run_directories
    from allranks.local.sweep import LocalSweep, SweepOptions

    sweep = loaded.sweep
    reserved: list[Path] = []
    folder = run_dir or run_directories.reserve_directory(sweep.name, reserved)
    human = sys.stdout if sys.stdout.isatty() and not output else sys.stderr
    try:
        options = SweepOptions(folder, workdir.absolute(), volumes, grace, loaded.code)
        local = LocalSweep(sweep, loaded.job, options)
        _check(sweep)
        if problems := list(unknown_volumes(volumes, local.check())):
            raise InvalidManifest(problems)
        local.load()
        if local.continues:
            click.echo(f"{sweep.name} continues: {local.status.summary} trials have ended", file=human)
        colour = use_colour(human) and not no_color
        view = SweepView(sweep, human, live=human.isatty() and colour, quiet=quiet, colour=colour)
        received: list[int] = []
        try:
            asyncio.run(_drive(local, view, received))
        finally:
            exit_on_ctrl_c()
            view.end(local.status)
    except AllranksError as error:
        print_error(error)
        return NOT_STARTED
    finally:
        run_directories.remove_empty(reserved)  # nothing was started
    return _print_result(local, folder, output, human, received)


def _check(sweep: Sweep) -> None:
    """Raise CannotRun before any trial runs."""
    from importlib.util import find_spec

    from allranks.errors import CannotRun
    from allranks.extras import install_command

    if sweep.spec.suspend:
        raise CannotRun("spec.suspend: a suspended sweep starts no trials: remove it, or set it to false")
    if sweep.spec.algorithm == "TPE" and find_spec("optuna") is None:
        raise CannotRun(
            f"algorithm TPE needs the Python package optuna, which is not installed: {install_command('sweeps')}"
        )


async def _drive(local: LocalSweep, view: SweepView, received: list[int]) -> None:
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        again = bool(received)
        received.append(number)
        if number == signal.SIGINT:
            how = "again: the ranks are killed" if again else "the trials store a checkpoint and stop"
            view.message(f"Ctrl-C: {how}{'' if again else '. Press Ctrl-C again to kill them immediately.'}")
            local.stop()
        else:
            local.terminate()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop, number)
    await local.run(view)


def _print_result(local: LocalSweep, folder: Path, output: str | None, human: TextIO, received: list[int]) -> int:
    from allranks.core.sweeps import trial_job

    status, sweep = local.status, local.sweep
    if output:
        document = local.document()
        click.echo(render_data(document, output), nl=False)
    if received and not status.finished:
        again = f"--run-dir {shlex.quote(str(folder))}"
        click.echo(f"{sweep.name} was interrupted: the same command with {again} continues it", file=human)
        return 128 + received[0]
    for condition in status.conditions:
        if condition.status == "True":
            click.echo(f"{sweep.name} {status.phase}: {condition.message}", file=human)
    click.echo(f"Trials: {folder / 'trials'}", file=human)
    if status.best and not output:
        with contextlib.suppress(BrokenPipeError):
            best = trial_job.best(sweep, status.best.parameters)
            click.echo(f"# The job with the parameters of the best trial, {status.best.trial}.")
            click.echo(dump([best]), nl=False)
    return OK if status.phase == "Succeeded" else FAILED


_STYLES = {"Succeeded": "green", "Failed": "red", "Lost": "red", "Stopped": "yellow", "Pending": "dim"}
_ROWS = 20
"""Rows of the live table: the active trials, then the newest ones that have ended."""


class SweepView:
    """Shows a table of the trials on a terminal, otherwise a line for each event: a listener of a local sweep."""

    def __init__(self, sweep: Sweep, out: TextIO, *, live: bool, quiet: bool, colour: bool) -> None:
        self._sweep, self._out, self._quiet, self._colour = sweep, out, quiet, colour
        self._live: Live | None = None
        if live and not quiet:
            from rich.live import Live as RichLive

            from allranks.views.safe_output import console

            self._live = RichLive(console=console(out, colour), auto_refresh=False, transient=True)
            self._live.start()

    def status(self, status: SweepStatus) -> None:
        if self._live:
            from rich.console import Group

            table = trials_table(self._sweep, status, _ROWS).rich(wrap=False)
            self._live.update(Group(_headline(self._sweep, status), table), refresh=True)

    def event(self, event: Event) -> None:
        if self._live is None and not self._quiet and event.reason not in ("TrialsEnded", "SameFailure", "NoResult"):
            click.echo(event.message, file=self._out)

    def end(self, status: SweepStatus) -> None:
        """Remove the live table and print the complete one."""
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
    objective = sweep.spec.objective
    best = f"best {objective.metric} {status.best_summary}" if objective and status.best else ""
    return ", ".join([*parts, *([best] if best else [])])


def trials_table(sweep: Sweep, status: SweepStatus, most: int = 10_000) -> Grid:
    """Make a row for each trial, and mark the best one."""
    names = sweep_values.names(sweep.spec)
    trials = status.trials
    if len(trials) > most:
        active = [trial for trial in trials if trial.phase not in ENDED]
        ended = [trial for trial in trials if trial.phase in ENDED]
        trials = sorted([*ended[-max(1, most - len(active)) :], *active], key=lambda trial: trial.number)
    best = status.best.trial if status.best else None
    metric = [sweep.spec.objective.metric] if sweep.spec.objective else []
    rows = [_row(trial, names, trial.number == best, bool(metric)) for trial in trials]
    return Grid(["trial", *names, "phase", "step", *metric, "note"], rows)


def _row(trial: Trial, names: Any, best: bool, compared: bool) -> list[Any]:
    value = [] if not compared else [""] if trial.value is None else [f"{trial.value:.4g}"]
    note = "best" if best else trial.message if trial.phase in ("Failed", "Lost") else trial.reason
    phase = Styled(trial.phase, _STYLES.get(trial.phase, ""))
    return [trial.number, *(trial.parameters[name] for name in names), phase, trial.step, *value, note]
