"""`allranks scale`: changes the number of workers of a job."""

from __future__ import annotations

import click

from allranks.api.status import FINISHED
from allranks.cli.completers import complete_jobs
from allranks.cli.options import (
    OK,
    Changed,
    Count,
    get_job,
    joined,
    name_callback,
    object_output_option,
    on_cluster,
    patch_job,
    print_jobs,
)
from allranks.errors import ClusterError
from allranks.frameworks import FRAMEWORKS
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import status_of


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


async def scale_job(cluster: Cluster, job: Manifest, replicas: int) -> Changed:
    """Raises ClusterError."""
    name, spec, status = job["metadata"]["name"], job["spec"], status_of(job)
    roles = spec.get("roles") or {}
    if "worker" not in roles:
        raise ClusterError(f"{name} has no workers to scale: its roles are {joined(sorted(roles), 'and')}")
    if status.phase in FINISHED:
        raise ClusterError(f"{name} is {status.phase}: submit a new job with the size you want")
    elastic = spec.get("elastic")
    if elastic and not elastic["minReplicas"] <= replicas <= elastic["maxReplicas"]:
        bounds = f"{elastic['minReplicas']} to {elastic['maxReplicas']} workers"
        raise ClusterError(f"{name} is elastic from {bounds} (spec.elastic): {replicas} is outside that range")
    before = (roles["worker"] or {}).get("replicas", 1)
    workers = f"{replicas} worker{'s' * (replicas != 1)}"
    if before == replicas:
        return Changed(f"{name} already has {workers}", job)
    await patch_job(cluster, name, {"replicas": replicas}, "scale")
    what = effect(spec, replicas > before) if status.phase in ("Running", "Restarting", "Pending") else ""
    return Changed(f"{name} scaled from {before} to {workers}{what}", await get_job(cluster, name))


def effect(spec: Manifest, grows: bool) -> str:
    """What the change does to a job that has started."""
    framework = FRAMEWORKS.get(spec.get("framework", ""))
    if spec.get("elastic") and framework and framework.elastic == "absorbs":
        return ": the other ranks keep running"
    if not spec.get("elastic"):
        effect = ": it is not elastic, so all ranks restart at the new size"
    else:
        effect = f": all ranks restart {'when there is capacity for more' if grows else 'at the new size'}"
    return effect + ("" if spec.get("checkpoint") else ", from the beginning unless the program saves checkpoints")
