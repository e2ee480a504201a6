"""Notifications about a job: an outbox in `status.notifications`, whose entries a driver delivers.

An entry is added in the write of the status that it is about, so an operator that is killed finds it again. A delivery
may be repeated, with the same id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from allranks.api.job import Job
from allranks.api.notify import Notification, Target
from allranks.api.status import FINISHED, Status
from allranks.api.sweep import KIND as SWEEP
from allranks.core.diagnosis import hang_detection, stragglers
from allranks.core.facts import pool_template
from allranks.core.facts.model import Event, Plan, Platform
from allranks.core.snapshot import Snapshot

T = TypeVar("T", bound=Target)
MOST_ENTRIES = 12
SENT, FAILED = " sent", " failed"
WEBHOOK = "webhook-"
"""Receivers of a job or pool that are addresses are named by their place: webhook-0, of the pool webhook-p0."""


def with_outbox(snapshot: Snapshot, plan: Plan) -> Plan:
    """Add notifications about the changes of the plan, and the results of deliveries, to the status that it writes."""
    observed, before = snapshot.observed, snapshot.persisted
    after = plan.next or before
    if plan.delete_job or not (observed.platform.notifies or before.notifications):
        return plan
    entries, events = with_results(before.notifications, observed.notified)
    if plan.next is not None and observed.platform.notifies:
        for occasion in _occasions(before, after):
            kind = occasion.partition("/")[0]
            for receiver in subscribers(observed.job, observed.platform, kind):
                key = f"{occasion} {receiver}"
                if not any(entry == key or entry.startswith(f"{key} ") for entry in entries):
                    entries.append(key)
    entries = bounded(entries)
    if entries == after.notifications:
        return plan
    return replace(plan, next=replace(after, notifications=entries), events=(*plan.events, *events))


def pending(entries: Iterable[str]) -> list[str]:
    return [entry for entry in entries if not entry.endswith((SENT, FAILED))]


def subscribers(job: Job, platform: Platform, kind: str) -> list[str]:
    """Return the names of the receivers of the job, of its pools, and of all jobs.

    Receivers of the pools and of all jobs are notified of the end of a sweep, not of the end of each trial. A trial is
    a job that a sweep controls: anybody may set its label.
    """
    if kind in FINISHED and any(owner.controller and owner.kind == SWEEP for owner in job.metadata.owner_references):
        return [name for name, entry in named("", job.spec.notify or ()) if kind in entry.occasions]
    names = [name for name, entry in named_notifications(job, platform) if kind in entry.occasions]
    return list(dict.fromkeys([*names, *platform.notifies.get(kind, ())]))


def named_notifications(job: Job, platform: Platform) -> Iterator[tuple[str, Notification]]:
    """Yield (name of the receiver, entry of the job or its pools)."""
    yield from named("", job.spec.notify or ())
    yield from named("p", [entry for pool in pool_template.pools_of(job, platform) for entry in pool.notify or ()])


def named(prefix: str, listed: Iterable[T]) -> Iterator[tuple[str, T]]:
    for place, entry in enumerate(listed):
        yield entry.receiver or f"{WEBHOOK}{prefix}{place}", entry


def _occasions(before: Status, after: Status) -> Iterator[str]:
    if after.phase in FINISHED and before.phase not in FINISHED:
        yield f"{after.phase}/{after.attempt}"
    failure = after.last_failure
    hung = {hang_detection.REASON, hang_detection.NO_FIRST_STEP}
    if failure and failure != before.last_failure and failure.reason in hung:
        yield f"Hung/{failure.attempt}"
    recorded = {past.attempt for past in before.history}
    for past in after.history:
        if past.attempt not in recorded and (past.requeued or past.reason == "Preempted"):
            yield f"Preempted/{past.attempt}"
    if stragglers.newly_slow(before.progress, after.progress):
        yield f"Straggling/{after.attempt}"
    low, was = after.condition("LowUtilization"), before.condition("LowUtilization")
    if low and low.status == "True" and not (was and was.status == "True"):
        yield f"LowUtilization/{after.attempt}"


def with_results(entries: Iterable[str], notified: Mapping[str, str]) -> tuple[list[str], list[Event]]:
    """Return the entries with the results of their deliveries, and an Event for each that failed."""
    out, events = [], []
    for entry in entries:
        result = notified.get(entry, "")
        out.append(entry + result)
        if result == FAILED:
            occasion, _, receiver = entry.partition(" ")
            message = f"{occasion.partition('/')[0]} was not delivered to {receiver}: see the operator's log"
            events.append(Event("NotificationFailed", message, warning=True))
    return out, events


def bounded(entries: list[str]) -> list[str]:
    """Remove entries beyond MOST_ENTRIES: delivered ones are dropped first, the oldest before newer ones."""
    while len(entries) > MOST_ENTRIES:
        over = next((entry for entry in entries if entry.endswith((SENT, FAILED))), entries[0])
        entries.remove(over)
    return entries
