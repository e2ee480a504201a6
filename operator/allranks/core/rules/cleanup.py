"""Finished jobs: records the outcome of the pods, and deletes the job after its TTL."""

from __future__ import annotations

from datetime import timedelta

from allranks.api.status import Status
from allranks.core.facts.model import Plan
from allranks.core.outcomes import Act, Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot


def expire(snapshot: Snapshot) -> Outcome:
    """Deletes the job after ttlSecondsAfterFinished."""
    o = snapshot.observed
    ttl = o.job.spec.ttl_seconds_after_finished
    if ttl is None or any(output.state == "Uploading" for output in o.current.outputs):
        return None
    expires = (o.current.completion_time or o.now) + timedelta(seconds=ttl)
    return Act(Plan(delete_job=True)) if o.now >= expires else WaitUntil(expires)


def record_outcomes(snapshot: Snapshot) -> Outcome:
    """Persists how pods ended before they are deleted."""
    summary = snapshot.summarised_at_end
    return write(summary) if _outcomes(summary) != _outcomes(snapshot.current) else None


def _outcomes(status: Status) -> dict[str, tuple[int, int]]:
    return {role: (of.succeeded, of.failed) for role, of in status.roles.items()}
