"""`allranks suspend`: deletes the pods of jobs and keeps the jobs."""

from __future__ import annotations

import click

from allranks.api.status import FINISHED
from allranks.cli.options import for_each_job, names_callback, on_cluster, patch_job
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
@click.argument("names", nargs=-1, required=True, metavar="NAME...", callback=names_callback)
@on_cluster
async def suspend(cluster: Cluster, names: tuple[str, ...]) -> int:
    """Suspend jobs: delete their pods and keep the jobs.

    Work since the last checkpoint is lost. `allranks resume` starts the ranks again, from that checkpoint.
    """
    return await for_each_job(cluster, names, lambda job: set_suspended(cluster, job, True))


async def set_suspended(cluster: Cluster, job: Manifest, suspended: bool) -> str:
    """Writes spec.suspend. Returns the line to print. Raises ClusterError for a finished job."""
    name, phase = job["metadata"]["name"], status_of(job).phase
    done, action = ("suspended", "suspend") if suspended else ("resumed", "resume")
    if phase in FINISHED:
        raise ClusterError(f"{name} is {phase}: there is nothing to {action}")
    if bool(job["spec"].get("suspend")) == suspended:
        return f"{name} is already suspended" if suspended else f"{name} is not suspended"
    await patch_job(cluster, name, {"suspend": suspended})
    return f"{name} {done}"
