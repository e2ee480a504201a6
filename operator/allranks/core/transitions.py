"""Every way in which a status changes: decisions that are written ahead, and the summary of what is seen.

Each function takes the persisted status and answers the next one; nothing here looks at a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, cast

from allranks.api.job import Job
from allranks.api.status import (
    Condition,
    Failure,
    PastAttempt,
    Phase,
    ReplicaRestarts,
    RestartCounts,
    RoleStatus,
    Status,
)
from allranks.core import elasticity, naming, progress, restart_policy, topology
from allranks.core.model import Pod, RejectedCreate
from allranks.core.root_cause import UNCOUNTED

ConditionType = Literal["Running", "Restarting", "Suspended", "Complete", "Failed"]
_MESSAGE_LENGTH = 4096
_HISTORY = 10


def begin(job: Job, status: Status, now: datetime) -> Status:
    """The job is seen for the first time. One whose spec was changed before that may have pods of another size already,
    of attempt 0 (`reconcile`): it begins with the next."""
    number = int(job.metadata.generation > 1)
    first = {"start_time": now, "observed_generation": job.metadata.generation, "attempt": number}
    fresh = status.model_copy(update=first)
    if job.spec.suspend:
        return _phase(_roles_wanted(job, fresh), "Suspended", now, "Suspended", "created with suspend: true")
    return _phase(_attempt(job, fresh, number, now), "Pending", now, "Created", "the pods are being created")


def suspend(job: Job, status: Status, now: datetime) -> Status:
    """Time stops for the job; its pods go because the phase says so."""
    active = (now - status.active_since).total_seconds() if status.active_since else 0.0
    update: dict[str, Any] = {
        "active_since": None,
        "active_seconds": status.active_seconds + max(0.0, active),
        "running_time": None,
        "history": _ended(status, "Suspended", now),
        "progress": progress.ended(status.progress),
    }
    stopped = status.model_copy(update=update)
    return _phase(stopped, "Suspended", now, "Suspended", "spec.suspend is true")


def resume(job: Job, status: Status, now: datetime) -> Status:
    """A new attempt that counts against nothing, unless there never was one."""
    ever_active = status.attempt_time is not None
    number = status.attempt + 1 if ever_active else status.attempt
    fresh = status.model_copy(update={"roles": {}})  # where there was no room, there may be some now
    return _phase(_attempt(job, fresh, number, now), "Pending", now, "Resumed", "spec.suspend is false")


def resize(job: Job, status: Status, reason: str, why: str, now: datetime) -> Status:
    """All ranks start again at another size; that counts against nothing."""
    ended = status.model_copy(update={"history": _ended(status, reason, now)})
    return _phase(_attempt(job, ended, status.attempt + 1, now), "Restarting", now, reason, why)


def restart(job: Job, status: Status, failure: Failure, counted: bool, why: str, now: datetime) -> Status:
    """All pods of the attempt are given up, and a new attempt begins, after the backoff if it counts."""
    restarts = _count(status.restarts, failure.reason, counted)
    ended = status.model_copy(update={"history": _ended(status, failure.reason, now, failure, counted)})
    begun = _attempt(job, ended, status.attempt + 1, now)
    wait = restart_policy.backoff(job, restarts.counted) if counted else None
    update = {
        "restarts": restarts,
        "last_failure": failure,
        "restart_time": now + wait if wait else None,
    }
    return _phase(
        begun.model_copy(update=update), "Restarting", now, failure.reason, f"{describe_failure(failure)}: {why}"
    )


def follow(job: Job, status: Status, lost: ReplicaRestarts, cause: Failure, now: datetime) -> Status:
    """The others could not go on without a replica that restarts alone; its loss is counted already."""
    ended = status.model_copy(update={"history": _ended(status, cause.reason, now, cause)})
    begun = _attempt(job, ended, status.attempt + 1, now)
    wait = lost.restart_time if lost.restart_time > now else None
    update = {"last_failure": cause, "restart_time": wait}
    why = f"{describe_failure(cause)}: the others could not go on without it"
    return _phase(begun.model_copy(update=update), "Restarting", now, cause.reason, why)


def correct(status: Status, cause: Failure, counted: bool) -> Status:
    """An attempt that was counted is told to have ended by this instead, which counts or does not."""
    [past] = [past for past in status.history if past.attempt == cause.attempt]
    right = past.model_copy(update={"reason": cause.reason, "counted": counted, "failure": _brief(cause)})
    by_reason = dict(status.restarts.by_reason)
    by_reason[past.reason] = by_reason.get(past.reason, 1) - 1
    others = RestartCounts(
        counted=status.restarts.counted - 1,
        disruptions=status.restarts.disruptions,
        by_reason={reason: count for reason, count in by_reason.items() if count},
    )
    told = status.last_failure
    return status.model_copy(
        update={
            "restarts": _count(others, cause.reason, counted),
            "history": [right if one.attempt == cause.attempt else one for one in status.history],
            "last_failure": cause if told is None or told.attempt == cause.attempt else told,
        }
    )


def restart_replica(job: Job, status: Status, failure: Failure, counted: bool | None, now: datetime) -> Status:
    """One pod is given up and replaced; the others go on. `counted` None: it is a part of what is counted already."""
    restarts = status.restarts if counted is None else _count(status.restarts, failure.reason, counted)
    key = naming.replica_key(failure.role, failure.index)
    before = status.replica_restarts.get(key)
    wait = restart_policy.backoff(job, restarts.counted) if counted else timedelta(0)
    count = before.count + 1 if before else 1
    entry = ReplicaRestarts(count=count, counted=bool(counted), restart_time=now + wait, failure=_brief(failure))
    return status.model_copy(
        update={
            "restarts": restarts,
            "last_failure": failure,
            "replica_restarts": {**status.replica_restarts, key: entry},
        }
    )


def ignore(status: Status, failure: Failure) -> Status:
    """The job goes on without this pod."""
    key = naming.replica_key(failure.role, failure.index)
    return status.model_copy(update={"ignored": [*status.ignored, key], "last_failure": failure})


def succeed(job: Job, status: Status, now: datetime) -> Status:
    update = {
        "completion_time": now,
        "history": _ended(status, "Completed", now),
        "progress": progress.ended(status.progress),
    }
    done = status.model_copy(update=update)
    return _phase(done, "Succeeded", now, "Completed", "training completed")


def fail(job: Job, status: Status, reason: str, message: str, now: datetime, failure: Failure | None = None) -> Status:
    update = {
        "completion_time": now,
        "last_failure": failure or status.last_failure,
        "history": _ended(status, reason, now, failure),
        "progress": progress.ended(status.progress),
    }
    done = status.model_copy(update=update)
    return _phase(done, "Failed", now, reason, message)


def summarise(
    job: Job,
    status: Status,
    pods: Mapping[tuple[str, int], Pod],
    refused: Iterable[RejectedCreate],
    now: datetime,
    lacks: tuple[str, str] | None = None,
) -> Status:
    """What is seen of the present attempt: counts, whether it was launched, whether it runs, and if not, why not.

    `lacks` is the (reason, message) of what the rest of its pods cannot be made without.
    """
    count = topology.sizes(job, status)
    roles = {role: _role(size, [pods.get((role, index)) for index in range(size)]) for role, size in count.items()}
    roles = {role: of.model_copy(update={"waiting": _waiting(status, role)}) for role, of in roles.items()}
    ready, desired = sum(r.ready for r in roles.values()), sum(count.values())
    launched = status.launched or len(pods) == desired
    running_now = status.running_time or (now if _all_run(job, count, pods, status.ignored) else None)
    restarted = {
        key: entry if entry.launched else entry.model_copy(update={"launched": _seen(key, entry, pods)})
        for key, entry in status.replica_restarts.items()
    }
    update: dict[str, Any] = {
        "observed_generation": job.metadata.generation,
        "roles": roles,
        "ready": f"{ready}/{desired}",
        "launched": launched,
        "replica_restarts": restarted,
        "running_time": running_now,
        "selector": f"{naming.JOB_LABEL}={job.name},{naming.ROLE_LABEL}=worker",
    }
    seen = status.model_copy(update=update)
    if running_now:
        return (
            _phase(seen, "Running", now, "AllRanksRunning", _who_runs(ready, desired))
            if seen.phase != "Running"
            else seen
        )
    reason, message = lacks or _why_not_running(pods, refused, ready, desired)
    return _phase(seen, seen.phase, now, reason, message)


def summarise_ended(job: Job, status: Status, pods: Mapping[tuple[str, int], Pod]) -> Status:
    """Of a job that is over or suspended only the pods that still end or go away are news; none un-ends.

    A pod that ends because it is being cleaned up counts as neither succeeded nor failed, whoever sees it in time.
    """
    roles = {}
    for role, of in status.roles.items():
        seen = [pods.get((role, index)) for index in range(of.desired)]
        now, by_itself = _role(of.desired, seen), _role(of.desired, [p for p in seen if p and not p.terminating])
        roles[role] = of.model_copy(
            update={
                "active": now.active,
                "succeeded": max(of.succeeded, by_itself.succeeded),
                "failed": max(of.failed, by_itself.failed),
            }
        )
    ready = status.ready
    if status.phase == "Suspended":
        roles = {role: RoleStatus(desired=of.desired, active=of.active) for role, of in roles.items()}
        ready = f"0/{sum(of.desired for of in roles.values())}"
    return status.model_copy(update={"roles": roles, "observed_generation": job.metadata.generation, "ready": ready})


def describe_failure(failure: Failure) -> str:
    """`worker-1 failed with exit code 1 (Error)`: the cause in one line."""
    who = naming.replica_key(failure.role, failure.index) if failure.role else "a pod"
    if failure.reason in UNCOUNTED:
        return f"{who} was lost ({failure.reason})"
    if failure.signal is not None:
        return f"{who} was ended by signal {failure.signal} ({failure.reason})"
    if failure.exit_code is None:
        return f"{who} failed ({failure.reason})"
    return f"{who} failed with exit code {failure.exit_code} ({failure.reason})"


def _attempt(job: Job, status: Status, number: int, now: datetime) -> Status:
    """The write-ahead record of a new attempt: everything of the old one that must not be taken for the new one's."""
    return _roles_wanted(job, status).model_copy(
        update={
            "attempt": number,
            "attempt_time": now,
            "launched": False,
            "running_time": None,
            "restart_time": None,
            "replica_restarts": {},
            "ignored": [],
            "avoided_nodes": _lost_with(status.history),
            "progress": progress.anew(status.progress),
            "active_since": status.active_since or now,
            "observed_generation": job.metadata.generation,
        }
    )


