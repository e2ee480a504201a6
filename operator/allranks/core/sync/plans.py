"""The plan of a stage in which no rule decides."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from allranks.api.status import Status
from allranks.core.facts.model import Event, Manifest, Plan, Pod, PodRef
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
        delete=tuple(PodRef(pod.name, pod.uid) for pod in delete if pod.deleted_at is None),
        events=tuple(events),
        wake_at=wake_at,
    )


DELETION_REFUSED = "DeletionRefused"
"""Reason of a condition: pods that should be gone still run."""
