"""`allranks suspend`: deletes the pods of jobs and keeps the jobs."""

from __future__ import annotations

import click

from allranks.api.status import FINISHED
from allranks.cli.completers import complete_jobs
from allranks.cli.options import (
    Changed,
    for_each_job,
    names_callback,
    object_output_option,
    on_cluster,
    patch_job,
)
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import status_of


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


async def set_suspended(cluster: Cluster, job: Manifest, suspended: bool) -> Changed:
    """Writes spec.suspend. Raises ClusterError for a finished job."""
    name = job["metadata"]["name"]
    done, action = ("suspended", "suspend") if suspended else ("resumed", "resume")
    status = status_of(job)
    held = suspended and status.hold is not None
    if status.phase in FINISHED and not held:
        raise ClusterError(f"{name} is {status.phase}: there is nothing to {action}")
    if bool(job["spec"].get("suspend")) == suspended:
        return Changed(f"{name} is already suspended" if suspended else f"{name} is not suspended", job)
    return Changed(f"{name} {done}", await patch_job(cluster, name, {"suspend": suspended}))
