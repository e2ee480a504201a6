"""`allranks suspend`, `resume`, `scale` and `delete`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click

from allranks.api.status import FINISHED
from allranks.cli.options import (
    FAILED,
    OK,
    TIMED_OUT,
    Duration,
    get_job,
    joined,
    name_callback,
    names_callback,
    not_found,
    on_cluster,
    tell,
)
from allranks.core.naming import JOB_LABEL
from allranks.errors import ClusterError
from allranks.frameworks import FRAMEWORKS
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import pods_of, status_of
from allranks.kube.paths import core_path, job_path

POLL_SECONDS = 0.5
CHANGED_BY = {"fieldManager": "allranks"}


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
    """Delete the pods of jobs and keep the jobs.

    What the ranks have not saved is lost; they go on from their last checkpoint after `allranks resume`.
    """
    return await _each(cluster, names, lambda job: _suspended(cluster, job, True))


@click.command(
    epilog="""\b
Examples:
  allranks resume penguins
"""
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", callback=names_callback)
@on_cluster
async def resume(cluster: Cluster, names: tuple[str, ...]) -> int:
    """Let suspended jobs go on: a new attempt that counts against nothing."""
    return await _each(cluster, names, lambda job: _suspended(cluster, job, False))


async def _suspended(cluster: Cluster, job: Manifest, wanted: bool) -> str:
    name, phase = job["metadata"]["name"], status_of(job).phase
    done, undone = ("suspended", "suspend") if wanted else ("resumed", "resume")
    if phase in FINISHED:
        raise ClusterError(f"{name} is {phase}: there is nothing to {undone}")
    if bool(job["spec"].get("suspend")) == wanted:
        return f"{name} is suspended already" if wanted else f"{name} is not suspended"
    await cluster.request("PATCH", job_path(cluster.namespace, name), CHANGED_BY, {"spec": {"suspend": wanted}})
    return f"{name} {done}"


@click.command(
    epilog="""\b
Examples:
  allranks scale penguins --replicas 4
"""
)
@click.argument("name", callback=name_callback)
@click.option("--replicas", type=click.IntRange(0), required=True, help="How many workers there are to be.")
@on_cluster
async def scale(cluster: Cluster, name: str, replicas: int) -> int:
    """Change the number of a job's workers.

    Elastic Horovod goes on with them, within its bounds. Elastic PyTorch restarts: with fewer ranks at once, with more
    when there is room for them. A job that is not elastic restarts as a whole at the new size. None of it counts
    against anything.
    """
    job = await get_job(cluster, name)
    click.echo(await _scaled(cluster, job, replicas))
    return OK


async def _scaled(cluster: Cluster, job: Manifest, replicas: int) -> str:
    name, spec, status = job["metadata"]["name"], job["spec"], status_of(job)
    roles = spec.get("roles") or {}
    if "worker" not in roles:
        raise ClusterError(f"{name} has only {joined(sorted(roles), 'and')}: a job is scaled by its workers")
    if status.phase in FINISHED:
        raise ClusterError(f"{name} is {status.phase}: submit a new job with the size that you want")
    elastic = spec.get("elastic")
    if elastic and not elastic["minReplicas"] <= replicas <= elastic["maxReplicas"]:
        least, most = elastic["minReplicas"], elastic["maxReplicas"]
        raise ClusterError(f"{name} is elastic from {least} to {most} workers (spec.elastic): {replicas} is outside")
    before = (roles["worker"] or {}).get("replicas", 1)
    if before == replicas:
        return f"{name} has {replicas} worker{'s' * (replicas != 1)} already"
    await cluster.request(
        "PATCH", job_path(cluster.namespace, name, "scale"), CHANGED_BY, {"spec": {"replicas": replicas}}
    )
    how = ""
    if status.phase in ("Running", "Restarting", "Pending"):
        how = _what_follows(spec, replicas > before)
    return f"{name} scaled from {before} to {replicas} worker{'s' * (replicas != 1)}{how}"


def _what_follows(spec: Manifest, more: bool) -> str:
    framework = FRAMEWORKS.get(spec.get("framework", ""))
    if spec.get("elastic") and framework and framework.elastic == "absorbs":
        return ": the others go on meanwhile"
    if not spec.get("elastic"):
        how = ": it is not elastic, so all ranks restart at the new size"
    else:
        how = f": all ranks restart {'when there is room for more' if more else 'at the new size'}"
    return how + ("" if spec.get("checkpoint") else ", from the beginning unless the program saves checkpoints")


@click.command(
    epilog="""\b
