"""The decisions as changes of the status, written ahead of everything that follows from them.

Each function takes the current status and returns the next one; the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.scheduling import Eviction, QueueStatus
from allranks.api.status import (
    CheckpointSchedule,
    CodeStatus,
    Failure,
    PastAttempt,
    ReplicaRestarts,
    RestartCounts,
    Rollback,
    Status,
)
from allranks.core.accounting.progress import finalize, reset_for_attempt
from allranks.core.diagnosis import comparison, elasticity, restart_policy
from allranks.core.diagnosis.reasons import cause_line, describe_failure, is_rejection
from allranks.core.facts import development, naming, stored_checkpoints
from allranks.core.facts.attempt_pods import IN_PLACE, NEW_PODS
from allranks.core.facts.bad_nodes import OF_NODE
from allranks.core.facts.forgiveness import without_forgiven
from allranks.core.facts.model import FETCH_FAILED
from allranks.core.facts.queue import queue_of
from allranks.core.facts.status_summary import remarks, with_phase
from allranks.core.transfers import data

_HISTORY = 10
_RECENT = 30
"""As in the CRD, and at least the largest `restart.window.maxRestarts`."""


def begin(job: Job, status: Status, now: datetime) -> Status:
    """Return the first status of a job.

    If the spec changed before it, there may already be pods of attempt 0 with another size (created by `reconcile` for
    a small job whose status was not persisted): the job begins with attempt 1.
    """
    number = int(job.metadata.generation > 1)
    fresh = replace(
        status,
        start_time=now,
        observed_generation=job.metadata.generation,
        attempt=number,
        inputs=status.inputs or data.initial_inputs(job),
        outputs=data.initial_outputs(job),
    )
    if job.spec.suspend:
        return with_phase(_initial_roles(job, fresh), "Suspended", now, "Suspended", "created with suspend: true")
    if queue_of(job):
        return _queued(job, _initial_roles(job, fresh), now)
    return with_phase(_attempt(job, fresh, number, now), "Pending", now, "Created", "the pods are being created")


def suspend(status: Status, now: datetime) -> Status:
    """Stop the job's active time. The phase leads to the deletion of the pods."""
    stopped = _stopped(status, "Suspended", now)
    return with_phase(stopped, "Suspended", now, "Suspended", "spec.suspend is true")


def requeue(job: Job, status: Status, reason: str, message: str, now: datetime) -> Status:
    """Send the job back to its queue. The phase leads to the deletion of the pods."""
    before = status.queue or QueueStatus(name=queue_of(job))
    lost = bool(before.pod_sets)
    eviction = Eviction(reason=reason[:128], message=message[:256], time=now) if lost else before.last_eviction
    stopped = _stopped(status, reason[:128], now, requeued=True)
    counted = QueueStatus(name=queue_of(job), evictions=before.evictions + lost, last_eviction=eviction)
    return with_phase(replace(stopped, queue=counted), "Queued", now, reason, message)


def _stopped(status: Status, reason: str, now: datetime, requeued: bool = False) -> Status:
    """End the attempt and the job's active time, and give the admission up."""
    active = (now - status.active_since).total_seconds() if status.active_since else 0.0
    queue = status.queue
    if queue is not None:
        queue = QueueStatus(name=queue.name, evictions=queue.evictions, last_eviction=queue.last_eviction)
    return replace(
        status,
        active_since=None,
        active_seconds=status.active_seconds + max(0.0, active),
        running_time=None,
        history=_ended(status, reason, now, requeued=requeued),
        progress=finalize(status.progress),
        queue=queue,
        checkpoint_request=None,
    )


def _queued(job: Job, status: Status, now: datetime) -> Status:
    before = status.queue
    queue = QueueStatus(
        name=queue_of(job),
        evictions=before.evictions if before else 0,
        last_eviction=before.last_eviction if before else None,
    )
    message = f"queue {queue.name}: the job enters the queue"
    return with_phase(replace(status, queue=queue), "Queued", now, "Queued", message)


def admit(job: Job, status: Status, admission: QueueStatus | None, now: datetime) -> Status:
    """Begin an attempt of a job that waited in a queue. `admission` is None if the job is in no queue any more."""
    begun = _next_attempt(job, replace(status, queue=admission), now)
    where = f"admitted by ClusterQueue {admission.cluster_queue}" if admission else "the job is in no queue any more"
    return with_phase(begun, "Pending", now, "Admitted" if admission else "LeftQueue", where)


def resume(job: Job, status: Status, now: datetime) -> Status:
    """Start a new attempt, which counts against nothing; the first one if the job was created suspended.

    A job of a queue waits there first.
    """
    if queue_of(job):
        return _queued(job, replace(status, observed_generation=job.metadata.generation), now)
    return with_phase(_next_attempt(job, status, now), "Pending", now, "Resumed", "spec.suspend is false")


