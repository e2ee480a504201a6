"""`allranks describe`: prints the details of a job or a sweep."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import click

from allranks.api.status import Status
from allranks.api.sweep import KIND as SWEEP
from allranks.cli.archived import Archive, also_missing, archive_options, find_job_or_sweep, without_cluster
from allranks.cli.completers import complete_jobs
from allranks.cli.live.terminal import terminal
from allranks.cli.local_runs import note_run
from allranks.cli.options import FAILED, OK, cluster_options, name_callback, print_error, run_on_cluster
from allranks.cli.safe_output import use_colour
from allranks.client.jobs import events_of
from allranks.control_sequences import clean
from allranks.core.diagnosis.root_cause import describe_failure
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import JOB_LABEL, TRAINER, replica_key
from allranks.errors import AllranksError, ClusterError
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.kube.job_codec import pods_of, ranks_of, status_of
from allranks.kube.paths import core_path
from allranks.views.description import Fact, conditions, facts, of_object, section
from allranks.views.description import events as events_table
from allranks.views.format import cost as costs
from allranks.views.format import gpus, outcome
from allranks.views.format import progress as progress_text
from allranks.views.format.duration import age, elapsed, human
from allranks.views.format.objects import DATA_OUTPUTS, render_data
from allranks.views.format.table import Grid
from allranks.views.report import data

MAX_PODS = 64
"""A larger job lists only pods that need attention."""


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
        found, exists = await find_job_or_sweep(cluster, name, archive)
        if found.get("kind") == SWEEP:
            return await _describe_sweep(cluster, found, exists, archive, output)
        return await _describe(cluster, found, output) if exists else await _describe_archived(found, archive, output)

    def otherwise(error: AllranksError) -> int:
        try:
            if found := without_cluster(error, where, name, archive, sweeps=True):
                if found.get("kind") == SWEEP:
                    return asyncio.run(_describe_sweep(None, found, False, archive, output))
                return asyncio.run(_describe_archived(found, archive, output))
            error = also_missing(error, where, name, archive, sweeps=True)
        except AllranksError as broken:
            error = broken
        print_error(error)
        note_run(error, "describe", name)
        return FAILED

    sys.exit(run_on_cluster(on_cluster, where, {}, otherwise))


async def _describe(cluster: Cluster, job: Manifest, output: str | None) -> int:
    name = job["metadata"]["name"]
    manifests: list[Manifest] = []
    hidden = ""
    try:
        query = {"labelSelector": f"{JOB_LABEL}={name}"}
        manifests = (await cluster.get(core_path(cluster.namespace, "pods"), query))["items"]
    except ClusterError as error:
        if error.status != 403:
            raise
        hidden = str(error)
    _write(job, manifests, hidden, await events_of(cluster, job), output)
    return OK


async def _describe_archived(job: Manifest, archive: Archive, output: str | None) -> int:
    """Raises ArchiveError."""
    events = await asyncio.to_thread(archive.reader.events, job)
    _write(job, [], f"the job is deleted: this is its last state in the archive {archive.url}", events, output)
    return OK


async def _describe_sweep(
    cluster: Cluster | None, sweep: Manifest, exists: bool, archive: Archive, output: str | None
) -> int:
    """`cluster` None: nothing says what exists. Raises AllranksError."""
    from allranks.cli import sweep_jobs
    from allranks.views import sweep_description

    events: list[Manifest] | str
    if exists and cluster:
        events = await sweep_description.events_of(cluster, sweep)
    else:
        events = await asyncio.to_thread(archive.reader.events, sweep)
    if output:
        click.echo(render_data(sweep_description.data(sweep, events), output), nl=False)
        return OK
    if cluster:
        jobs = await sweep_jobs.of_cluster(cluster, sweep, archive)
    else:
        jobs = await asyncio.to_thread(sweep_jobs.of_archive, archive, sweep)
    note = "" if exists else f"the sweep is deleted: this is its last state in the archive {archive.url}"
    _print(sweep_description.described(sweep, jobs, events, note, datetime.now(UTC)))
    return OK


def _write(
    job: Manifest, manifests: list[Manifest], hidden: str, events: list[Manifest] | str, output: str | None
) -> None:
    if output:
        click.echo(render_data(_data(job, manifests, hidden, events), output), nl=False)
        return
    _print(described(job, manifests, hidden, events, datetime.now(UTC)))


def _print(description: Iterable[str | Grid]) -> None:
    console = terminal(sys.stdout, use_colour(sys.stdout))
    for item in description:
        if isinstance(item, str):
            click.echo(item)
        elif console:
            console.print(item.rich(wrap=True))
        else:
            click.echo("\n".join(item.plain()))


def _data(job: Manifest, manifests: list[Manifest], hidden: str, events: list[Manifest] | str) -> dict[str, Any]:
    """The objects that the description is made of, and why some are missing."""
    own = {pod.uid for pod in pods_of(job, manifests)}
    readable = [] if isinstance(events, str) else events
    objects = {
        "job": [job],
        "pods": [manifest for manifest in manifests if manifest["metadata"]["uid"] in own],
        "events": sorted(readable, key=lambda event: event["metadata"]["creationTimestamp"]),
    }
    for item in (item for items in objects.values() for item in items):
        item["metadata"].pop("managedFields", None)
    errors = [text for text in (hidden, events if isinstance(events, str) else "") if text]
    return {**objects, "job": job, "errors": errors}


def described(
    job: Manifest, manifests: list[Manifest], hidden: str, events: list[Manifest] | str, now: datetime
) -> Iterator[str | Grid]:
    """Lines and tables. `hidden`: why the pods cannot be listed."""
    status = status_of(job)
    yield from facts(_head(job, status, manifests, now))
    yield from section("Conditions", conditions(status.conditions, now))
    yield from section("Roles", _roles(status))
    yield from section("Pods", [f"  {hidden}"] if hidden else _pods(job, status, manifests, now))
    for title, table in data.tables(tuple(data.inputs(job, status)), tuple(data.outputs(job, status))):
        yield from section(title, [table])
    yield from section("Stragglers", _stragglers(status))
    yield from section("Past attempts", _attempts(status, now))
    yield from section("Last failure", _failure(status, now))
    yield from section("Events", events_table(events, now))


def _head(job: Manifest, status: Status, manifests: list[Manifest], now: datetime) -> Iterator[Fact]:
    spec = job["spec"]
    roles = spec.get("roles") or {}
    sizes = [_count((of or {}).get("replicas", 1), role) for role, of in roles.items()]
    yield from of_object(job["metadata"], now)
    yield from (
        ("Framework", spec.get("framework")),
        ("Image", spec.get("image")),
        ("Command", " ".join([*(spec.get("command") or []), *(spec.get("args") or [])])),
        ("Size", ", ".join(sizes) + _elastic(spec, status)),
        ("GPUs", gpus.text(job, status, manifests)),
        ("Pool", spec.get("pool")),
        ("Phase", _phase(status)),
        ("Held", _held(status, now)),
        ("Attempt", status.attempt if status.start_time else ""),
        ("Restarts", _restarts(spec, status) if status.start_time else ""),
        ("Progress", _progress(status, now)),
        ("Checkpoint", _checkpoint(status, now)),
        ("Hang", _hang(spec)),
        ("Time", _times(status, now)),
        ("Goodput", _goodput(status, now)),
        ("GPU time", costs.line(costs.of(status, now))),
    )


def _count(number: int, role: str) -> str:
    return f"{number} {role}{'s' if number != 1 and not role.endswith('s') else ''}"


def _elastic(spec: dict[str, Any], status: Status) -> str:
    bounds, workers = spec.get("elastic"), status.roles.get("worker")
    if not bounds:
        return ""
    waiting = f"; no capacity for {workers.waiting} of them yet" if workers and workers.waiting else ""
    return f" (elastic, {bounds['minReplicas']} to {bounds['maxReplicas']} workers{waiting})"


def _phase(status: Status) -> str:
    """The phase with the message of its condition."""
    if not status.conditions:
        return "(not processed yet: is the operator running?)"
    kinds = {"Succeeded": "Complete", "Pending": "Running"}
    condition = status.condition(kinds.get(status.phase, status.phase))
    why = condition.message or condition.reason if condition else ""
    ready = f", {status.ready} ready" if status.ready and status.phase not in ("Succeeded", "Failed") else ""
    return f"{status.phase}{ready}" + (f": {why}" if why else "")


def _held(status: Status, now: datetime) -> str:
    """The pods of a failed job that are kept for a look."""
    if status.hold is None:
        return ""
    hold = status.hold
    left = human(max(0.0, (hold.until - now).total_seconds()))
    gpus = f" with {_count(hold.gpus, 'GPU')}" if hold.gpus else ""
    return f"{_count(hold.pods, 'pod')}{gpus} until {hold.until:%H:%M:%S} UTC (for {left}); allranks suspend ends it"


def _restarts(spec: dict[str, Any], status: Status) -> str:
    counts = status.restarts
    most = (spec.get("restart") or {}).get("maxRestarts", 3)
    parts = [f"{counts.counted} of at most {most}"]
    if counts.disruptions:
        parts.append(f"{counts.disruptions} by disruptions, which do not count")
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.by_reason.items()))
    return "; ".join(parts) + (f" ({reasons})" if reasons else "")


def _progress(status: Status, now: datetime) -> str:
    progress = status.progress
    if progress is None:
        return ""
    parts = [progress_text.summary(progress)]
    parts += [f"epoch {progress.epoch}"] if progress.epoch is not None else []
    parts += progress_text.metrics(progress)
    if progress_text.trains(status):
        parts += progress_text.rates(progress)
        parts += [f"done in {left}"] if (left := progress_text.eta(progress)) else []
    if progress.last_report:
        parts.append(f"reported {age(progress.last_report, now)} ago")
    return ", ".join(part for part in parts if part)


def _checkpoint(status: Status, now: datetime) -> str:
    progress = status.progress
    if progress is None or not progress.checkpoint_time:
        return ""
    step = "" if progress.checkpoint_step is None else f"step {progress.checkpoint_step}, "
    return f"{step}{age(progress.checkpoint_time, now)} ago"


def _hang(spec: dict[str, Any]) -> str:
    seconds = (spec.get("hang") or {}).get("timeoutSeconds")
    return f"after {human(seconds)} without a step of any rank" if seconds else ""


def _times(status: Status, now: datetime) -> str:
    parts = []
    if status.start_time:
        until = status.completion_time or now
        parts.append(f"{elapsed((until - status.start_time).total_seconds())} since its start")
    parts += [f"{kind} {human(value)}" for kind, value in progress_text.times(status, now).items() if value >= 1]
    return ", ".join(parts)


def _goodput(status: Status, now: datetime) -> str:
    share = progress_text.goodput(status, now)
    if share is None:
        return ""
    if not progress_text.is_measured(status):
        return f"{progress_text.NOT_MEASURED}: {progress_text.limit_note(share)}"
    parts = [progress_text.percent(share)]
    if lost := progress_text.lost_by(status, now):
        parts.append("lost by " + ", ".join(f"{reason} {human(value)}" for reason, value in lost.items()))
    return "; ".join(parts)


def _stragglers(status: Status) -> Iterator[Grid]:
    if rows := list(progress_text.stragglers(status.progress, "<none>")):
        yield Grid(["Rank", "Replica", "Node", "Slowdown"], rows)


def _roles(status: Status) -> Iterator[Grid]:
    if status.roles:
        rows = [(role, of.desired, of.active, of.ready, of.succeeded, of.failed) for role, of in status.roles.items()]
        yield Grid(["Role", "Desired", "Active", "Ready", "Succeeded", "Failed"], rows)


def _pods(job: Manifest, status: Status, manifests: list[Manifest], now: datetime) -> Iterator[str | Grid]:
    raw = {manifest["metadata"]["uid"]: manifest for manifest in manifests}
    ranks = ranks_of(job)
    pods = pods_of(job, manifests)
    if not pods:
        yield "  none"
        return
    healthy = [pod for pod in pods if pod.phase == "Running" and pod.attempt == status.attempt and not pod.deleted_at]
    shown = pods if len(pods) <= MAX_PODS else [pod for pod in pods if pod not in healthy]
    if shown:
        headers = ["Rank", "Replica", "Attempt", "Node", "State", "Restarts", "Exit", "Age"]
        yield Grid(headers, [_pod(pod, raw[pod.uid], ranks, status, now) for pod in shown])
    if len(shown) < len(pods):
        yield f"  and {len(pods) - len(shown)} running"


def _pod(pod: Pod, raw: Manifest, ranks: dict[str, int | None], status: Status, now: datetime) -> tuple[Any, ...]:
    key = replica_key(pod.role, pod.index)
    rank = ranks.get(key)
    state = progress_text.pod_state(pod)
    if pod.phase == "Pending" and pod.waiting_reason and not pod.deleted_at:
        state = pod.waiting_reason
    statuses = (raw.get("status") or {}).get("containerStatuses") or []
    in_place = next((status["restartCount"] for status in statuses if status["name"] == TRAINER), 0)
    ended = outcome.ended_how(pod.exit.code, pod.exit.signal, pod.exit.reason) if pod.exit else ""
    if pod.exit and pod.exit.code == 0:
        ended = "0"
    return (
        "-" if rank is None or pod.attempt != status.attempt else rank,
        key,
        pod.attempt,
        pod.node or "<none>",
        state,
        pod.restart + in_place,
        ended,
        age(pod.created_at, now),
    )


def _attempts(status: Status, now: datetime) -> Iterator[Grid]:
    if not status.history:
        return
    rows = [
        (
            past.attempt,
            f"{age(past.end_time, now)} ago",
            human((past.end_time - past.start_time).total_seconds()) if past.start_time else "",
            describe_failure(past.failure) if past.failure else past.reason,
            "yes" if past.counted else "no",
        )
        for past in status.history
    ]
    yield Grid(["Attempt", "Ended", "Took", "Because", "Counted"], rows)


def _failure(status: Status, now: datetime) -> Iterator[str]:
    failure = status.last_failure
    if failure is None:
        return
    yield f"  {outcome.describe(failure)}"
    yield f"  pod {failure.pod}{f' on node {failure.node}' if failure.node else ''}, {age(failure.time, now)} ago"
    yield from (f"  | {clean(line.encode(), colour=False)}" for line in failure.message.splitlines())
