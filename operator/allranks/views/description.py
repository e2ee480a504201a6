"""The lines and tables that `allranks describe` prints of a job or a sweep. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from allranks.api.status import Condition, Status
from allranks.control_sequences import clean
from allranks.core.diagnosis.reasons import describe_failure
from allranks.core.facts.development import awaits_code, short
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import TRAINER, replica_key
from allranks.core.facts.pod_security import ANNOTATION
from allranks.core.facts.preflight import DEFAULT_SECONDS
from allranks.core.objects import preflight
from allranks.errors import CannotRun
from allranks.kube.cluster import Manifest
from allranks.kube.job_codec import DecodeError, pods_of, ranks_of
from allranks.views.format import checkpoints, outcome
from allranks.views.format import cost as costs
from allranks.views.format import progress as progress_text
from allranks.views.format.duration import age, elapsed, human
from allranks.views.format.events import EventGroup, group_events
from allranks.views.format.table import Grid, cell
from allranks.views.job_view import JobView, gpus_per_pod, of_role, total_gpus
from allranks.views.report import data
from allranks.views.report import sweep as sweep_report
from allranks.views.report.sweep import SweepReport
from allranks.views.report.sweep_cost import TrialJobs

MAX_PODS = 64
"""A larger job lists only pods that need attention."""
Fact = tuple[str, Any]
"""(title, value). A fact without a value is not printed."""


def describe_job(
    job: Manifest, pods: list[Manifest], hidden: str, events: list[Manifest] | str, now: datetime
) -> Iterator[str | Grid]:
    """Yield the lines and tables of a job. `hidden`: why its pods cannot be listed."""
    view = JobView.decode(job, now)
    status = view.status
    yield from _facts(_head_of_job(view, pods))
    yield from _section("Conditions", _conditions(status.conditions, now))
    yield from _section("Roles", _roles(status))
    yield from _section("Pods", [f"  {hidden}"] if hidden else _pods(view, pods))
    for title, table in data.tables(tuple(data.inputs(job, status)), tuple(data.outputs(job, status))):
        yield from _section(title, [table])
    grid = checkpoints.table(status, now)
    yield from _section("Checkpoints", [replace(grid, indent="  ")] if grid else [])
    yield from _section("Stragglers", _stragglers(status))
    yield from _section("Past attempts", _attempts(status, now))
    yield from _section("Last failure", _failure(status, now))
    yield from _section("Events", _events(events, now))


def describe_sweep(
    sweep: Manifest, jobs: TrialJobs, events: list[Manifest] | str, note: str, now: datetime
) -> Iterator[str | Grid]:
    """Yield the lines and tables of a sweep. `note`: where a deleted sweep is shown from.

    Raises CannotRun if the sweep cannot be read.
    """
    try:
        report = sweep_report.build(sweep, jobs)
    except DecodeError as error:
        raise CannotRun(f"the sweep {sweep['metadata']['name']} cannot be read: {error}") from error
    yield from _facts(_head_of_sweep(sweep, report, now))
    yield from _section("Archive", [f"  {note}"] if note else [])
    yield from _section("Conditions", _conditions(report.status.conditions, now))
    yield from _section("Trials", [Grid(report.headers, [cells for _, cells in report.rows])] if report.rows else [])
    yield from _section("Events", _events(events, now))


# --- parts of both ---------------------------------------------------------------------------------------------------


def _facts(facts: Iterable[Fact]) -> Iterator[str]:
    for title, value in facts:
        if value not in ("", None):
            yield f"{title + ': ':<13}{cell(value)}"


def _section(title: str, content: Iterable[str | Grid]) -> Iterator[str | Grid]:
    """Yield the content below its title; nothing without content."""
    items = list(content)
    if items:
        yield f"{title}:"
        yield from items


def _head(metadata: Mapping[str, Any], now: datetime) -> list[Fact]:
    return [
        ("Name", metadata["name"]),
        ("Namespace", metadata["namespace"]),
        ("Labels", ", ".join(f"{key}={value}" for key, value in (metadata.get("labels") or {}).items())),
        ("Created", f"{_timestamp(metadata['creationTimestamp'])} ({age(metadata['creationTimestamp'], now)} ago)"),
        ("Deleted", f"{age(metadata['deletionTimestamp'], now)} ago" if metadata.get("deletionTimestamp") else ""),
    ]


def _conditions(conditions: Sequence[Condition], now: datetime) -> Iterator[Grid]:
    if conditions:
        rows = [(c.type, c.status, age(c.last_transition_time, now), c.reason, c.message) for c in conditions]
        yield Grid(["Type", "Status", "Since", "Reason", "Message"], rows)


def _events(events: list[Manifest] | str, now: datetime) -> Iterator[str | Grid]:
    """Yield a table of Events, or the text that says why they cannot be read."""
    if isinstance(events, str):
        yield f"  {events}"
        return
    groups = group_events(events)
    if not groups:
        yield "  none (the API server keeps events for an hour)"
        return
    rows = [(_last_time(group, now), group.kind, group.reason, group.objects, group.message) for group in groups]
    yield Grid(["Age", "Type", "Reason", "Object", "Message"], rows)


def _last_time(group: EventGroup, now: datetime) -> str:
    count = f" (x{group.count} over {human((now - group.first).total_seconds())})" if group.count > 1 else ""
    return age(group.last, now) + count


def _timestamp(text: str) -> str:
    return text.replace("T", " ").replace("Z", " UTC")


# --- a job ------------------------------------------------------------------------------------------------------------


def _head_of_job(view: JobView, pods: list[Manifest]) -> Iterator[Fact]:
    spec, status, now = view.spec, view.status, view.until
    roles = spec.get("roles") or {}
    sizes = [of_role((role or {}).get("replicas", 1), name) for name, role in roles.items()]
    since_start = view.seconds_since_start
    yield from _head(view.metadata, now)
    yield from (
        ("Framework", view.framework),
        ("Image", spec.get("image")),
        ("Command", " ".join([*(spec.get("command") or []), *(spec.get("args") or [])])),
        ("Size", ", ".join(sizes) + _elastic(spec, status)),
        ("GPUs", _gpus(view, pods)),
        ("Pool", _pool(spec)),
        ("Security", _security(view, pods)),
        ("Phase", _phase(view)),
        ("Held", _held(status, now)),
        ("Attempt", status.attempt if status.start_time else ""),
        ("Restarts", _restarts(view) if status.start_time else ""),
        ("Progress", _progress(view)),
        ("Checkpoint", _checkpoint(status, now)),
        ("Due", checkpoints.schedule(spec, status)),
        ("Rollback", checkpoints.rollback(status)),
        ("Code", _code(status, now)),
        ("Hang", _hang(spec)),
        ("Preflight", _preflight(spec, pods)),
        ("Time", ", ".join(filter(None, (_since_start(since_start), *_times(view))))),
        ("Goodput", _goodput(view)),
        ("GPU time", costs.line(view.cost)),
    )


def _gpus(view: JobView, pods: list[Manifest]) -> str:
    """Write `16 (8 in each worker)`; empty without GPUs."""
    parts = ", ".join(f"{count} in each {role}" for role, count in gpus_per_pod(view.manifest, pods).items())
    return f"{total_gpus(view.manifest, view.status, pods)} ({parts})" if parts else ""


def _pool(spec: Mapping[str, Any]) -> str:
    """Write `h200`, or `worker: h200, ps: cpu` if a role names one."""
    roles = {name: role or {} for name, role in (spec.get("roles") or {}).items()}
    if not any(role.get("pool") for role in roles.values()):
        return str(spec.get("pool") or "")
    pools = {name: role.get("pool") or spec.get("pool") for name, role in roles.items()}
    return ", ".join(f"{name}: {pool}" for name, pool in pools.items() if pool)


def _security(view: JobView, pods: list[Manifest]) -> str:
    """Write `Baseline: namespace team does not enforce restricted pods`; empty without pods that say it."""
    uids = {pod.uid for pod in pods_of(dict(view.manifest), pods)}
    annotations = (pod["metadata"].get("annotations") or {} for pod in pods if pod["metadata"]["uid"] in uids)
    return "; ".join(dict.fromkeys(text for items in annotations if (text := items.get(ANNOTATION))))


def _elastic(spec: Mapping[str, Any], status: Status) -> str:
    bounds, workers = spec.get("elastic"), status.roles.get("worker")
    if not bounds:
        return ""
    waiting = f"; no capacity for {workers.waiting} of them yet" if workers and workers.waiting else ""
    return f" (elastic, {bounds['minReplicas']} to {bounds['maxReplicas']} workers{waiting})"


def _phase(view: JobView) -> str:
    status = view.status
    if not status.conditions:
        return "(not processed yet: is the operator running?)"
    ready = f", {status.ready} ready" if status.ready and status.phase not in ("Succeeded", "Failed") else ""
    return f"{status.phase}{ready}" + (f": {view.reason}" if view.reason else "")


def _held(status: Status, now: datetime) -> str:
    """Describe the pods of a failed job that are kept for debugging."""
    if status.hold is None:
        return ""
    hold = status.hold
    left = human(max(0.0, (hold.until - now).total_seconds()))
    gpus = f" with {of_role(hold.gpus, 'GPU')}" if hold.gpus else ""
    return f"{of_role(hold.pods, 'pod')}{gpus} until {hold.until:%H:%M:%S} UTC (for {left}); allranks suspend ends it"


def _restarts(view: JobView) -> str:
    counts = view.status.restarts
    most = (view.spec.get("restart") or {}).get("maxRestarts", 3)
    disruptions = f"; {counts.disruptions} by disruptions, which do not count" if counts.disruptions else ""
    reasons = f" ({view.restart_reasons})" if view.restart_reasons else ""
    return f"{counts.counted} of at most {most}{disruptions}{reasons}"


def _progress(view: JobView) -> str:
    left = f"done in {view.eta}" if view.eta else ""
    return ", ".join(filter(None, (view.progress, view.epoch, *view.metrics, *view.rates, left, view.reported)))


def _checkpoint(status: Status, now: datetime) -> str:
    progress = status.progress
    if progress is None or not progress.checkpoint_time:
        return ""
    step = "" if progress.checkpoint_step is None else f"step {progress.checkpoint_step}, "
    return f"{step}{age(progress.checkpoint_time, now)} ago"


def _code(status: Status, now: datetime) -> str:
    """Describe the code of the current attempt."""
    code = status.code
    if code is None or code.sha256 is None:
        return ""
    commit = f"commit {code.commit[:12]}{' with changes' if code.dirty else ''}" if code.commit else ""
    since = f"since {code.time:%H:%M:%S} UTC ({human((now - code.time).total_seconds())} ago)" if code.time else ""
    waits = ""
    if awaits_code(status, now):
        waits = f"the ranks wait for other code until {status.restart_time:%H:%M:%S} UTC"
    return ", ".join(filter(None, (short(code.sha256), commit, since, waits)))


def _hang(spec: Mapping[str, Any]) -> str:
    seconds = (spec.get("hang") or {}).get("timeoutSeconds")
    return f"after {human(seconds)} without a step of any rank" if seconds else ""


def _preflight(spec: Mapping[str, Any], pods: list[Manifest]) -> str:
    """Write `disk, gpu, in at most 3m`: the tests of the pods, which also a pool or two faults may have chosen."""
    trainers = (c for pod in pods for c in pod["spec"]["containers"] if c["name"] == TRAINER)
    variables = (v for trainer in trainers for v in trainer.get("env") or () if v["name"] == preflight.VARIABLE)
    if variable := next(variables, None):
        checks, seconds = preflight.chosen(variable.get("value") or "")
    else:
        chosen = spec.get("preflight") or {}
        checks = [check for check in ("disk", "gpu", "network") if chosen.get(check)]
        seconds = chosen.get("timeoutSeconds") or DEFAULT_SECONDS
    return f"{', '.join(checks)}, in at most {human(seconds)}" if checks else ""


def _since_start(seconds: float | None) -> str:
    return "" if seconds is None else f"{elapsed(seconds)} since its start"


def _times(view: JobView) -> Iterator[str]:
    yield from (f"{kind} {human(seconds)}" for kind, seconds in view.times.items() if seconds >= 1)


def _goodput(view: JobView) -> str:
    if view.goodput_limit:
        return f"{progress_text.NOT_MEASURED}: {view.goodput_limit}"
    return "; ".join(filter(None, (view.goodput, f"lost by {view.lost_by}" if view.goodput and view.lost else "")))


def _stragglers(status: Status) -> Iterator[Grid]:
    if rows := list(progress_text.stragglers(status.progress, "<none>")):
        yield Grid(["Rank", "Replica", "Node", "Slowdown"], rows)


def _roles(status: Status) -> Iterator[Grid]:
    if status.roles:
        rows = [
            (name, role.desired, role.active, role.ready, role.succeeded, role.failed)
            for name, role in status.roles.items()
        ]
        yield Grid(["Role", "Desired", "Active", "Ready", "Succeeded", "Failed"], rows)


def _pods(view: JobView, manifests: list[Manifest]) -> Iterator[str | Grid]:
    job, status, now = dict(view.manifest), view.status, view.until
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
    in_place = next((container["restartCount"] for container in statuses if container["name"] == TRAINER), 0)
    alone = status.replica_restarts.get(key) if pod.attempt == status.attempt else None
    in_place += (alone.in_pod or 0) if alone and alone.pod_number == pod.restart else 0
    ended = ""
    if pod.exit:
        ended = "0" if pod.exit.code == 0 else outcome.ended_how(pod.exit.code, pod.exit.signal, pod.exit.reason)
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
            outcome.next_begin(past),
        )
        for past in status.history
    ]
    headers = ["Attempt", "Ended", "Took", "Because", "Counted", "Next"]
    columns = len(headers) if any(past.how for past in status.history) else len(headers) - 1
    yield Grid(headers[:columns], [row[:columns] for row in rows])


def _failure(status: Status, now: datetime) -> Iterator[str]:
    failure = status.last_failure
    if failure is None:
        return
    yield f"  {outcome.describe(failure)}"
    if whose := outcome.verdict(failure):
        yield f"  verdict: {whose}"
    yield f"  pod {failure.pod}{f' on node {failure.node}' if failure.node else ''}, {age(failure.time, now)} ago"
    yield from (f"  | {clean(line.encode(), colour=False)}" for line in failure.message.splitlines())


# --- a sweep ----------------------------------------------------------------------------------------------------------


def _head_of_sweep(sweep: Manifest, report: SweepReport, now: datetime) -> Iterator[Fact]:
    spec, status = report.sweep.spec, report.status
    yield from _head(sweep["metadata"], now)
    yield "Objective", f"{report.metric}, {spec.objective.goal}" if spec.objective else ""
    for title, value, note in report.facts:
        yield title, f"{value}{f' ({note})' if note else ''}"
    yield "Phase", f"{report.phase}: {report.verdict}"
    yield "Disruptions", status.disruptions or ""
    if status.start_time:
        yield "Time", _since_start(((status.completion_time or now) - status.start_time).total_seconds())
    yield "GPU time", costs.line(report.cost)
    yield "Missing", report.cost_note