def _next_attempt(job: Job, status: Status, now: datetime) -> Status:
    ever_active = status.attempt_time is not None
    number = status.attempt + 1 if ever_active else status.attempt
    # There may be room for all workers now, and the user may have corrected the cause of the restarts.
    fresh = replace(status, roles={}, restarts=replace(status.restarts, without_progress=None))
    return _attempt(job, fresh, number, now)


def restart_on_request(
    job: Job, status: Status, reason: str, message: str, now: datetime, new_pods: str | None = ""
) -> Status:
    """Restart all ranks for another reason than a failure, such as another size; this counts against nothing.

    `new_pods`: as in `restart`.
    """
    ended = replace(status, history=_how(_ended(status, reason, now), new_pods))
    begun = _attempt(job, ended, status.attempt + 1, now, in_place=new_pods is None)
    return with_phase(begun, "Restarting", now, reason, message)


def give_up(job: Job, status: Status, reason: str, message: str, delay: timedelta, now: datetime) -> Status:
    """Give up the pods of an attempt that did not run, and try again later; this counts against nothing."""
    ended = replace(status, history=_ended(status, reason, now))
    begun = replace(_attempt(job, ended, status.attempt + 1, now), restart_time=now + delay)
    return with_phase(begun, "Restarting", now, reason, message)


def restart(
    job: Job,
    status: Status,
    failure: Failure,
    counted: bool,
    explanation: str,
    now: datetime,
    new_pods: str | None = "",
) -> Status:
    """Begin a new attempt, after a backoff: in the same pods if `new_pods` is None.

    Otherwise `new_pods` says why all pods are replaced; it is empty if they always are.
    """
    restarts = _count(job, status.restarts, failure.reason, counted, now)
    ended = replace(status, history=_how(_ended(status, failure.reason, now, failure, counted), new_pods))
    idle = comparison.idle_restarts(status, failure, alone=False)
    number = restart_policy.counted_restarts(job, restarts, now) if counted else None
    wait = restart_policy.delay(job, number, idle)
    begun = replace(
        _attempt(job, ended, status.attempt + 1, now, in_place=new_pods is None),
        restarts=replace(restarts, without_progress=idle or None),
        last_failure=failure,
        restart_time=now + wait if wait else None,
    )
    if rollback := rollback_after(job, status, failure):
        begun = replace(begun, rollback=rollback)
    return with_phase(begun, "Restarting", now, failure.reason, f"{describe_failure(failure)}: {explanation}")


def await_code(
    job: Job, status: Status, failure: Failure, explanation: str, until: datetime, now: datetime, new_pods: str | None
) -> Status:
    """Begin a new attempt whose ranks start with other code, or at `until`. It counts against nothing.

    If the job has other code already, they start at once. A job without `spec.code`, as on one machine, waits for a
    request to restart. `new_pods`: as in `restart`.
    """
    ended = replace(status, history=_how(_ended(status, failure.reason, now, failure), new_pods))
    begun = replace(
        _attempt(job, ended, status.attempt + 1, now, in_place=new_pods is None),
        restarts=replace(status.restarts, without_progress=None),
        last_failure=failure,
    )
    if not development.code_changed(job, status):
        code = begun.code or CodeStatus(time=now)
        begun = replace(begun, restart_time=until, code=replace(code, awaits_change=True))
    return with_phase(begun, "Restarting", now, failure.reason, f"{describe_failure(failure)}: {explanation}")


def fall_back(status: Status, reason: str, now: datetime) -> Status:
    """Give an attempt that could not begin in the pods of an earlier one new pods. It is the same attempt, and counts
    no second time."""
    last = status.history[-1] if status.history else None
    history = status.history
    if last and last.attempt == status.attempt - 1:
        history = _how(history, reason)
    begin = max(status.restart_time or now, now)
    begun = replace(status, pods_of_attempt=None, launched=False, gang=None, restart_time=begin, history=history)
    return with_phase(begun, "Restarting", now, NEW_PODS, f"new pods: {reason}")


def _how(history: list[PastAttempt], new_pods: str | None) -> list[PastAttempt]:
    """Return the history that says how the attempt after the last one begins."""
    if new_pods == "" or not history:
        return history
    last = replace(history[-1], how=NEW_PODS if new_pods else IN_PLACE, why_new_pods=new_pods and new_pods[:128])
    return [*history[:-1], last]


def rollback_after(job: Job, status: Status, failure: Failure) -> Rollback | None:
    """Return from where the next attempt continues, if this one could not read the newest checkpoint."""
    step = failure.checkpoint_step
    older = None if step is None else stored_checkpoints.before(job, status, step)
    if step is None or older is None:
        return None
    return Rollback(step=older.step, unreadable_step=step, attempt=status.attempt)