Examples:
  allranks delete penguins
  allranks delete penguins --wait --timeout 2m
  allranks delete -l team=nlp
\b
Exit status:
  0 deleted, 1 one is not there, or the cluster refuses, 124 the time was over while waiting.
"""
)
@click.argument("names", nargs=-1, metavar="[NAME]...", callback=names_callback)
@click.option("-l", "--selector", metavar="LABELS", help="Instead of names: jobs with these labels.")
@click.option(
    "--cascade",
    type=click.Choice(["background", "foreground", "orphan"]),
    default="background",
    show_default=True,
    help="background: the job goes at once, its pods after it. foreground: the job goes last. orphan: pods stay.",
)
@click.option("--wait", "wait_for", is_flag=True, help="Return when the job and its pods are gone.")
@click.option("--timeout", type=Duration(), metavar="TIME", help="With --wait: give up after so long: 90s, 10m.")
@click.option("--ignore-not-found", is_flag=True, help="A job that is not there is no error.")
@on_cluster
async def delete(
    cluster: Cluster,
    names: tuple[str, ...],
    selector: str | None,
    cascade: str,
    wait_for: bool,
    timeout: float | None,
    ignore_not_found: bool,
) -> int:
    """Delete jobs, and with them their pods and all else that belongs to them. Claims and checkpoints stay."""
    if bool(names) == bool(selector):
        raise click.UsageError("which jobs? Give names, or a selector with -l.")
    if selector:
        found = await cluster.get(job_path(cluster.namespace), {"labelSelector": selector})
        names = tuple(item["metadata"]["name"] for item in found["items"])
        if not names:
            click.echo(f"No jobs with {selector} in namespace {cluster.namespace}.", err=True)
    gone: list[Manifest] = []

    async def one(job: Manifest) -> str:
        metadata = job["metadata"]
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": cascade.capitalize(),
            "preconditions": {"uid": metadata["uid"]},  # never a new job of the same name
        }
        await cluster.request("DELETE", job_path(cluster.namespace, metadata["name"]), body=options)
        gone.append(job)
        return f"{metadata['name']} deleted"

    status = await _each(cluster, names, one, ignore=ignore_not_found)
    if wait_for:
        deadline = None if timeout is None else time.monotonic() + timeout
        for job in gone:
            if not await _wait_until_gone(cluster, job, deadline, pods=cascade != "orphan"):
                return TIMED_OUT
    return status


async def _wait_until_gone(cluster: Cluster, job: Manifest, deadline: float | None, *, pods: bool) -> bool:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    cluster.interrupted = f"{name} is being deleted all the same"
    while True:
        left = await _left(cluster, name, uid, job, pods)
        if not left:
            return True
        if deadline is not None and time.monotonic() >= deadline:
            click.echo(f"the time is over: {left} still there", err=True)
            return False
        await asyncio.sleep(POLL_SECONDS)


async def _left(cluster: Cluster, name: str, uid: str, job: Manifest, pods: bool) -> str:
    """What is still there, for people; empty when nothing is."""
    try:
        there = await cluster.get(job_path(cluster.namespace, name))
        if there["metadata"]["uid"] == uid:
            finalizers = there["metadata"].get("finalizers")
            return f"the job {name} is" + (f" (finalizers: {', '.join(finalizers)})" if finalizers else "")
    except ClusterError as error:
        if error.status != 404:
            raise
    if not pods:
        return ""
    found = await cluster.get(core_path(cluster.namespace, "pods"), {"labelSelector": f"{JOB_LABEL}={name}"})
    own = pods_of(job, found["items"])
    return f"{len(own)} pod{'s are' if len(own) > 1 else ' is'}" if own else ""


async def _each(cluster: Cluster, names: tuple[str, ...], act: Any, *, ignore: bool = False) -> int:
    """One job after the other; the error of one does not keep the others from it."""
    status = OK
    for name in names:
        try:
            click.echo(await act(await get_job(cluster, name)))
        except ClusterError as error:
            if error.status == 404 and ignore:
                continue
            tell(await not_found(cluster, name, error))
            status = FAILED
    return status
