"""Fails a job whose pods cannot start because of an image, their configuration, or their volumes."""

from __future__ import annotations

from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core import naming, root_cause, transitions
from allranks.core.model import Event, Pod
from allranks.core.rules import Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot


def startup_failure(snapshot: Snapshot) -> Outcome:
    """Applies startupDeadlineSeconds to pods with a start error, until all ranks of the job have run once.

    The same images and volumes worked then. What keeps a replaced pod from starting, as a registry that is away, ends
    without a change by the user: the job waits, and the condition names the pod.
    """
    job, status, now = snapshot.observed.job, snapshot.observed.status, snapshot.observed.now
    if status.ever_ran:
        return None
    deadlines = [(pod, startup_deadline(job, status, pod) or now) for pod in snapshot.start_errors]
    overdue = next((pod for pod, deadline in deadlines if deadline <= now), None)
    if overdue is None:
        return WaitUntil(min(deadline for _, deadline in deadlines)) if deadlines else None
    message = f"{overdue.name}: {overdue.waiting_text}"
    failure = root_cause.start_error(job, status, overdue, now, snapshot.observed.platform)
    failed = transitions.fail(job, snapshot.summary, failure.reason, message, now, failure)
    return write(failed, Event(overdue.start_error, message, warning=True))


def startup_deadline(job: Job, status: Status, pod: Pod) -> datetime | None:
    """End of startupDeadlineSeconds for this pod, counted from its assignment to a node: an unscheduled pod does not
    pull its image."""
    alone = status.replica_restarts.get(naming.replica_key(pod.role, pod.index))
    begun = (alone.restart_time if alone else status.restart_time) or status.attempt_time
    placed = max([moment for moment in (begun, pod.placed_at) if moment], default=None)
    return placed + timedelta(seconds=job.spec.startup_deadline_seconds) if placed else None
