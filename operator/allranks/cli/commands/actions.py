"""Commands that change jobs: `allranks suspend`, `resume`, `restart`, `scale` and `delete`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click

from allranks.cli.completers import complete_jobs
from allranks.cli.options import (
    OK,
    TIMED_OUT,
    Count,
    Duration,
    for_each_job,
    name_callback,
    names_callback,
    object_output_option,
    on_cluster,
    print_jobs,
    print_problem,
)
from allranks.client.jobs import Changed, delete_job, get_job, restart_job, scale_job, set_suspended
from allranks.core.facts.naming import JOB_LABEL
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import pods_of
from allranks.kube.paths import core_path, job_path

POLL_SECONDS = 0.5

_names_argument = click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", callback=names_callback, shell_complete=complete_jobs
)


@click.command(
    epilog="""\b
Examples:
  allranks suspend penguins
  allranks suspend penguins digits -n team
"""
)
@_names_argument
@object_output_option
@on_cluster
async def suspend(cluster: Cluster, names: tuple[str, ...], output: str | None) -> int:
    """Suspend jobs: delete their pods and keep the jobs.

    It also ends restart.holdSeconds, which keeps the pods of a failed job.

    Ranks that store checkpoints on request are asked for one first; else the work since the last checkpoint is lost.
    `allranks resume` starts the ranks again, from that checkpoint.
    """
    return await for_each_job(cluster, names, lambda job: set_suspended(cluster, job, True), output)


@click.command(
    epilog="""\b
Examples:
  allranks resume penguins
"""
)
@_names_argument
@object_output_option
@on_cluster
async def resume(cluster: Cluster, names: tuple[str, ...], output: str | None) -> int:
    """Resume suspended jobs.

    A new attempt starts. It does not count against spec.restart.maxRestarts.
    """
    return await for_each_job(cluster, names, lambda job: set_suspended(cluster, job, False), output)


@click.command(
    epilog="""\b
Examples:
  allranks restart penguins
  allranks restart penguins --code .
"""
)
@_names_argument
@click.option(
    "--code",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Send the code in DIR first, for a job that was submitted with code.",
)
@object_output_option
@on_cluster
async def restart(cluster: Cluster, names: tuple[str, ...], code: Path | None, output: str | None) -> int:
    """Restart all ranks of jobs: in their pods where that is possible, else in new ones.

    Use it when a job hangs, or when the code, a volume or a Secret has changed.

    Ranks that store checkpoints on request are asked for one first; else the work since the last checkpoint is lost.
    The new attempt does not count against spec.restart.maxRestarts.
    """
    if code is None:
        return await for_each_job(cluster, names, lambda job: restart_job(cluster, job), output)
    from allranks.client.development import restart_with_code
    from allranks.code.bundle import collect

    bundle = collect(code)
    for note in bundle.notes():
        print_problem("note", note)
    return await for_each_job(cluster, names, lambda job: restart_with_code(cluster, job, bundle), output)


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


@click.command(
    epilog="""\b
Examples:
  allranks delete penguins
  allranks delete penguins --wait --timeout 2m
  allranks delete -l team=nlp
\b
Exit status:
  0 deleted, 1 a job does not exist or the API server rejected the request, 124 timed out while waiting.
"""
)
@click.argument("names", nargs=-1, metavar="[NAME]...", callback=names_callback, shell_complete=complete_jobs)
@click.option("-l", "--selector", metavar="LABELS", help="Delete the jobs with these labels, for example team=nlp.")
@click.option(
    "--cascade",
    type=click.Choice(["background", "foreground", "orphan"]),
    default="background",
    show_default=True,
    help="background: delete the job, then its pods. foreground: delete the pods first. orphan: keep the pods.",
)
@click.option("--wait", "wait_for", is_flag=True, help="Wait until the job and its pods are gone.")
@click.option("--timeout", type=Duration(), metavar="TIME", help="Time limit for --wait, for example 90s or 10m.")
@click.option("--ignore-not-found", is_flag=True, help="Treat a job that does not exist as deleted.")
@object_output_option
@on_cluster
async def delete(
    cluster: Cluster,
    names: tuple[str, ...],
    selector: str | None,
    cascade: str,
    wait_for: bool,
    timeout: float | None,
    ignore_not_found: bool,
    output: str | None,
) -> int:
    """Delete jobs with their pods and all other objects they own. Volume claims and checkpoints are kept."""
    if bool(names) == bool(selector):
        raise click.UsageError("specify either job names or a selector with -l.")
    if selector:
        jobs = await cluster.get(job_path(cluster.namespace), {"labelSelector": selector})
        names = tuple(item["metadata"]["name"] for item in jobs["items"])
        if not names:
            click.echo(f"No jobs with {selector} in namespace {cluster.namespace}.", err=True)
    deleted: list[Manifest] = []

    async def delete_one(job: Manifest) -> Changed:
        await delete_job(cluster, job, cascade)
        deleted.append(job)
        return Changed(f"{job['metadata']['name']} deleted", job)

    single = not selector and len(names) == 1
    status = await for_each_job(cluster, names, delete_one, output, single=single, ignore_not_found=ignore_not_found)
    if wait_for:
        deadline = None if timeout is None else time.monotonic() + timeout
        for job in deleted:
            if not await _wait_until_gone(cluster, job, deadline, pods=cascade != "orphan"):
                return TIMED_OUT
    return status


async def _wait_until_gone(cluster: Cluster, job: Manifest, deadline: float | None, *, pods: bool) -> bool:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    cluster.interrupted = f"stopped waiting: the deletion of {name} continues"
    while True:
        left = await _remaining(cluster, name, uid, job, pods)
        if not left:
            return True
        if deadline is not None and time.monotonic() >= deadline:
            click.echo(f"timed out: {left} still there", err=True)
            return False
        await asyncio.sleep(POLL_SECONDS)


async def _remaining(cluster: Cluster, name: str, uid: str, job: Manifest, pods: bool) -> str:
    """Return what still exists, as the subject of a sentence; empty when everything is gone."""
    try:
        current = await cluster.get(job_path(cluster.namespace, name))
        if current["metadata"]["uid"] == uid:
            finalizers = current["metadata"].get("finalizers")
            return f"the job {name} is" + (f" (finalizers: {', '.join(finalizers)})" if finalizers else "")
    except ClusterError as error:
        if error.status != 404:
            raise
    if not pods:
        return ""
    listed = await cluster.get(core_path(cluster.namespace, "pods"), {"labelSelector": f"{JOB_LABEL}={name}"})
    count = len(pods_of(job, listed["items"]))
    return f"{count} pod{'s are' if count > 1 else ' is'}" if count else ""
