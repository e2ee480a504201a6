"""Finished jobs: records the outcome of the pods, applies `cleanPodPolicy`, and deletes the job after its TTL."""

from __future__ import annotations

from datetime import timedelta

from allranks.api.status import Status
from allranks.core import topology
from allranks.core.model import Plan, Pod
from allranks.core.rules import Act, Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot
from allranks.core.sync import plan_objects

CLEANUP_GRACE = timedelta(seconds=10)
"""Time for peers to end by themselves after success: rank 0 often finishes a moment before the others."""


def expire(snapshot: Snapshot) -> Outcome:
    """Deletes the job after ttlSecondsAfterFinished."""
    o = snapshot.observed
    ttl = o.job.spec.ttl_seconds_after_finished
    if ttl is None:
        return None
    expires = (o.status.completion_time or o.now) + timedelta(seconds=ttl)
    return Act(Plan(delete_job=True)) if o.now >= expires else WaitUntil(expires)


def record_outcomes(snapshot: Snapshot) -> Outcome:
    """Persists how pods ended before they are deleted."""
    summary = snapshot.final_summary
    return write(summary) if _outcomes(summary) != _outcomes(snapshot.observed.status) else None


def _outcomes(status: Status) -> dict[str, tuple[int, int]]:
    return {role: (of.succeeded, of.failed) for role, of in status.roles.items()}


def clean_up(snapshot: Snapshot) -> Plan:
    """Deletes pods as `cleanPodPolicy` says."""
    job, status, now = snapshot.observed.job, snapshot.observed.status, snapshot.observed.now
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
    return plan_objects(snapshot, snapshot.final_summary, delete=[*delete, *snapshot.outdated], wake_at=wake_at)
