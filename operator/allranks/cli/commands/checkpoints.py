"""`allranks checkpoints`: prints the newest checkpoints of a job."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from allranks.cli.completers import complete_jobs_and_runs
from allranks.cli.local_runs import run_instead
from allranks.cli.options import FAILED, OK, cluster_options, name_callback, print_error, run_on_cluster
from allranks.client.jobs import get_job
from allranks.errors import AllranksError
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.views.format.duration import age
from allranks.views.format.table import Table


@click.command(
    epilog="""\b
Examples:
  allranks checkpoints penguins
  allranks checkpoints penguins -n team
  allranks checkpoints penguins -o json | jq -r '.checkpoints[-1].path'
\b
Exit status:
  0 printed, also if there is no checkpoint, 1 the job does not exist or cannot be read.
"""
)
@click.argument("name", callback=name_callback, shell_complete=complete_jobs_and_runs)
@click.option("-o", "--output", type=click.Choice(["json"]), help="The output format. [default: a table]")
@cluster_options
def checkpoints(where: Where, name: str, output: str | None) -> None:
    """Print the newest checkpoints of a job, the oldest first, at most five. Without such a job in the
    cluster, they are of the newest run on this machine.

    COMPLETE: all files have the sizes in the manifest, which is written last. VERIFIED: they had the hashes in it when
    they were compared. Both are empty for a checkpoint without a manifest.
    """

    async def on_cluster(cluster: Cluster) -> int:
        return _print(await get_job(cluster, name), output)

    def otherwise(error: AllranksError) -> int:
        run = run_instead(error, name)
        if run is None:
            print_error(error)
            return FAILED
        click.echo(f"The newest local run of {name} is shown ({run.directory}).", err=True)
        return _print(run.manifest, output)

    sys.exit(run_on_cluster(on_cluster, where, {}, otherwise))


def _print(job: Manifest, output: str | None) -> int:
    status = job.get("status") or {}
    stored = status.get("checkpoints") or []
    rollback = status.get("rollback")
    attempt = status.get("attempt", 0)
    if output:
        click.echo(json.dumps({"checkpoints": stored, "rollback": rollback}, indent=2))
        return OK
    if not stored:
        click.echo(f"No rank of {job['metadata']['name']} has reported a checkpoint.", err=True)
    for line in _lines(stored, rollback, attempt, datetime.now(UTC)):
        click.echo(line)
    return OK


def _lines(stored: list[Any], rollback: dict[str, Any] | None, attempt: int, now: datetime) -> Iterator[str]:
    rows = [
        [
            checkpoint["step"],
            age(checkpoint["time"], now),
            _yes_or_no(checkpoint.get("complete")),
            _yes_or_no(checkpoint.get("verified")),
            checkpoint.get("path", ""),
        ]
        for checkpoint in stored
    ]
    if rows:
        yield from Table(["step", "age", "complete", "verified", "path"]).lines(rows)
    if rollback:
        unreadable = f"attempt {rollback['attempt']} could not read the one of step {rollback['unreadableStep']}"
        yield f"Attempt {attempt} resumes from step {rollback['step']}: {unreadable}."


def _yes_or_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"
