"""`allranks run`: runs jobs on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from allranks.cli.options import BAD_MANIFEST, FAILED, OK, files_argument, print_error, set_option
from allranks.cli.safe_output import use_colour

if TYPE_CHECKING:
    from allranks.errors import AllranksError
    from allranks.local import LocalRun

NOT_STARTED = BAD_MANIFEST

EXAMPLES = """\b
Examples:
  allranks run examples/penguins-pytorch.yaml
  allranks run job.yaml --set roles.worker.replicas=2 --volume data=./data
  cat job.yaml | allranks run -f - --dry-run
  allranks run job.yaml -o json --quiet | jq -r .status.phase
\b
Exit status:
  0 the job succeeded, 1 the job failed, 2 nothing was started (the manifest is not valid, or this machine
  cannot run the job), 130 interrupted by Ctrl-C, 143 terminated by SIGTERM.
"""


@click.command(epilog=EXAMPLES)
@files_argument
@set_option
@click.option("--dry-run", is_flag=True, help="Print the pods as YAML without starting them.")
@click.option(
    "--volume",
    "volumes",
    multiple=True,
    metavar="NAME=DIR",
    help="Use DIR for the volume or claim NAME. Repeatable.",
)
@click.option(
    "--workdir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    help="Working directory of containers without a workingDir that exists here. [default: the current directory]",
)
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for logs, volumes and the final status. [default: runs/JOB/TIME]",
)
@click.option(
    "--grace-period",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Time between SIGTERM and SIGKILL. [default: terminationGracePeriodSeconds of the pod, or 30]",
)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), help="Print the final status in this format.")
@click.option("--no-logs", is_flag=True, help="Do not print the output of the ranks.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the outcome.")
@click.option(
    "--no-color", "--no-colour", is_flag=True, help="Do not use colours; NO_COLOR=1 in the environment does the same."
)
def run(
    files: tuple[str, ...],
    sets: tuple[str, ...],
    dry_run: bool,
    volumes: tuple[str, ...],
    workdir: Path,
    run_dir: Path | None,
    grace_period: float | None,
    output: str | None,
    no_logs: bool,
    quiet: bool,
    no_color: bool,
) -> None:
    """Run the jobs in FILEs on this machine, one after the other. FILE can be - for standard input.

    Each pod runs as a process tree with the environment, arguments and volumes that it has on a cluster. The output of
    all ranks is printed with the rank in front, and stored in the run directory. No process outlives this command:
    Ctrl-C sends SIGTERM to the ranks and waits for the grace period, a second Ctrl-C kills them immediately.
    """
    from allranks.cli.manifests import load
    from allranks.errors import AllranksError
    from allranks.local import LocalRun, Options

    _exit_on_ctrl_c()
    human = sys.stderr if output else sys.stdout
    colour = use_colour(human) and not no_color
    try:
        mapped = _mapped(volumes)
        loaded = load(files, sets)
        claims: dict[str, Path] = {}
        runs = [
            LocalRun(
                job,
                Options(
                    run_dir=_run_dir(run_dir, job.name, several=len(loaded.jobs) > 1),
                    workdir=workdir.absolute(),
                    volumes=mapped,
                    claims=claims,
                    grace=grace_period,
                ),
            )
            for job in loaded.jobs
        ]
        if dry_run:
            _print_pods(runs)
            return
        notes = _check(runs, mapped)
    except AllranksError as error:
        print_error(error)
        sys.exit(NOT_STARTED)
    named = {job.spec.pool for job in loaded.jobs}  # the notes of the jobs mention these
    others = [(other.kind, other.name) for other in loaded.others]
    others += [("TrainingPool", pool.name) for pool in loaded.pools if pool.name not in named]
    for kind, name in others:
        _note(human, f"{kind} {name} is not used here", quiet, colour)
    session = Session(human, output, colour=colour, logs=not no_logs, quiet=quiet)
    for number, (one, its_notes) in enumerate(zip(runs, notes, strict=True)):
        for text in its_notes:
            _note(human, text, quiet, colour)
        status = session.run(one)
        if status != OK:
            left = ", ".join(later.job.name for later in runs[number + 1 :])
            if left:
                click.echo(f"not run: {left}", file=human)
            sys.exit(status)


class Session:
    """Runs jobs one after the other, on one screen."""

    def __init__(self, human: TextIO, output: str | None, *, colour: bool, logs: bool, quiet: bool) -> None:
        from allranks.cli.live.renderer import Renderer

        self._human = human
        self._output = output
        self._colour = colour
        self._quiet = quiet
        self._renderer = Renderer(
            human, live=human.isatty(), colour=colour, logs=logs, quiet=quiet, on_closed=self._on_closed_output
        )
        self._received: int | None = None
        self._received_at = 0.0
        self._run: LocalRun | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, one: LocalRun) -> int:
        """Runs one job and prints its outcome. Returns the exit status."""
        from allranks.errors import AllranksError, CannotRun

        self._renderer.begin(one.job.name)
        how, broken = "stopped", None
        try:
            how = asyncio.run(self._drive(one))
        except AllranksError as error:
            broken = error
        finally:
            _exit_on_ctrl_c()
            self._renderer.end()
        if isinstance(broken, CannotRun):
            print_error(broken)
            return NOT_STARTED
        self._print_outcome(one, how, broken)
        if how == "finished" and not broken:
            return OK if one.status.phase == "Succeeded" else FAILED
        if self._received:
            return 128 + self._received
        return NOT_STARTED if how == "suspended" else FAILED

    async def _drive(self, one: LocalRun) -> str:
        self._run, self._loop = one, asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A signal that is ignored (nohup, background of a script) must stay ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._stop, number)
        return await one.run(self._renderer)

    def _stop(self, number: int) -> None:
        """The first signal terminates the ranks gracefully, a second Ctrl-C kills them."""
        assert self._run is not None
        now = time.monotonic()
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if self._received is None:
            self._received, self._received_at = number, now
            pods, grace = self._run.running, self._run.grace
            sent = f"{name}: SIGTERM to {pods} pods, SIGKILL after {grace:g} s"
            self._renderer.message(f"{sent}. Press Ctrl-C again to kill them immediately.")
            self._run.stop()
        # Some wrappers forward the Ctrl-C that the terminal has already sent to us.
        elif number == signal.SIGINT and now - self._received_at > _DOUBLE_SECONDS:
            self._renderer.message(f"{name} again: SIGKILL")
            self._run.stop(at_once=True)

    def _on_closed_output(self) -> None:
        """The reader of our output has exited: stop, as SIGPIPE does."""
        if self._loop and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop, signal.SIGPIPE)

    def _print_outcome(self, one: LocalRun, how: str, broken: AllranksError | None) -> None:
        from allranks.cli.format.outcome import failure_block, rendered, resource, summary

        shown = resource(one.job.name, one.job.namespace, one.status)
        try:
            (one.options.run_dir / "status.yaml").write_text(rendered(shown, "yaml").removeprefix("---\n"))
        except OSError as error:
            click.echo(f"cannot write the status to {one.options.run_dir}: {error.strerror}", err=True)
        line = summary(one.job.name, one.status, self._renderer.seconds, how)
        good = how == "finished" and one.status.phase == "Succeeded"
        self._print(line, fg="green" if good else "red" if one.status.phase == "Failed" else "yellow", bold=True)
        if broken:
            print_error(broken)
        if self._output:
            click.echo(rendered(shown, self._output), nl=False)
        elif how == "finished" and not self._quiet:
            self._print(rendered({"status": _without_curve(shown["status"])}, "yaml").removeprefix("---\n").rstrip())
        if how == "finished" and one.status.phase == "Failed":
            for line in failure_block(one.status, one.logs):
                self._print(line, **({} if line.startswith(" ") else {"fg": "red"}))
        if how != "suspended" and not self._quiet:
            self._print(f"Logs: {one.logs}")

    def _print(self, text: str, **style: Any) -> None:
        click.echo(click.style(text, **style) if self._colour else text, file=self._human, color=self._colour)


def _without_curve(status: dict[str, Any]) -> dict[str, Any]:
    """Too long to print; `allranks report --run-dir` draws it."""
    progress = {key: value for key, value in status.get("progress", {}).items() if key not in ("curve", "ranks")}
    return {**status, "progress": progress} if progress else status


_DOUBLE_SECONDS = 0.5
"""Ctrl-C received again within this time is the same key press."""


def _exit_on_ctrl_c() -> None:
    """For the time in which no rank runs. If SIGINT is ignored (in the background of a script), it stays ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: sys.exit(128 + signal.SIGINT))


