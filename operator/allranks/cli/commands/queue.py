"""`allranks queue`: quota, who runs and who waits in the queues of a namespace."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click

from allranks.cli.options import OK, on_cluster
from allranks.client.queues import Queue, read_queues
from allranks.kube.cluster import Cluster
from allranks.views.format.duration import age, human
from allranks.views.format.json_form import as_json
from allranks.views.format.table import Table


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
    queues = await read_queues(cluster, names)
    if output:
        click.echo(json.dumps([as_json(item) for item in queues], indent=2))
        return OK
    if not queues:
        click.echo(f"No queues in namespace {cluster.namespace}.", err=True)
    for number, item in enumerate(queues):
        if number:
            click.echo()
        for line in _lines(item):
            click.echo(line)
    return OK


def _lines(queue: Queue) -> list[str]:
    stopped = f" (stopped: {queue.stopped})" if queue.stopped else ""
    lines = [f"Queue {queue.name}, ClusterQueue {queue.cluster_queue}{stopped}"]
    if queue.quota:
        quotas = [f"{name} {used} of {limit}" for name, (used, limit) in queue.quota.items()]
        lines.append(f"  {', '.join(quotas)} in use")
    if queue.running:
        rows = [(job.job, job.priority, _duration(job.eta_seconds)) for job in queue.running]
        lines += Table(("running", "priority", "eta"), indent="  ").lines(rows)
    if queue.waiting:
        waiting = [
            (
                "" if job.position is None else job.position + 1,
                job.job,
                age(job.since),
                _duration(job.starts_in_seconds),
                job.message or job.reason or "not considered yet",
            )
            for job in queue.waiting
        ]
        lines += Table(("position", "waiting", "since", "starts in about", "why"), indent="  ").lines(waiting)
    for job in queue.preempted:
        cause = f" by {job.by}" if job.by else f": {job.message}"
        lines += [f"  {job.job} was preempted {age(job.time, datetime.now(UTC))} ago{cause}"]
    return lines if len(lines) > 1 else [*lines, "  nothing runs or waits"]


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else human(seconds)