def restart_after_upstream_failure(
    job: Job, status: Status, lost: ReplicaRestarts, cause: Failure, now: datetime, why_new_pods: str = ""
) -> Status:
    """Restart all replicas because of one that restarts individually; its failure is already counted."""
    ended = replace(status, history=_how(_ended(status, cause.reason, now, cause), why_new_pods))
    idle = comparison.idle_restarts(status, cause, alone=False)
    begin = max(lost.restart_time or now, now + restart_policy.delay(job, None, idle))
    begun = replace(
        _attempt(job, ended, status.attempt + 1, now),
        restarts=replace(status.restarts, without_progress=idle or None),
        last_failure=cause,
        restart_time=begin if begin > now else None,
    )
    message = f"{describe_failure(cause)}: the other replicas could not continue without it"
    return with_phase(begun, "Restarting", now, cause.reason, message)


def reattribute(job: Job, status: Status, cause: Failure, counted: bool) -> Status:
    """Replace the root cause of a past, counted attempt and correct the restart counters."""
    [past] = [past for past in status.history if past.attempt == cause.attempt]
    corrected = replace(past, reason=cause.reason, counted=counted, failure=_brief(cause))
    by_reason = dict(status.restarts.by_reason)
    by_reason[past.reason] = by_reason.get(past.reason, 1) - 1
    others = RestartCounts(
        counted=status.restarts.counted - 1,
        disruptions=status.restarts.disruptions,
        by_reason={reason: count for reason, count in by_reason.items() if count},
        recent=(status.restarts.recent or [])[:-1] or None,
        without_progress=status.restarts.without_progress,
    )
    last = status.last_failure
    return replace(
        status,
        restarts=_count(job, others, cause.reason, counted, past.end_time),
        history=[corrected if attempt.attempt == cause.attempt else attempt for attempt in status.history],
        last_failure=cause if last is None or last.attempt == cause.attempt else last,
    )


def reattribute_end(status: Status, cause: Failure, reason: str, message: str, now: datetime) -> Status:
    """Replace the root cause of the attempt whose failure ended the job. The job stays failed."""
    past = replace(status.history[-1], failure=_brief(cause))
    corrected = replace(status, last_failure=cause, history=[*status.history[:-1], past])
    return with_phase(corrected, "Failed", now, reason, message)


def restart_replica(
    job: Job, status: Status, failure: Failure, counted: bool | None, now: datetime, *, in_pod: bool = False
) -> Status:
    """Restart one replica `in_pod`, or replace its pod; the other replicas continue.

    `counted` is None if a correlated failure was counted already.
    """
    restarts = status.restarts if counted is None else _count(job, status.restarts, failure.reason, counted, now)
    key = naming.replica_key(failure.role, failure.index)
    before = status.replica_restarts.get(key)
    idle = comparison.idle_restarts(status, failure, alone=True)
    number = restart_policy.counted_restarts(job, restarts, now) if counted else None
    wait = restart_policy.delay(job, number, idle)
    entry = ReplicaRestarts(
        count=before.count + 1 if before else 1,
        in_pod=((before.in_pod if before else None) or 0) + 1 if in_pod else None,
        counted=bool(counted),
        restart_time=now + wait,
        failure=_brief(failure),
        without_progress=idle or None,
    )
    return replace(
        status,
        restarts=restarts,
        last_failure=failure,
        replica_restarts={**status.replica_restarts, key: entry},
        avoided_nodes=_avoided_after(status, failure),
    )


def replace_pods(status: Status, keys: Iterable[str], now: datetime) -> Status:
    """Give replicas that could not restart alone in their pods new pods. These restarts count no second time."""
    entries = status.replica_restarts
    replaced = {
        key: replace(entries[key], in_pod=None, restart_time=max(entries[key].restart_time or now, now)) for key in keys
    }
    return replace(status, replica_restarts={**entries, **replaced})


def ignore(status: Status, failure: Failure) -> Status:
    """Continue the job without this replica."""
    key = naming.replica_key(failure.role, failure.index)
    return replace(status, ignored=[*status.ignored, key], last_failure=failure)


def succeed(status: Status, now: datetime) -> Status:
    done = replace(
        _without_ready(status),
        completion_time=now,
        history=_ended(status, "Completed", now),
        progress=finalize(status.progress),
        checkpoint_request=None,
    )
    remark = remarks(done.progress)
    return with_phase(done, "Succeeded", now, "Completed", f"training completed{f': {remark}' if remark else ''}")


