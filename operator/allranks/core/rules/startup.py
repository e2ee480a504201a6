"""Fails a job whose pods cannot start because of their image or configuration."""

from __future__ import annotations

from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core import naming, root_cause, transitions
from allranks.core.model import Event, Pod
from allranks.core.rules import Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot


def startup_failure(snapshot: Snapshot) -> Outcome:
    """Applies startupDeadlineSeconds to pods with a start error."""
    job, status, now = snapshot.observed.job, snapshot.observed.status, snapshot.observed.now
    deadlines = [(pod, startup_deadline(job, status, pod) or now) for pod in snapshot.start_errors]
    overdue = next((pod for pod, deadline in deadlines if deadline <= now), None)
    if overdue is None:
        return WaitUntil(min(deadline for _, deadline in deadlines)) if deadlines else None
    message = f"{overdue.name}: {overdue.waiting_message or overdue.waiting_reason}"
    failure = root_cause.start_error(job, status, overdue, now, snapshot.observed.platform)
    failed = transitions.fail(job, snapshot.summary, failure.reason, message, now, failure)
    return write(failed, Event(overdue.waiting_reason, message, warning=True))


def startup_deadline(job: Job, status: Status, pod: Pod) -> datetime | None:
    """End of startupDeadlineSeconds for this pod, counted from its assignment to a node: an unscheduled pod does not
    pull its image."""
    alone = status.replica_restarts.get(naming.replica_key(pod.role, pod.index))
    begun = (alone.restart_time if alone else status.restart_time) or status.attempt_time
    placed = max([moment for moment in (begun, pod.placed_at) if moment], default=None)
    return placed + timedelta(seconds=job.spec.startup_deadline_seconds) if placed else None
