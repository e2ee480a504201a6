"""`allranks runs`: lists, prints and removes the stored runs of `allranks run` and `allranks sweep`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.commands.report import Output, output_options
from allranks.cli.commands.stacks import stacks_options
from allranks.cli.completers import complete_runs
from allranks.cli.options import FAILED, Count, Duration, print_error, root_option
from allranks.cli.suggestions import SuggestingGroup
from allranks.errors import AllranksError
from allranks.text import size
from allranks.views.format.duration import age, elapsed

if TYPE_CHECKING:
    from allranks.local.run_directories import StoredRun


@click.group(
    cls=SuggestingGroup,
    invoke_without_command=True,
    epilog="""\b
Examples:
  allranks runs
  allranks runs -o json | jq -r '.[].run'
  allranks runs logs penguins --replica worker-1
  allranks runs logs penguins --rank 0 --tail 20
  allranks runs stacks penguins --rank 0
  allranks runs report penguins/20260304-101500 -o penguins.html
  allranks runs rm penguins/20260304-101500
  allranks runs prune --older-than 7d
\b
RUN is JOB for the newest run of the job, or JOB/TIME; TRIAL or SWEEP/TIME/TRIAL is a trial of a sweep.
A run or sweep with --run-dir runs/NAME is NAME. --root DIR: the runs and sweeps DIR/JOB/TIME and DIR/NAME.
""",
)
@click.option(
    "--root", type=click.Path(file_okay=False, path_type=Path), help="The directory of the runs. [default: runs]"
)
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print the list as JSON.")
@click.option("--trials", is_flag=True, help="Also list the trials of sweeps. JSON always has them.")
@click.pass_context
def runs(ctx: click.Context, root: Path | None, output: str | None, trials: bool) -> None:
    """List, print and remove the stored runs of allranks run and allranks sweep, in ./runs."""
    command = ctx.invoked_subcommand
    if command is None:
        ctx.invoke(list_, root=root or Path("runs"), output=output, trials=trials)
    elif root or output or trials:
        option = "--root" if root else "--output" if output else "--trials"
        raise click.UsageError(f"put {option} after {command}: allranks runs {command} --help lists its options.")


@runs.command(name="list")
@root_option
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print JSON.")
@click.option("--trials", is_flag=True, help="Also list the trials of sweeps. JSON always has them.")
def list_(root: Path, output: str | None, trials: bool) -> None:
    """List the stored runs and sweeps, the newest first. TRIALS: the ended trials of a sweep, of all."""
    from allranks.local.sweep_files import StoredSweep, list_stored
    from allranks.views.format.table import Table

    stored = sorted(list_stored(root), key=lambda run: run.age_key, reverse=True)
    if output:
        click.echo(json.dumps([_as_json(run) for run in stored], indent=2))
        return
    if not stored:
        click.echo(f"There are no runs in {root}.", err=True)
        return
    sweeps = any(isinstance(run, StoredSweep) for run in stored)
    listed = [item for run in stored for item in (run, *(_trials_of(run) if trials else ()))]
    headers = ["run", "phase", "age", "duration", "size", *(["trials"] if sweeps else [])]
    rows = [_row(run)[: len(headers)] for run in listed]
    for line in Table(headers).lines(rows):
        click.echo(line)


@runs.command()
@root_option
@click.argument("run", shell_complete=complete_runs)
@click.option("--replica", metavar="ROLE-INDEX", help="Print the logs of this replica only, for example worker-0.")
@click.option("--rank", "ranks", type=Count(0), multiple=True, metavar="N", help="Print only this rank. Repeatable.")
@click.option("--tail", type=Count(0), metavar="LINES", help="Print the last LINES of each log. [default: all]")
def logs(root: Path, run: str, replica: str | None, ranks: tuple[int, ...], tail: int | None) -> None:
    """Print the logs of a run, pod by pod: each line begins with the pod."""
    from allranks.cli.local_runs import print_logs
    from allranks.local.sweep_files import find_stored

    with _errors():
        print_logs(find_stored(run, root), replica, ranks, tail)


@runs.command()
@root_option
@click.argument("run", shell_complete=complete_runs)
@stacks_options
def stacks(root: Path, run: str, **options: Any) -> None:
    """Print the stacks of all threads of the ranks of a run, the main thread first. The run continues."""
    from allranks.cli.commands.stacks import stacks_of_run
    from allranks.local.sweep_files import find_stored, require_job

    with _errors():
        sys.exit(asyncio.run(stacks_of_run(require_job(find_stored(run, root)), **options)))


@runs.command()
@root_option
@click.argument("run", shell_complete=complete_runs)
@output_options
def report(root: Path, run: str, output: Output) -> None:
    """Print the report on a run, as allranks report does."""
    from allranks.cli.commands.report import write_of_run
    from allranks.local.sweep_files import find_stored

    with _errors():
        write_of_run(find_stored(run, root).directory, output)


@runs.command()
@root_option
@click.argument("names", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@click.option("--all", "every", is_flag=True, help="With JOB, remove all runs of the job and not only the newest.")
def rm(root: Path, names: tuple[str, ...], every: bool) -> None:
    """Remove runs: their logs, volumes and status. A sweep is removed with its trials."""
    from allranks.local.sweep_files import find_stored, list_stored

    with _errors():
        for name in names:
            newest = find_stored(name, root)
            chosen = [run for run in list_stored(root) if run.job == newest.job] if every else []
            for run in chosen or [newest]:
                run.remove()
                click.echo(f"removed {run.name}")


@runs.command()
@root_option
@click.option("--older-than", type=Duration(), required=True, metavar="AGE", help="For example 7d or 12h.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed.")
def prune(root: Path, older_than: float, dry_run: bool) -> None:
    """Remove runs that started longer ago than AGE and no longer run. A sweep is removed with its trials."""
    from allranks.local.sweep_files import list_stored

    now = datetime.now(UTC)
    count = freed = 0
    with _errors():
        for run in list_stored(root):
            if run.running or run.started is None or (now - run.started).total_seconds() <= older_than:
                continue
            count, freed = count + 1, freed + run.size
            if not dry_run:
                run.remove()
            click.echo(f"{'would remove' if dry_run else 'removed'} {run.name}")
    click.echo(f"{count} run{'s' * (count != 1)}, {size(freed)}", err=True)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except AllranksError as error:
        print_error(error)
        sys.exit(FAILED)


def _trials_of(run: StoredRun) -> Sequence[StoredRun]:
    from allranks.local.sweep_files import StoredSweep

    return run.trials if isinstance(run, StoredSweep) else ()


def _row(run: StoredRun) -> tuple[str, ...]:
    from allranks.local.sweep_files import StoredSweep

    summary = run.summary if isinstance(run, StoredSweep) else ""
    return run.name, run.phase, age(run.started), _duration(run), size(run.size), summary


def _duration(run: StoredRun) -> str:
    end = run.ended or (datetime.now(UTC) if run.running else None)
    return elapsed((end - run.started).total_seconds()) if end and run.started else "<unknown>"


def _as_json(run: StoredRun) -> dict[str, Any]:
    from allranks.local.sweep_files import StoredSweep

    document: dict[str, Any] = {
        "run": run.name,
        "directory": str(run.directory),
        "phase": run.phase,
        "startTime": run.started.isoformat() if run.started else None,
        "completionTime": run.ended.isoformat() if run.ended else None,
        "bytes": run.size,
    }
    if isinstance(run, StoredSweep):
        document |= {"trials": [_as_json(trial) for trial in run.trials]}
    return document
