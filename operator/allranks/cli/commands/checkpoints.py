"""`allranks checkpoints`: prints the newest checkpoints of a job."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

import click

from allranks.cli.completers import complete_jobs_and_runs
from allranks.cli.local_runs import run_instead
from allranks.cli.options import FAILED, OK, cluster_options, name_callback, print_error, run_on_cluster
from allranks.client.jobs import get_job
from allranks.errors import AllranksError
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.kube.job_codec import status_of
from allranks.views.format import checkpoints as view


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
    they were compared. Both are empty for a checkpoint without a manifest. RESUME: the one that resume_from() returns
    when the program starts again. A column without a value is left out.
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
    recorded = job.get("status") or {}
    if output:
        stored = {"checkpoints": recorded.get("checkpoints") or [], "rollback": recorded.get("rollback")}
        click.echo(json.dumps(stored, indent=2))
        return OK
    status = status_of(job)
    if grid := view.table(status, datetime.now(UTC)):
        for line in grid.plain():
            click.echo(line)
    else:
        click.echo(f"No rank of {job['metadata']['name']} has reported a checkpoint.", err=True)
    if rollback := view.rollback(status):
        click.echo(rollback)
    if schedule := view.schedule(job.get("spec") or {}, status):
        click.echo(f"Due {schedule}.")
    return OK