def _ended(
    status: Status, reason: str, now: datetime, failure: Failure | None = None, counted: bool = False
) -> list[PastAttempt]:
    """The history with the present attempt in it, if one was begun."""
    if status.attempt_time is None:
        return status.history
    past = PastAttempt(
        attempt=status.attempt,
        start_time=status.attempt_time,
        running_time=status.running_time,
        end_time=now,
        reason=reason[:128],
        counted=counted,
        failure=_brief(failure) if failure else None,
    )
    return [*status.history, past][-_HISTORY:]


def _lost_with(history: list[PastAttempt]) -> list[str]:
    """The nodes that failed past attempts, newest first: `NodeLost`, or their kubelets evicted a pod."""
    failures = [past.failure for past in reversed(history) if past.failure]
    return list(dict.fromkeys(f.node for f in failures if f.node and f.reason in ("NodeLost", "Evicted")))


def _roles_wanted(job: Job, status: Status) -> Status:
    roles = elasticity.roles(job, status)
    return status.model_copy(update={"roles": roles, "ready": f"0/{sum(of.desired for of in roles.values())}"})


def _waiting(status: Status, role: str) -> int:
    return status.roles[role].waiting if role in status.roles else 0


def _brief(failure: Failure) -> Failure:
    """As much of a failure as the next one is compared with."""
    lines = [line for line in failure.message.splitlines() if line.strip()]
    return failure.model_copy(update={"message": lines[-1][-1024:] if lines else ""})


