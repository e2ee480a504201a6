"""Jobs whose attempt has ended: suspended, in a queue, uploading their outputs, or finished."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.status import Hold, RoleStatus, Status
from allranks.core.facts import topology
from allranks.core.facts.model import Event, Plan, Pod
from allranks.core.facts.status_summary import with_phase
from allranks.core.facts.topology import CLEANUP_GRACE
from allranks.core.objects.gangs import members
from allranks.core.objects.queueing import reasons
from allranks.core.objects.queueing.sync import active_pods
from allranks.core.snapshot import Snapshot
from allranks.core.sync.plans import DELETION_REFUSED, gpus_of, plan_objects
from allranks.core.transfers import pods as transfers
from allranks.core.transfers import uploads


def delete_pods(snapshot: Snapshot) -> Plan:
    """Delete all pods of a suspended job, and report pods that the API server does not allow to be deleted."""
    summary, now = snapshot.summarised_at_end, snapshot.observed.now
    condition = summary.condition("Suspended")
    if snapshot.undeletable:
        pod, rejection = snapshot.undeletable[0]
        message = f"pod {pod.name} still runs, because its deletion was rejected: {rejection.message}"
        summary = with_phase(summary, "Suspended", now, DELETION_REFUSED, message)
    elif condition and condition.reason == DELETION_REFUSED:
        summary = with_phase(summary, "Suspended", now, "Suspended", "spec.suspend is true")
    plan = plan_objects(snapshot, summary, delete=[*snapshot.pods.values(), *snapshot.outdated])
    return replace(
        plan, remove=members.superseded_groups(snapshot.observed.job, summary, snapshot.observed.optional, over=True)
    )


def wait_in_queue(snapshot: Snapshot) -> Plan:
    """Delete all pods of a job that waits in a queue, and report the reason of the wait."""
    o = snapshot.observed
    active, _ = active_pods(snapshot)
    missing = transfers.blocked(o) if snapshot.workload is None and not active else None
    reason, message = missing or reasons.reason(o, snapshot.workload, active)
    if snapshot.undeletable:
        pod, rejection = snapshot.undeletable[0]
        reason, message = DELETION_REFUSED, f"pod {pod.name} still runs: its deletion was rejected: {rejection.message}"
    summary = with_phase(_with_wanted_sizes(snapshot), "Queued", o.now, reason, message)
    plan = plan_objects(snapshot, summary, delete=[*snapshot.pods.values(), *snapshot.outdated])
    return replace(plan, remove=members.superseded_groups(o.job, summary, o.optional, over=True))


def _with_wanted_sizes(snapshot: Snapshot) -> Status:
    """Return the status of a job without pods, with the sizes that it will have."""
    summary, sizes = snapshot.summarised_at_end, topology.wanted_sizes(snapshot.observed.job)
    if {role: counts.desired for role, counts in summary.roles.items()} == sizes:
        return summary
    active = {role: counts.active for role, counts in summary.roles.items()}
    roles = {role: RoleStatus(desired=size, active=active.get(role, 0)) for role, size in sizes.items()}
    return replace(summary, roles=roles, ready=f"0/{sum(sizes.values())}")


def wait_for_uploads(snapshot: Snapshot) -> Plan:
    """End the pods that still run, because they could still write, and record the progress of the upload."""
    o = snapshot.observed
    since = min((output.start_time for output in o.current.outputs if output.start_time), default=o.now)
    end = since + CLEANUP_GRACE
    alive = [pod for pod in snapshot.pods.values() if not pod.ended]
    services = topology.framework_of(o.job).long_running_roles(topology.sizes(o.job, o.current))
    delete: list[Pod] = [pod for pod in alive if o.now >= end or pod.role in services]
    status = replace(snapshot.summarised_at_end, outputs=uploads.observed(o))
    status = _with_reason(snapshot, status)
    wake_at = end if alive and o.now < end else None
    return plan_objects(snapshot, status, delete=[*delete, *snapshot.outdated], wake_at=wake_at)


def _with_reason(snapshot: Snapshot, status: Status) -> Status:
    """Add the reason why an upload does not proceed."""
    problem, running = transfers.upload_problem(snapshot.observed), status.condition("Running")
    if problem:
        return with_phase(status, "Running", snapshot.observed.now, uploads.UPLOAD_RETRYING, problem)
    if running and running.reason == uploads.UPLOAD_RETRYING:
        return with_phase(status, "Running", snapshot.observed.now, uploads.UPLOADING, "the outputs are uploaded")
    return status


def clean_up(snapshot: Snapshot) -> Plan:
    """Delete pods as `cleanPodPolicy` says, pods of a failed job when they are not held any more."""
    o = snapshot.observed
    # A PodGroup has no use once no pod can be placed any more. That of a pod that still runs stays.
    placed = all(pod.ended for pod in snapshot.pods.values())
    groups = members.superseded_groups(o.job, o.current, o.optional, over=placed)
    if until := held_until(snapshot):
        return replace(_hold(snapshot, until), remove=groups)
    plan = replace(_apply_policy(snapshot), remove=groups)
    if snapshot.current.hold is None:
        return plan
    policy = snapshot.observed.job.spec.clean_pod_policy
    ended = Event("HoldEnded", f"cleanPodPolicy applies to the pods: {policy}")
    return replace(plan, next=replace(snapshot.summarised_at_end, hold=None), events=(ended, *plan.events))


def held_until(snapshot: Snapshot) -> datetime | None:
    """Return when the pods of a failed job are no longer kept for debugging; None if they are not kept."""
    o = snapshot.observed
    seconds = o.job.spec.restart.hold_seconds
    if o.current.phase != "Failed" or not seconds or o.job.spec.suspend or o.platform.local:
        return None
    until = (o.current.completion_time or o.now) + timedelta(seconds=seconds)
    return until if o.now < until else None


def _hold(snapshot: Snapshot, until: datetime) -> Plan:
    """Keep all pods of the last attempt that have a node: one without would start as soon as there is room."""
    kept = {place: pod for place, pod in snapshot.pods.items() if pod.node is not None or pod.ended}
    delete = [pod for place, pod in sorted(snapshot.pods.items()) if place not in kept]
    present = [pod for pod in kept.values() if pod.deleted_at is None]
    hold = Hold(until=until, pods=len(present), gpus=gpus_of(snapshot, present)) if present else None
    before, events = snapshot.current.hold, list[Event]()
    if hold and (before is None or before.until != until):
        message = f"{hold.pods} pods with {hold.gpus} GPUs are kept until {until:%Y-%m-%dT%H:%M:%SZ}"
        events.append(Event("Held", f"{message} (restart.holdSeconds); deletion or suspend: true ends it"))
    status = replace(snapshot.summarised_at_end, hold=hold)
    return plan_objects(snapshot, status, delete=[*delete, *snapshot.outdated], events=events, wake_at=until)


def _apply_policy(snapshot: Snapshot) -> Plan:
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    services = topology.framework_of(job).long_running_roles(topology.sizes(job, status))
    grace_end = (status.completion_time or now) + CLEANUP_GRACE
    delete: list[Pod] = []
    wake_at = None
    for _, pod in sorted(snapshot.pods.items()):
        over = pod.phase in ("Succeeded", "Failed")
        # Policy None keeps no pod without a node: it would start to run as soon as there is room.
        kept = {"None": over or pod.node is not None, "Running": over, "All": False}
        if kept[job.spec.clean_pod_policy]:
            continue
        if status.phase == "Succeeded" and pod.phase == "Running" and pod.role not in services and now < grace_end:
            wake_at = grace_end
        else:
            delete.append(pod)
    interrupted = [pod for pod in delete if pod.phase == "Running" and not pod.ended and pod.deleted_at is None]
    events = _stopped(status, [pod for pod in interrupted if pod.role not in services])
    status = snapshot.summarised_at_end
    return plan_objects(snapshot, status, delete=[*delete, *snapshot.outdated], events=events, wake_at=wake_at)


def _stopped(status: Status, pods: list[Pod]) -> list[Event]:
    """Return an Event about pods that still ran after the success of the job, such as an evaluator."""
    if status.phase != "Succeeded" or not pods:
        return []
    names = ", ".join(pod.name for pod in pods[:8]) + (f" and {len(pods) - 8} more" if len(pods) > 8 else "")
    message = (
        f"{names} still ran {CLEANUP_GRACE.seconds} s after the success, and {'is' if len(pods) == 1 else 'are'} "
        "stopped; success: All waits for all pods"
    )
    return [Event("Stopped", message, warning=True)]
