"""`allranks resume`: starts suspended jobs again."""

from __future__ import annotations

import click

from allranks.cli.completers import complete_jobs
from allranks.cli.options import for_each_job, names_callback, object_output_option, on_cluster
from allranks.client.jobs import set_suspended
from allranks.kube.cluster import Cluster


@click.command(
    epilog="""\b
Examples:
  allranks resume penguins
"""
)
@click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", callback=names_callback, shell_complete=complete_jobs
)
@object_output_option
@on_cluster
async def resume(cluster: Cluster, names: tuple[str, ...], output: str | None) -> int:
    """Resume suspended jobs.

    A new attempt starts. It does not count against spec.restart.maxRestarts.
    """
    return await for_each_job(cluster, names, lambda job: set_suspended(cluster, job, False), output)