def _count(restarts: RestartCounts, reason: str, counted: bool) -> RestartCounts:
    by_reason = dict(restarts.by_reason)
    if reason in by_reason or len(by_reason) < 64:
        by_reason[reason] = by_reason.get(reason, 0) + 1
    return RestartCounts(
        counted=restarts.counted + counted, disruptions=restarts.disruptions + (not counted), by_reason=by_reason
    )


def _role(desired: int, pods: list[Pod | None]) -> RoleStatus:
    seen = [pod for pod in pods if pod]
    succeeded = sum(pod.succeeded for pod in seen)
    active = [pod for pod in seen if not pod.ended and not pod.deleted_at]
    return RoleStatus(
        desired=desired,
        active=len(active),
        ready=sum(_ready(pod) for pod in seen),
        succeeded=succeeded,
        failed=sum(pod.ended for pod in seen) - succeeded,
    )


def _all_run(job: Job, sizes: Mapping[str, int], pods: Mapping[tuple[str, int], Pod], ignored: list[str]) -> bool:
    """Whether every replica that must run runs, or is done; one that is ignored neither counts nor stands in."""
    places = [(role, index) for role, size in sizes.items() for index in range(size)]
    needed = [place for place in places if naming.replica_key(*place) not in ignored] if ignored else places
    run = [place for place in needed if (pod := pods.get(place)) is not None and _ready(pod)]
    if topology.elasticity(job) == "absorbs" and job.spec.elastic and (topology.ELASTIC_ROLE, 0) in run:
        return len(run) >= job.spec.elastic.min_replicas
    return len(run) == len(needed)