def fail(status: Status, reason: str, message: str, now: datetime, failure: Failure | None = None) -> Status:
    done = replace(
        _without_ready(status),
        completion_time=now,
        outputs=[
            replace(output, state="Pending") if output.state == "Checking" else output for output in status.outputs
        ],
        last_failure=failure or status.last_failure,
        history=_ended(status, reason, now, failure),
        progress=finalize(status.progress),
        checkpoint_request=None,
    )
    return with_phase(done, "Failed", now, reason, message)


def _without_ready(status: Status) -> Status:
    """Return the status without ready pods, as in a finished Kubernetes Job. `succeeded` still counts its successes."""
    roles = {role: replace(counts, ready=0) for role, counts in status.roles.items()}
    return replace(status, roles=roles, ready=f"0/{sum(counts.desired for counts in roles.values())}")


def _attempt(job: Job, status: Status, number: int, now: datetime, *, in_place: bool = False) -> Status:
    """Return the write-ahead record of a new attempt, with everything of the previous one reset, but its pods and their
    gang if the attempt begins `in_place`."""
    return replace(
        _initial_roles(job, status),
        attempt=number,
        attempt_time=now,
        pods_of_attempt=status.pod_attempt if in_place else None,
        launched=in_place,
        running_time=None,
        restart_time=None,
        replica_restarts={},
        ignored=[],
        done={},
        avoided_nodes=_failed_nodes(job, status.history),
        progress=reset_for_attempt(status.progress),
        gang=status.gang if in_place else None,
        checkpoint_request=None,
        checkpoint_schedule=_measured(status.checkpoint_schedule),
        rollback=status.rollback if status.running_time is None else None,
        code=development.code_of_attempt(job, status.code, now),
        inputs=data.inputs_of_attempt(job, status.inputs),
        active_since=status.active_since or now,
        observed_generation=job.metadata.generation,
    )


def _measured(schedule: CheckpointSchedule | None) -> CheckpointSchedule | None:
    """Return the schedule without the step, of which the new ranks know nothing."""
    return replace(schedule, step=None, agreed=None, ranks=None) if schedule else None


def _ended(
    status: Status,
    reason: str,
    now: datetime,
    failure: Failure | None = None,
    counted: bool = False,
    requeued: bool = False,
) -> list[PastAttempt]:
    """Return the history with the current attempt appended, if it has begun and is not on record yet."""
    if status.attempt_time is None or any(past.attempt == status.attempt for past in status.history):
        return status.history
    past = PastAttempt(
        attempt=status.attempt,
        start_time=status.attempt_time,
        running_time=status.running_time,
        end_time=now,
        reason=reason[:128],
        counted=counted,
        requeued=requeued or None,
        failure=_brief(failure) if failure else None,
    )
    return [*status.history, past][-_HISTORY:]


def _failed_nodes(job: Job, history: list[PastAttempt]) -> list[str]:
    """Return the nodes that were lost, evicted or rejected a pod, or had a device that failed, newest first."""
    failures = without_forgiven(job, [past.failure for past in reversed(history) if past.failure])
    return list(dict.fromkeys(f.node for f in failures if f.node and is_nodes_fault(f)))


def _avoided_after(status: Status, failure: Failure) -> list[str]:
    """Return the nodes that the pod of an individual restart avoids."""
    if not failure.node or not is_nodes_fault(failure):
        return status.avoided_nodes
    return list(dict.fromkeys([failure.node, *status.avoided_nodes]))[:_HISTORY]


def is_nodes_fault(failure: Failure) -> bool:
    """Return whether later attempts avoid the node of the pod."""
    of_node = failure.reason in ("NodeLost", "Evicted", FETCH_FAILED) or is_rejection(failure.reason)
    return of_node or failure.because in OF_NODE


def _initial_roles(job: Job, status: Status) -> Status:
    roles = elasticity.initial_roles(job, status)
    return replace(status, roles=roles, ready=f"0/{sum(counts.desired for counts in roles.values())}")


def _brief(failure: Failure) -> Failure:
    """Return the failure with the line of its cause only: enough for comparisons with the next one."""
    return replace(failure, message=cause_line(failure)[-1024:])


def _count(job: Job, restarts: RestartCounts, reason: str, counted: bool, now: datetime) -> RestartCounts:
    by_reason = dict(restarts.by_reason)
    if reason in by_reason or len(by_reason) < 64:
        by_reason[reason] = by_reason.get(reason, 0) + 1
    return RestartCounts(
        counted=restarts.counted + counted,
        disruptions=restarts.disruptions + (not counted),
        by_reason=by_reason,
        recent=[*(restarts.recent or ()), now][-_RECENT:] if counted and job.spec.restart.window else restarts.recent,
        without_progress=restarts.without_progress,
    )
