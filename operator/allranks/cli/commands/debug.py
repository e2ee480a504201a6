"""`allranks debug`: writes everything about a job into one archive."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from allranks.cli.completers import complete_files, complete_jobs_and_runs
from allranks.cli.options import FAILED, OK, cluster_options, name_callback, print_error, run_on_cluster
from allranks.client.jobs import get_job
from allranks.errors import AllranksError
from allranks.kube.cluster import Cluster, Where

if TYPE_CHECKING:
    from allranks.cli.commands.debug_archive.archive import Archive


@click.command(
    epilog="""\b
Examples:
  allranks debug penguins
  allranks debug penguins -n team -o penguins.tar.gz
  allranks debug --run-dir runs/penguins/latest
  tar xzOf penguins.tar.gz penguins-debug/describe.txt
\b
Exit status:
  0 written, also if some parts could not be read (README.txt in the archive names them),
  1 the job does not exist, or the file cannot be written.
"""
)
@click.argument("name", required=False, metavar="[JOB]", callback=name_callback, shell_complete=complete_jobs_and_runs)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    shell_complete=complete_files,
    help="Write this file. [default: JOB-debug-TIME.tar.gz]",
)
@click.option(
    "--run-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Collect a local run: the run directory of allranks run, or runs/JOB for the newest one.",
)
@cluster_options
def debug(where: Where, name: str | None, output: Path | None, run_dir: Path | None) -> None:
    """Write everything about a job into one archive, to attach it to a question or a bug report.

    It has the manifest, the status, Events, pods, versions, the logs of all pods that exist (of all attempts; of each
    log at most the last 5 MiB, and of all at most 256 MiB) and the stack dumps in them. If the cluster has no such job,
    it has the newest local run of this name.

    Values of variables and options with names such as HF_TOKEN or --api-key are masked, also in the logs. Other secrets
    that a program prints are not recognised: look at the files before you pass them on.
    """
    if (name is None) == (run_dir is None):
        raise click.UsageError("specify a job, or --run-dir DIR.")
    if run_dir:
        sys.exit(_of_directory(run_dir, output))
    options = {"name": name, "output": output}
    sys.exit(run_on_cluster(_of_cluster, where, options, lambda error: _of_runs(error, str(name), output)))


async def _of_cluster(cluster: Cluster, name: str, output: Path | None) -> int:
    from allranks.cli.commands.debug_archive.on_cluster import collect

    now = datetime.now(UTC)
    with await collect(cluster, await get_job(cluster, name), name, now) as archive:
        return _write(archive, name, output, now)


def _of_runs(error: AllranksError, name: str, output: Path | None) -> int:
    """Collects the newest local run of the job if the cluster has none. Returns the exit status."""
    from allranks.local.run_directories import RunsError, find_run

    try:
        run = find_run(name)
    except RunsError:
        print_error(error)
        return FAILED
    click.echo(f"The newest local run of {name} is collected ({run.directory}).", err=True)
    return _of_directory(run.directory, output)


def _of_directory(directory: Path, output: Path | None) -> int:
    from allranks.cli.commands.debug_archive.local_run import collect
    from allranks.local.run_directories import LATEST, RUN_FILE

    newest = directory / LATEST
    found = newest if not (directory / RUN_FILE).exists() and newest.exists() else directory
    now = datetime.now(UTC)
    try:
        with collect(found, now) as archive:
            return _write(archive, archive.job, output, now)
    except AllranksError as error:
        print_error(error)
        return FAILED


def _write(archive: Archive, name: str, output: Path | None, now: datetime) -> int:
    """Raises DebugError."""
    file = output or Path(f"{name}-debug-{now:%Y%m%d-%H%M%S}.tar.gz")
    archive.write(file, now)
    logs = sum(name.startswith("logs/") for name in archive.names())
    stacks = sum(name.startswith("stacks/") for name in archive.names())
    further = f", stack dumps of {stacks}" if stacks else ""
    click.echo(f"wrote {file}: {file.stat().st_size / 1024:.0f} KiB, {logs} log{'s' * (logs != 1)}{further}")
    for line in archive.missing:
        click.echo(f"not read: {line}", err=True)
    return OK
