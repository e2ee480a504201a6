"""`allranks describe`: all about a job, in sections for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import click

from allranks.api.status import Status
from allranks.cli.format import progress as doing
from allranks.cli.format.events import Happening, happenings
from allranks.cli.format.outcome import who_failed
from allranks.cli.format.table import Table, age, cell, span
from allranks.cli.live.summary import duration, ended_how, state_of
from allranks.cli.options import OK, get_job, name_callback, on_cluster
from allranks.control_sequences import clean
from allranks.core.model import Pod
from allranks.core.naming import JOB_LABEL, TRAINER, replica_key
from allranks.core.root_cause import describe_failure
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import pods_of, ranks_of, status_of
from allranks.kube.paths import core_path

MOST_PODS = 64
"""With more, only those that do not simply run are listed."""


@click.command(
    epilog="""\b
Examples:
  allranks describe penguins
  allranks describe dt/penguins -n team
"""
)
@click.argument("name", callback=name_callback)
@on_cluster
async def describe(cluster: Cluster, name: str) -> int:
    """Tell about a job: what it is, how it is, its ranks, why it last failed, and what happened to it."""
    job = await get_job(cluster, name)
    manifests: list[Manifest] = []
    hidden = ""
    try:
        query = {"labelSelector": f"{JOB_LABEL}={name}"}
        manifests = (await cluster.get(core_path(cluster.namespace, "pods"), query))["items"]
    except ClusterError as error:
        if error.status != 403:
            raise
        hidden = str(error)
    events = await _events(cluster, job)
    for line in described(job, manifests, hidden, events, datetime.now(UTC)):
        click.echo(line)
    return OK


async def _events(cluster: Cluster, job: Manifest) -> list[Manifest] | str:
    """Those of the job and of its pods; or why they are not to be seen."""
    path, uid = core_path(cluster.namespace, "events"), job["metadata"]["uid"]
    try:
        own = await cluster.get(path, {"fieldSelector": f"involvedObject.uid={uid}"})
        of_pods = await cluster.get(path, {"fieldSelector": "involvedObject.kind=Pod", "limit": 5000})
    except ClusterError as error:
        if error.status != 403:
            raise
        return str(error)
    prefix = f"{job['metadata']['name']}-"
    born = job["metadata"]["creationTimestamp"]
    pods = [
        event
        for event in of_pods["items"]
        if event["involvedObject"].get("name", "").startswith(prefix) and event["metadata"]["creationTimestamp"] >= born
    ]
    return [*own["items"], *pods]


def described(
    job: Manifest, manifests: list[Manifest], hidden: str, events: list[Manifest] | str, now: datetime
) -> Iterator[str]:
    """The lines. `hidden`: why there are no pods to see."""
    status = status_of(job)
    yield from _head(job, status, now)
    yield from _section("Conditions", _conditions(status, now))
    yield from _section("Roles", _roles(status))
    yield from _section("Pods", [f"  {hidden}"] if hidden else _pods(job, status, manifests, now))
    yield from _section("Stragglers", _stragglers(status))
    yield from _section("Past attempts", _attempts(status, now))
    yield from _section("Last failure", _failure(status, now))
    yield from _section("Events", [f"  {events}"] if isinstance(events, str) else _happenings(events, now))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield f"{title}:"
        yield from found


def _head(job: Manifest, status: Status, now: datetime) -> Iterator[str]:
    metadata, spec = job["metadata"], job["spec"]
    roles = spec.get("roles") or {}
    sizes = [_so_many((of or {}).get("replicas", 1), role) for role, of in roles.items()]
    facts: list[tuple[str, Any]] = [
        ("Name", metadata["name"]),
        ("Namespace", metadata["namespace"]),
        ("Labels", ", ".join(f"{key}={value}" for key, value in (metadata.get("labels") or {}).items())),
        ("Created", f"{_stamp(metadata['creationTimestamp'])} ({age(metadata['creationTimestamp'], now)} ago)"),
        ("Deleted", f"{age(metadata['deletionTimestamp'], now)} ago" if metadata.get("deletionTimestamp") else ""),
        ("Framework", spec.get("framework")),
        ("Image", spec.get("image")),
        ("Command", " ".join([*(spec.get("command") or []), *(spec.get("args") or [])])),
        ("Size", ", ".join(sizes) + _elastic(spec, status)),
        ("Pool", spec.get("pool")),
        ("Phase", _phase(status)),
        ("Attempt", status.attempt if status.start_time else ""),
        ("Restarts", _restarts(spec, status) if status.start_time else ""),
        ("Progress", _progress(status, now)),
        ("Checkpoint", _checkpoint(status, now)),
        ("Hang", _hang(spec)),
        ("Time", _times(status, now)),
        ("Goodput", _goodput(status, now)),
    ]
    for title, value in facts:
        if value not in ("", None):
            yield f"{title + ':':<13}{cell(value)}"


def _so_many(number: int, role: str) -> str:
    return f"{number} {role}{'s' if number != 1 and not role.endswith('s') else ''}"


def _elastic(spec: dict[str, Any], status: Status) -> str:
    bounds, workers = spec.get("elastic"), status.roles.get("worker")
    if not bounds:
        return ""
    lack = f"; no room for {workers.waiting} of them yet" if workers and workers.waiting else ""
    return f" (elastic, {bounds['minReplicas']} to {bounds['maxReplicas']} workers{lack})"


def _phase(status: Status) -> str:
    """With the reason, and the sentence of the condition that says it."""
    if not status.conditions:
        return "(nobody has looked at it yet: is the operator running?)"
    kinds = {"Succeeded": "Complete", "Pending": "Running"}
    condition = status.condition(kinds.get(status.phase, status.phase))
    why = condition.message or condition.reason if condition else ""
    ready = f", {status.ready} ready" if status.ready and status.phase not in ("Succeeded", "Failed") else ""
    return f"{status.phase}{ready}" + (f": {why}" if why else "")


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
    parts = [doing.summary(progress)]
    parts += [f"epoch {progress.epoch}"] if progress.epoch is not None else []
    parts += doing.metrics(progress)
    if doing.trains(status):
        parts += doing.rates(progress)
        parts += [f"done in {left}"] if (left := doing.eta(progress)) else []
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
    return f"after {span(seconds)} without a step of any rank" if seconds else ""


def _times(status: Status, now: datetime) -> str:
    parts = []
    if status.start_time:
        until = status.completion_time or now
        parts.append(f"{duration((until - status.start_time).total_seconds())} since its start")
    parts += [f"{kind} {span(value)}" for kind, value in doing.times(status, now).items() if value >= 1]
    return ", ".join(parts)


def _goodput(status: Status, now: datetime) -> str:
    share = doing.goodput(status, now)
    if share is None:
        return ""
    parts = [doing.percent(share)]
    if lost := doing.lost_by(status, now):
        parts.append("lost by " + ", ".join(f"{reason} {span(value)}" for reason, value in lost.items()))
    if status.times and not status.times.measured:
        parts.append(doing.UNMEASURED)
    return "; ".join(parts)


def _stragglers(status: Status) -> Iterator[str]:
    if status.progress and status.progress.stragglers:
        table = Table(["Rank", "Replica", "Node", "Slowdown"], indent="  ")
        yield from table.lines(doing.slow(status.progress, "<none>"))


def _conditions(status: Status, now: datetime) -> Iterator[str]:
    if status.conditions:
        table = Table(["Type", "Status", "Since", "Reason", "Message"], indent="  ")
        yield from table.lines(
            (c.type, c.status, age(c.last_transition_time, now), c.reason, c.message) for c in status.conditions
        )


def _roles(status: Status) -> Iterator[str]:
    if status.roles:
        table = Table(["Role", "Desired", "Active", "Ready", "Succeeded", "Failed"], indent="  ")
        yield from table.lines(
            (role, of.desired, of.active, of.ready, of.succeeded, of.failed) for role, of in status.roles.items()
        )


def _pods(job: Manifest, status: Status, manifests: list[Manifest], now: datetime) -> Iterator[str]:
    raw = {manifest["metadata"]["uid"]: manifest for manifest in manifests}
    ranks = ranks_of(job)
    pods = pods_of(job, manifests)
    if not pods:
        yield "  none"
        return
    dull = [pod for pod in pods if pod.phase == "Running" and pod.attempt == status.attempt and not pod.deleted_at]
    shown = pods if len(pods) <= MOST_PODS else [pod for pod in pods if pod not in dull]
    if shown:
        table = Table(["Rank", "Replica", "Attempt", "Node", "State", "Restarts", "Exit", "Age"], indent="  ")
        yield from table.lines(_pod(pod, raw[pod.uid], ranks, status, now) for pod in shown)
    if len(shown) < len(pods):
        yield f"  and {len(pods) - len(shown)} that run"


def _pod(pod: Pod, raw: Manifest, ranks: dict[str, int | None], status: Status, now: datetime) -> tuple[Any, ...]:
    key = replica_key(pod.role, pod.index)
    rank = ranks.get(key)
    state = state_of(pod)
    if pod.phase == "Pending" and pod.waiting_reason and not pod.deleted_at:
        state = pod.waiting_reason
    statuses = (raw.get("status") or {}).get("containerStatuses") or []
    in_place = next((status["restartCount"] for status in statuses if status["name"] == TRAINER), 0)
    ended = ended_how(pod.exit.code, pod.exit.signal, pod.exit.reason) if pod.exit else ""
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


def _attempts(status: Status, now: datetime) -> Iterator[str]:
    if not status.history:
        return
    table = Table(["Attempt", "Ended", "Took", "Because", "Counted"], indent="  ")
    yield from table.lines(
        (
            past.attempt,
            f"{age(past.end_time, now)} ago",
            span((past.end_time - past.start_time).total_seconds()) if past.start_time else "",
            describe_failure(past.failure) if past.failure else past.reason,
            "yes" if past.counted else "no",
        )
        for past in status.history
    )


def _failure(status: Status, now: datetime) -> Iterator[str]:
    failure = status.last_failure
    if failure is None:
        return
    yield f"  {who_failed(failure)}"
    yield f"  pod {failure.pod}{f' on node {failure.node}' if failure.node else ''}, {age(failure.time, now)} ago"
    yield from (f"  | {clean(line.encode(), colour=False)}" for line in failure.message.splitlines())


def _happenings(events: list[Manifest], now: datetime) -> Iterator[str]:
    told = happenings(events)
    if not told:
        yield "  none (they are kept for an hour)"
        return
    table = Table(["Last seen", "Type", "Reason", "Object", "Message"], indent="  ")
    yield from table.lines(
        (
            _when(one, now),
            one.kind,
            one.reason,
            one.objects,
            one.message,
        )
        for one in told
    )


def _when(one: Happening, now: datetime) -> str:
    often = f" (x{one.count} over {span((now - one.first).total_seconds())})" if one.count > 1 else ""
    return age(one.last, now) + often


def _stamp(text: str) -> str:
    return text.replace("T", " ").replace("Z", " UTC")
