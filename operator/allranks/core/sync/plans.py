"""What the stages share in which no rule decides: their plan, and the GPUs of pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from allranks.api.job import Job
from allranks.api.status import PastAttempt, Status
from allranks.core.facts import pod_template, pool_template
from allranks.core.facts.attempt_pods import last_attempt_of
from allranks.core.facts.model import ANY_PLATFORM, Event, Manifest, Plan, Pod, PodRef
from allranks.core.snapshot import Snapshot


def plan_objects(
    snapshot: Snapshot,
    status: Status,
    create: Iterable[Manifest] = (),
    delete: Iterable[Pod] = (),
    events: Iterable[Event] = (),
    wake_at: datetime | None = None,
) -> Plan:
    """Return a plan that need not be written ahead. Pods that are already being deleted are not deleted again."""
    return Plan(
        next=status if status != snapshot.current else None,
        create=tuple(create),
        delete=tuple(_references(snapshot, [pod for pod in delete if pod.deleted_at is None])),
        events=tuple(events),
        wake_at=wake_at,
    )


def _references(snapshot: Snapshot, pods: Sequence[Pod]) -> Iterator[PodRef]:
    """Yield the pods to delete."""
    shorter = shorter_grace(snapshot, pods)
    for pod in pods:
        yield PodRef(pod.name, pod.uid, shorter.get((pod.attempt, pod.role)))


def shorter_grace(snapshot: Snapshot, pods: Iterable[Pod]) -> dict[tuple[int, str], int]:
    """Return (attempt, role) -> seconds, where `restart.graceSeconds` applies instead of the grace period of the pods:
    to pods whose last attempt a failure has ended."""
    o = snapshot.observed
    failed = {past.attempt for past in o.current.history if not left_time(past)}
    attempts = {attempt for attempt in {pod.attempt for pod in pods} if last_attempt_of(o.current, attempt) in failed}
    if not attempts:
        return {}
    platform = ANY_PLATFORM if pool_template.unavailable(o.job, o.platform) else o.platform
    grace = grace_of_failures(o.job)
    templates = pod_template.role_templates(o.job, platform)
    roles = [role for role, template in templates.items() if grace < pod_template.grace_period(template)]
    return {(attempt, role): grace for attempt in attempts for role in roles}


def left_time(past: PastAttempt) -> bool:
    """Return whether the processes of an attempt had their whole grace period when it ended."""
    return past.failure is None or past.failure.reason in LEAVES_TIME


def grace_of_failures(job: Job) -> int:
    return GRACE_SECONDS if job.spec.restart.grace_seconds is None else job.spec.restart.grace_seconds


GRACE_SECONDS = 30
"""The default of `restart.graceSeconds`."""
LEAVES_TIME = frozenset({"Preempted", "Evicted", "Deleted", "Disrupted"})
"""Reasons of failures that leave the pod its grace period: all ranks can store a checkpoint together."""

DELETION_REFUSED = "DeletionRefused"
"""Reason of a condition: pods that should be gone still run."""


def gpus_of(snapshot: Snapshot, pods: Iterable[Pod]) -> int:
    """Return the number of GPUs of the pods that have not ended."""
    o, counts = snapshot.observed, Counter(pod.role for pod in pods if not pod.ended)
    if not counts:
        return 0
    if pool_template.unavailable(o.job, o.platform):  # it was changed or deleted meanwhile
        return o.current.hold.gpus if o.current.hold else 0
    templates = pod_template.role_templates(o.job, o.platform)
    return sum(pod_template.gpus(o.job, role, templates[role], o.platform) * count for role, count in counts.items())
