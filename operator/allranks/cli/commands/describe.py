"""`allranks describe`: prints the details of a job or a sweep."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import click

from allranks.api.sweep import KIND as SWEEP
from allranks.cli.archived import Archive, also_missing, archive_options, find_job, without_cluster
from allranks.cli.completers import complete_jobs
from allranks.cli.local_runs import note_run
from allranks.cli.options import FAILED, OK, cluster_options, name_callback, print_error, run_on_cluster
from allranks.client.jobs import events_of
from allranks.core.facts.naming import JOB_LABEL
from allranks.errors import AllranksError, ClusterError
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.kube.job_codec import pods_of
from allranks.kube.paths import core_path
from allranks.kube.store import without_managed_fields
from allranks.views.format.objects import DATA_OUTPUTS, render_data
from allranks.views.format.table import Grid
from allranks.views.live.terminal import terminal
from allranks.views.safe_output import use_colour


@click.command(
    epilog="""\b
Examples:
  allranks describe penguins
  allranks describe dt/penguins -n team
  allranks describe penguins -o json | jq '.pods[].spec.nodeName'
  allranks describe penguins --archive s3://team/history
  allranks describe penguins-sweep
"""
)
@click.argument("name", callback=name_callback, shell_complete=complete_jobs)
@click.option(
    "-o", "--output", type=click.Choice(DATA_OUTPUTS), help="Print job, pods and events as objects, in this format."
)
@archive_options
@cluster_options
def describe(where: Where, name: str, output: str | None, archive: Archive) -> None:
    """Show details of a job: its spec and status, ranks, past attempts, last failure and events; or of a sweep: its
    trials, the best one, GPU time and events."""

    async def on_cluster(cluster: Cluster) -> int:
        manifest, exists = await find_job(cluster, name, archive, sweeps=True)
        if manifest.get("kind") == SWEEP:
            return await _describe_sweep(cluster, manifest, exists, archive, output)
        if exists:
            return await _describe(cluster, manifest, output)
        return await _describe_archived(manifest, archive, output)

    def otherwise(error: AllranksError) -> int:
        try:
            if manifest := without_cluster(error, where, name, archive, sweeps=True):
                if manifest.get("kind") == SWEEP:
                    return asyncio.run(_describe_sweep(None, manifest, False, archive, output))
                return asyncio.run(_describe_archived(manifest, archive, output))
            error = also_missing(error, where, name, archive, sweeps=True)
        except AllranksError as broken:
            error = broken
        print_error(error)
        note_run(error, "describe", name)
        return FAILED

    sys.exit(run_on_cluster(on_cluster, where, {}, otherwise))


async def _describe(cluster: Cluster, job: Manifest, output: str | None) -> int:
    name = job["metadata"]["name"]
    pods: list[Manifest] = []
    hidden = ""
    try:
        query = {"labelSelector": f"{JOB_LABEL}={name}"}
        pods = (await cluster.get(core_path(cluster.namespace, "pods"), query))["items"]
    except ClusterError as error:
        if error.status != 403:
            raise
        hidden = str(error)
    _write(job, pods, hidden, await events_of(cluster, job), output)
    return OK


async def _describe_archived(job: Manifest, archive: Archive, output: str | None) -> int:
    events = await asyncio.to_thread(archive.reader.events, job)
    _write(job, [], f"the job is deleted: this is its last state in the archive {archive.url}", events, output)
    return OK


async def _describe_sweep(
    cluster: Cluster | None, sweep: Manifest, exists: bool, archive: Archive, output: str | None
) -> int:
    """`cluster` None: none answers, and the archive has the sweep. Raises AllranksError."""
    from allranks.client.sweeps import events_of_sweep, trials_of_archive, trials_of_cluster
    from allranks.views.description import describe_sweep

    events: list[Manifest] | str
    if exists and cluster:
        events = await events_of_sweep(cluster, sweep)
    else:
        events = await asyncio.to_thread(archive.reader.events, sweep)
    if output:
        click.echo(render_data(_data_of_sweep(sweep, events), output), nl=False)
        return OK
    if cluster:
        jobs = await trials_of_cluster(cluster, sweep, archive.trials)
    else:
        jobs = await asyncio.to_thread(trials_of_archive, archive.trials, sweep)
    note = "" if exists else f"the sweep is deleted: this is its last state in the archive {archive.url}"
    _print(describe_sweep(sweep, jobs, events, note, datetime.now(UTC)))
    return OK


def _write(job: Manifest, pods: list[Manifest], hidden: str, events: list[Manifest] | str, output: str | None) -> None:
    from allranks.views.description import describe_job

    if output:
        click.echo(render_data(_data(job, pods, hidden, events), output), nl=False)
        return
    _print(describe_job(job, pods, hidden, events, datetime.now(UTC)))


def _print(content: Iterable[str | Grid]) -> None:
    console = terminal(sys.stdout, use_colour(sys.stdout))
    for item in content:
        if isinstance(item, str):
            click.echo(item)
        elif console:
            console.print(item.rich(wrap=True))
        else:
            click.echo("\n".join(item.plain()))


def _data(job: Manifest, pods: list[Manifest], hidden: str, events: list[Manifest] | str) -> dict[str, Any]:
    """Return the objects that the description is made of, and why some are missing."""
    uids = {pod.uid for pod in pods_of(job, pods)}
    return {
        "job": without_managed_fields(job),
        "pods": [without_managed_fields(pod) for pod in pods if pod["metadata"]["uid"] in uids],
        "events": _readable(events),
        "errors": [text for text in (hidden, events if isinstance(events, str) else "") if text],
    }


def _data_of_sweep(sweep: Manifest, events: list[Manifest] | str) -> dict[str, Any]:
    errors = [events] if isinstance(events, str) else []
    return {"sweep": without_managed_fields(sweep), "events": _readable(events), "errors": errors}


def _readable(events: list[Manifest] | str) -> list[Manifest]:
    """Return the Events, the oldest first; none if they cannot be read."""
    if isinstance(events, str):
        return []
    by_time = sorted(events, key=lambda event: str(event["metadata"].get("creationTimestamp")))
    return list(map(without_managed_fields, by_time))
