"""`allranks suspend`: deletes the pods of jobs and keeps the jobs."""

from __future__ import annotations

import click

from allranks.cli.completers import complete_jobs
from allranks.cli.options import for_each_job, names_callback, object_output_option, on_cluster
from allranks.client.jobs import set_suspended
from allranks.kube.cluster import Cluster


@click.command(
    epilog="""\b
Examples:
  allranks suspend penguins
  allranks suspend penguins digits -n team
"""
)
@click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", callback=names_callback, shell_complete=complete_jobs
)
@object_output_option
@on_cluster
async def suspend(cluster: Cluster, names: tuple[str, ...], output: str | None) -> int:
    """Suspend jobs: delete their pods and keep the jobs.

    It also ends restart.holdSeconds, which keeps the pods of a failed job.

    Ranks that store checkpoints on request are asked for one first; else the work since the last checkpoint is lost.
    `allranks resume` starts the ranks again, from that checkpoint.
    """
    return await for_each_job(cluster, names, lambda job: set_suspended(cluster, job, True), output)
