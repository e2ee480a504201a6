"""Condition `CheckpointOverdue`: a job that has stored checkpoints, or shall store them, has stored none for long.

A failure would lose the work of several intervals. Nothing is said of a job without checkpoints.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from operator import itemgetter
from typing import Literal

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.diagnosis import report_loss
from allranks.core.facts.model import Observed
from allranks.core.facts.status_summary import with_condition
from allranks.core.facts.stored_checkpoints import FIRST_INTERVAL_SECONDS
from allranks.text import human_duration

CONDITION: Literal["CheckpointOverdue"] = "CheckpointOverdue"
INTERVALS = 3
"""Intervals without a checkpoint after which one is overdue."""
FEWEST = 3
"""Checkpoints that show how often a program stores one."""
_SHORTEST = timedelta(seconds=60)
"""Shorter intervals count as this one."""
_LISTENS = timedelta(seconds=60)
"""A new operator has received the newest reports after this time."""


def with_overdue(o: Observed) -> Observed:
    """Say in the current status whether a checkpoint is overdue."""
    status, before = o.current, o.current.condition(CONDITION)
    lost = status.condition(report_loss.CONDITION)
    if status.phase != "Running" or o.reports is None or (lost and lost.status == "True"):
        return o
    due = due_at(o)
    if due is None or o.now < due or o.now < o.reports.since + _LISTENS:
        if before is None or before.status != "True" or (due is not None and o.now >= due):
            return o
        return o.with_current(with_condition(status, CONDITION, False, "NotOverdue", "", o.now))
    if before is not None and before.status == "True":
        return o
    return o.with_current(with_condition(status, CONDITION, True, "NoCheckpoint", _message(o.job, status), o.now))


def due_at(o: Observed) -> datetime | None:
    """Return when a checkpoint is overdue if none is stored until then; None if none is expected."""
    status, progress = o.current, o.current.progress
    began = (progress and progress.first_step_time) or status.running_time
    interval = _interval(o.job, status)
    if status.phase != "Running" or progress is None or began is None or interval is None:
        return None
    newest = _newest(status)
    if newest and progress.step is not None and newest[1] is not None and newest[1] >= progress.step:
        return None  # there is nothing to lose
    return max(began, newest[0] if newest else began) + INTERVALS * max(interval, _SHORTEST)


def wakes_at(o: Observed) -> datetime | None:
    """Return when the condition becomes True, if that is in the future."""
    due = due_at(o)
    return due if due and due > o.now else None


def _newest(status: Status) -> tuple[datetime, int | None] | None:
    """Return (time, step) of the newest checkpoint."""
    times: list[tuple[datetime, int | None]] = [(stored.time, stored.step) for stored in status.checkpoints]
    if status.progress and status.progress.checkpoint_time:
        times.append((status.progress.checkpoint_time, status.progress.checkpoint_step))
    return max(times, key=itemgetter(0), default=None)


def _interval(job: Job, status: Status) -> timedelta | None:
    """Return how often checkpoints are due, or the longest time between the newest ones; None if it is unknown."""
    every = job.spec.checkpoint.every_seconds if job.spec.checkpoint else None
    if every is not None:
        scheduled = status.checkpoint_schedule and status.checkpoint_schedule.interval_seconds
        return timedelta(seconds=scheduled or (FIRST_INTERVAL_SECONDS if every == "Auto" else every))
    times = sorted(stored.time for stored in status.checkpoints)
    return max(later - earlier for earlier, later in pairwise(times)) if len(times) >= FEWEST else None


def _message(job: Job, status: Status) -> str:
    newest, interval = _newest(status), _interval(job, status)
    assert interval is not None
    step = f", of step {newest[1]}" if newest and newest[1] is not None else ""
    since = f"since {newest[0]:%Y-%m-%dT%H:%M:%SZ}{step}" if newest else "yet"
    every = human_duration(interval.total_seconds())
    scheduled = job.spec.checkpoint is not None and job.spec.checkpoint.every_seconds is not None
    often = f"one is due every {every}" if scheduled else f"the newest ones are at most {every} apart"
    return f"no checkpoint was stored {since}, although {often}: a failure loses the work since then"
