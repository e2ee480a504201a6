"""The checkpoints of a job in its status: from its directory, as a rank lists it, and from reports."""

from __future__ import annotations

from dataclasses import replace

from allranks.api.job import Job
from allranks.api.status import Rollback, Status, StoredCheckpoint
from allranks.core.facts import resume_source
from allranks.core.facts.rank_reports import Reports

MOST = 5
FIRST_INTERVAL_SECONDS = 600.0
"""Interval of `everySeconds: Auto` until a save is measured: a failure costs ten minutes at most, and a save of half a
minute 5 %."""


def observe(status: Status, reports: Reports | None) -> Status:
    """Update `status.checkpoints`; return the same object if nothing changed.

    A list of the directory replaces what is there. A checkpoint that a rank has reported is added if it is newer than
    the list.
    """
    progress = status.progress
    listed = reports.checkpoints if reports and reports.checkpoints is not None else status.checkpoints
    checkpoints = list(listed or status.checkpoints)
    if progress and progress.checkpoint_step is not None and progress.checkpoint_time:
        last = max((checkpoint.time for checkpoint in checkpoints), default=None)
        listed_steps = {checkpoint.step for checkpoint in checkpoints}
        if progress.checkpoint_step not in listed_steps and (last is None or progress.checkpoint_time > last):
            reported = StoredCheckpoint(step=progress.checkpoint_step, time=progress.checkpoint_time)
            checkpoints = sorted([*checkpoints, reported], key=lambda checkpoint: checkpoint.step)
    checkpoints = checkpoints[-MOST:]
    return status if checkpoints == status.checkpoints else replace(status, checkpoints=checkpoints)


def newest(reports: Reports | None) -> StoredCheckpoint | None:
    """Return the newest checkpoint in the directory, as a rank of this attempt has listed it: that is what the program
    reads. None if none did."""
    listed = reports.checkpoints if reports else None
    return listed[-1] if listed else None


def resumes(status: Status) -> StoredCheckpoint | None:
    """Return the checkpoint that `resume_from()` of the report library returns when the program starts again.

    None if the newest ones do not show it: an older one may be complete.
    """
    usable = [
        stored for stored in status.checkpoints if stored.path and False not in (stored.complete, stored.verified)
    ]
    complete = [stored for stored in usable if stored.complete]
    if not complete and len(status.checkpoints) == MOST:
        return None
    limit = status.rollback.step if status.rollback and status.running_time is None else None
    within = [stored for stored in complete or usable if limit is None or stored.step <= limit]
    return within[-1] if within else None


def before(job: Job, status: Status, step: int) -> StoredCheckpoint | None:
    """Return the newest checkpoint in the directory that is older than the one of `step`, and not recorded as damaged.

    None if the directory ends with its pod.
    """
    if not resume_source.shared(job.spec.checkpoint):
        return None
    older = [
        checkpoint
        for checkpoint in status.checkpoints
        if checkpoint.path and checkpoint.step < step and False not in (checkpoint.complete, checkpoint.verified)
    ]
    return older[-1] if older else None


def aside_name(job: Job, rollback: Rollback) -> str:
    """Return the name of the folder for the checkpoint that is set aside: jobs one after another may share a claim."""
    return f"{job.name}-{job.metadata.uid[:8]}-attempt-{rollback.attempt}"
