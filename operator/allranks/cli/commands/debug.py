"""`allranks debug`: writes everything about a job into one archive."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from allranks.cli.completers import complete_files, complete_jobs
from allranks.cli.options import OK, cluster_options, name_callback, run_on_cluster
from allranks.client.jobs import get_job
from allranks.kube.cluster import Cluster, Where

if TYPE_CHECKING:
    from allranks.cli.commands.debug_archive import Archive


@click.command(
    epilog="""\b
Examples:
  allranks debug penguins
  allranks debug penguins -n team -o penguins.tar.gz
  tar xzOf penguins.tar.gz penguins-debug/describe.txt
\b
Exit status:
  0 written, also if some parts could not be read (README.txt in the archive names them),
  1 the job does not exist, or the file cannot be written.
"""
)
@click.argument("name", metavar="JOB", callback=name_callback, shell_complete=complete_jobs)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    shell_complete=complete_files,
    help="Write this file. [default: JOB-debug-TIME.tar.gz]",
)
@cluster_options
def debug(where: Where, name: str, output: Path | None) -> None:
    """Write everything about a job of a cluster into one archive, to attach it to a question or a bug report.

    It has the manifest, the status, Events, pods, versions, the logs of all pods that exist (of all attempts; of each
    log at most the last 5 MiB, and of all at most 256 MiB) and the stack dumps in them.

    Values of variables and options with names such as HF_TOKEN or --api-key are masked, also in the logs. Other secrets
    that a program prints are not recognised: look at the files before you pass them on.
    """
    sys.exit(run_on_cluster(_collect, where, {"name": name, "output": output}))


async def _collect(cluster: Cluster, name: str, output: Path | None) -> int:
    from allranks.cli.commands.debug_archive import collect

    now = datetime.now(UTC)
    with await collect(cluster, await get_job(cluster, name), name, now) as archive:
        return _write(archive, name, output, now)


def _write(archive: Archive, name: str, output: Path | None, now: datetime) -> int:
    file = output or Path(f"{name}-debug-{now:%Y%m%d-%H%M%S}.tar.gz")
    archive.write(file, now)
    logs = sum(name.startswith("logs/") for name in archive.names())
    stacks = sum(name.startswith("stacks/") for name in archive.names())
    further = f", stack dumps of {stacks}" if stacks else ""
    click.echo(f"wrote {file}: {file.stat().st_size / 1024:.0f} KiB, {logs} log{'s' * (logs != 1)}{further}")
    for line in archive.missing:
        click.echo(f"not read: {line}", err=True)
    return OK