def _who_runs(ready: int, desired: int) -> str:
    return f"all {desired} pods run" if ready == desired else f"{ready} of {desired} pods run"


def _ready(pod: Pod) -> bool:
    return pod.succeeded or (pod.phase == "Running" and not pod.ended and not pod.deleted_at)


def _seen(key: str, entry: ReplicaRestarts, pods: Mapping[tuple[str, int], Pod]) -> bool:
    role, index = key.rsplit("-", 1)
    pod = pods.get((role, int(index)))
    return pod is not None and pod.restart == entry.count


def _why_not_running(
    pods: Mapping[tuple[str, int], Pod], refused: Iterable[RejectedCreate], ready: int, desired: int
) -> tuple[str, str]:
    """The most telling of all reasons: a refusal of the API server, then what keeps a pod from starting."""
    for refusal in sorted(refused, key=lambda r: (r.kind, r.name)):
        return refusal.reason, f"{refusal.kind} {refusal.name}: {refusal.message}"
    waiting = [pod for _, pod in sorted(pods.items()) if pod.phase == "Pending" and pod.waiting_message]
    waiting.sort(
        key=lambda pod: (pod.waiting_reason not in restart_policy.BAD_START, pod.waiting_reason != "Unschedulable")
    )
    for pod in waiting:
        return pod.waiting_reason or "Pending", f"{pod.name}: {pod.waiting_message}"
    return "PodsPending", f"{ready} of {desired} pods run"


_CONDITIONS: tuple[tuple[ConditionType, frozenset[str]], ...] = (
    ("Running", frozenset({"Running"})),
    ("Restarting", frozenset({"Restarting"})),
    ("Suspended", frozenset({"Suspended"})),
    ("Complete", frozenset({"Succeeded"})),
    ("Failed", frozenset({"Failed"})),
)


def _phase(status: Status, phase: Phase, now: datetime, reason: str, message: str) -> Status:
    """Sets the phase, and the conditions that follow from it; the reason goes to the one that tells the phase."""
    told_by = {"Pending": "Running", "Succeeded": "Complete"}.get(phase, phase)
    conditions = []
    for kind, phases in _CONDITIONS:
        state = "True" if phase in phases else "False"
        before = status.condition(kind)
        if before is None and state == "False" and kind != told_by:
            continue
        tells = kind == told_by or (kind == "Running" and phase == "Restarting")
        changed = before is None or before.status != state
        kept_reason, kept_message = (before.reason, before.message) if before and not changed else (phase, "")
        conditions.append(
            Condition(
                type=kind,
                status=cast("Any", state),
                # That of Running tells of every phase: `kubectl get -o wide` shows it.
                reason=reason[:128] if tells or kind == "Running" else kept_reason,
                message=message[:_MESSAGE_LENGTH] if tells else kept_message,
                last_transition_time=now if before is None or changed else before.last_transition_time,
                observed_generation=status.observed_generation,
            )
        )
    return status.model_copy(update={"phase": phase, "conditions": conditions})
