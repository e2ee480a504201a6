"""Notifications of the end of a sweep: an outbox in `status.notifications`, as that of a job (`core.accounting`).

An entry is `Succeeded oncall`, and is added in the write with which the sweep ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from allranks.api.notify import Notification, SweepNotification, Target
from allranks.api.sweep_status import SweepStatus
from allranks.core.accounting import notifications
from allranks.core.sweeps.model import SweepObserved, SweepPlan


def with_outbox(observed: SweepObserved, plan: SweepPlan) -> SweepPlan:
    """The plan with a status that has the entries for the end of the sweep, and the results of deliveries."""
    before = observed.status
    after = plan.status or before
    if not (observed.notifies or before.notifications):
        return plan
    entries, events = notifications.with_results(before.notifications, observed.notified)
    if observed.notifies and after.finished and not before.finished:
        entries += [f"{after.phase} {receiver}" for receiver in _subscribers(observed, after.phase)]
    entries = notifications.bounded(entries)
    if entries == after.notifications:
        return plan
    status = SweepStatus(**{**dict(after), "notifications": entries})
    return replace(plan, status=status, events=(*plan.events, *events))


def targets(observed: SweepObserved) -> dict[str, Target]:
    """Name of the receiver -> entry of the sweep or the pool of its trials."""
    return dict(_named_notifications(observed))


def _subscribers(observed: SweepObserved, phase: str) -> list[str]:
    """The receivers of the sweep, of its pool, and those that are notified about every job, each once."""
    found = [name for name, one in _named_notifications(observed) if phase in one.occasions]
    return list(dict.fromkeys([*found, *observed.notifies.get(phase, ())]))


def _named_notifications(observed: SweepObserved) -> Iterator[tuple[str, SweepNotification | Notification]]:
    """(name of the receiver, entry of the sweep or its pool)"""
    yield from notifications.named("", observed.sweep.spec.notify or ())
    yield from notifications.named("p", observed.pool_notify)