def _mapped(volumes: Sequence[str]) -> dict[str, Path]:
    """Volume name -> directory. Raises CannotRun for an item that is not NAME=DIR."""
    from allranks.errors import CannotRun

    mapped: dict[str, Path] = {}
    for item in volumes:
        name, equals, directory = item.partition("=")
        if not (name and equals and directory):
            raise CannotRun(f"--volume {item}: must be NAME=DIR, for example data=./data")
        mapped[name] = Path(directory).expanduser().absolute()
    return mapped


def _check(runs: Sequence[LocalRun], mapped: Iterable[str]) -> list[list[str]]:
    """The notes on each job. Raises InvalidManifest with every reason why a job cannot run here."""
    from allranks.errors import CannotRun, InvalidManifest

    notes: list[list[str]] = []
    problems: list[tuple[str, str]] = []
    for one in runs:
        try:
            notes.append(one.check())
        except CannotRun as error:
            problems += [(one.job.name, line) for line in str(error).splitlines()]
    names = {name for one in runs for name in one.volume_names}
    for name in mapped:
        if name not in names:  # a typing error would lose the output of a training
            existing = f"the jobs have {', '.join(sorted(names))}" if names else "the jobs have no volumes"
            problems.append((f"--volume {name}", f"no volume or claim has this name; {existing}"))
    if problems:
        raise InvalidManifest(problems)
    return notes


def _run_dir(given: Path | None, job: str, *, several: bool) -> Path:
    if given is not None:
        return given / job if several else given
    base = Path("runs") / job / f"{datetime.now():%Y%m%d-%H%M%S}"
    tries = itertools.chain((base,), (base.with_name(f"{base.name}-{number}") for number in itertools.count(2)))
    return next(path for path in tries if not path.exists())


def _print_pods(runs: Iterable[LocalRun]) -> None:
    from allranks.cli.format.yaml import dump

    click.echo("# The pods that allranks run would start. The ports are examples: each run uses free ports.")
    click.echo(dump([pod for one in runs for pod in one.preview()]), nl=False)


def _note(human: TextIO, text: str, quiet: bool, colour: bool) -> None:
    if not quiet:
        click.echo(f"{click.style('note:', dim=True) if colour else 'note:'} {text}", file=human, color=colour)
