"""The plan of a stage in which no rule decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from allranks.api.status import Status
from allranks.core.facts import pod_template, pool_template
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
    """Yield the pods to delete. `restart.graceSeconds` applies to pods whose attempt a failure has ended."""
    o = snapshot.observed
    failed = {past.attempt for past in o.current.history if past.failure and past.failure.reason not in LEAVES_TIME}
    shorter = dict[str, int]()
    if any(pod.attempt in failed for pod in pods):
        platform = ANY_PLATFORM if pool_template.unavailable(o.job, o.platform) else o.platform
        grace = GRACE_SECONDS if (seconds := o.job.spec.restart.grace_seconds) is None else seconds
        templates = pod_template.role_templates(o.job, platform)
        shorter = {role: grace for role, template in templates.items() if grace < pod_template.grace_period(template)}
    for pod in pods:
        yield PodRef(pod.name, pod.uid, shorter.get(pod.role) if pod.attempt in failed else None)


GRACE_SECONDS = 30
"""The default of `restart.graceSeconds`."""
LEAVES_TIME = frozenset({"Preempted", "Evicted", "Deleted", "Disrupted"})
"""Reasons of failures that leave the pod its grace period: all ranks can store a checkpoint together."""

DELETION_REFUSED = "DeletionRefused"
"""Reason of a condition: pods that should be gone still run."""
