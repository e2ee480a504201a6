"""`allranks queue`: quota, who runs and who waits in the queues of a namespace."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

import click

from allranks.cli.format.duration import age, human
from allranks.cli.format.table import Table
from allranks.cli.options import OK, on_cluster
from allranks.client.queues import Queue, describe
from allranks.core.optional_kinds import LOCAL_QUEUE, WORKLOAD, OptionalKind
from allranks.errors import ClusterError
from allranks.kube import paths
from allranks.kube.cluster import Cluster, Manifest
from allranks.views.json_form import as_json

_CLUSTER_QUEUE = OptionalKind("kueue.x-k8s.io", "ClusterQueue", "clusterqueues", LOCAL_QUEUE.versions, namespaced=False)
_VISIBILITY = "visibility.kueue.x-k8s.io"


@click.command(
    epilog="""\b
Examples:
  allranks queue
  allranks queue team-a -n training
  allranks queue -o json | jq '.[].waiting[] | {job, position, startsInSeconds}'
\b
Exit status:
  0 printed, 1 there is no such queue, or the API server rejected the request.
"""
)
@click.argument("names", nargs=-1, metavar="[QUEUE]...")
@click.option("-o", "--output", type=click.Choice(["json"]), help="The output format. [default: tables]")
@on_cluster
async def queue(cluster: Cluster, names: tuple[str, ...], output: str | None) -> int:
    """Show the queues of the namespace: quota in use, running and waiting jobs, and who was preempted.

    A queue is a LocalQueue of Kueue. Positions come from Kueue's visibility API, if the cluster serves it. The estimate
    of when a waiting job starts is a lower bound: it is the time until a running job of the namespace ends, by the
    steps that its ranks report.
    """
    found = await read_queues(cluster, names)
    if output:
        click.echo(json.dumps([as_json(each) for each in found], indent=2))
        return OK
    if not found:
        click.echo(f"No queues in namespace {cluster.namespace}.", err=True)
    for number, each in enumerate(found):
        if number:
            click.echo()
        for line in _lines(each):
            click.echo(line)
    return OK


async def read_queues(cluster: Cluster, names: tuple[str, ...]) -> list[Queue]:
    """Raises ClusterError."""
    groups = {group["name"]: group for group in (await cluster.get(paths.GROUPS)).get("groups", ())}
    served = {each["version"] for each in groups.get(LOCAL_QUEUE.group, {}).get("versions", ())}
    version = next((each for each in LOCAL_QUEUE.versions if each in served), "")
    if not version:
        raise ClusterError("this cluster has no queues: Kueue is not installed")
    namespace = cluster.namespace
    queues = await _list(cluster, LOCAL_QUEUE, version, namespace)
    by_name = {each["metadata"]["name"]: each for each in queues}
    if missing := [name for name in names if name not in by_name]:
        there = ", ".join(sorted(by_name)) or "none"
        raise ClusterError(f"namespace {namespace} has no LocalQueue {missing[0]}; it has: {there}")
    workloads = await _list(cluster, WORKLOAD, version, namespace)
    jobs = (await cluster.get(paths.jobs(namespace))).get("items", ())
    out = []
    for name in names or sorted(by_name):
        local = by_name[name]
        where = paths.optional(_CLUSTER_QUEUE, version, None, local.get("spec", {}).get("clusterQueue", ""))
        cluster_queue = None
        with contextlib.suppress(ClusterError):  # a right that not every user has
            cluster_queue = await cluster.get(where)
        positions = await _positions(cluster, groups, namespace, name)
        out.append(describe(local, cluster_queue, workloads, {job["metadata"]["name"]: job for job in jobs}, positions))
    return out


async def _list(cluster: Cluster, kind: OptionalKind, version: str, namespace: str) -> list[Manifest]:
    found: list[Manifest] = (await cluster.get(paths.optional(kind, version, namespace))).get("items", [])
    return found


async def _positions(cluster: Cluster, groups: dict[str, Any], namespace: str, queue: str) -> dict[str, int]:
    """Workload -> number of Workloads before it in the queue; empty without the visibility API."""
    versions = [each["version"] for each in groups.get(_VISIBILITY, {}).get("versions", ())]
    if not versions:
        return {}
    where = f"/apis/{_VISIBILITY}/{versions[0]}/namespaces/{namespace}/localqueues/{queue}/pendingworkloads"
    try:
        found = await cluster.get(where)
    except ClusterError:
        return {}
    return {each["metadata"]["name"]: int(each["positionInLocalQueue"]) for each in found.get("items", ())}


def _lines(queue: Queue) -> list[str]:
    stopped = f" (stopped: {queue.stopped})" if queue.stopped else ""
    lines = [f"Queue {queue.name}, ClusterQueue {queue.cluster_queue}{stopped}"]
    if queue.quota:
        lines.append("  " + ", ".join(f"{name} {used} of {of}" for name, (used, of) in queue.quota.items()) + " in use")
    if queue.running:
        rows = [(each.job, each.priority, _duration(each.eta_seconds)) for each in queue.running]
        lines += Table(("running", "priority", "eta"), indent="  ").lines(rows)
    if queue.waiting:
        waiting = [
            (
                "" if each.position is None else each.position + 1,
                each.job,
                age(each.since),
                _duration(each.starts_in_seconds),
                each.message or each.reason or "not considered yet",
            )
            for each in queue.waiting
        ]
        lines += Table(("position", "waiting", "since", "starts in about", "why"), indent="  ").lines(waiting)
    for each in queue.preempted:
        by = f" by {each.by}" if each.by else f": {each.message}"
        lines += [f"  {each.job} was preempted {age(each.time, datetime.now(UTC))} ago{by}"]
    return lines if len(lines) > 1 else [*lines, "  nothing runs or waits"]


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else human(seconds)
