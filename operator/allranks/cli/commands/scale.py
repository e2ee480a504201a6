"""`allranks scale`: changes the number of workers of a job."""

from __future__ import annotations

import click

from allranks.cli.completers import complete_jobs
from allranks.cli.options import OK, Count, name_callback, object_output_option, on_cluster, print_jobs
from allranks.client.jobs import get_job, scale_job
from allranks.kube.cluster import Cluster


@click.command(
    epilog="""\b
Examples:
  allranks scale penguins --replicas 4
"""
)
@click.argument("name", callback=name_callback, shell_complete=complete_jobs)
@click.option("--replicas", type=Count(0), required=True, metavar="N", help="The new number of workers.")
@object_output_option
@on_cluster
async def scale(cluster: Cluster, name: str, replicas: int, output: str | None) -> int:
    """Change the number of workers of a job.

    Elastic Horovod jobs keep running, within their bounds. Elastic PyTorch jobs restart: immediately when they shrink,
    and when there is capacity when they grow. A job that is not elastic restarts all ranks at the new size. Restarts
    for scaling do not count against spec.restart.maxRestarts.
    """
    job = await get_job(cluster, name)
    changed = await scale_job(cluster, job, replicas)
    if not output:
        click.echo(changed.line)
    print_jobs([changed.job], output, single=True)
    return OK
