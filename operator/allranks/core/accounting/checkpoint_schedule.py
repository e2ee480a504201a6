"""Decides after which step the next checkpoint is stored, for `checkpoint.everySeconds`.

All ranks must store it after the same step, and each learns of it with the answer to one of its reports. So the step is
chosen in advance, it counts only when every rank has confirmed that it has received it, and it does not change after
that. The decision is persisted before it is in any answer.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime

from allranks.api.job import Job
from allranks.api.status import FINISHED, WITHOUT_PODS, CheckpointSchedule, ProgressStatus, Status
from allranks.core.accounting import time_accounting
from allranks.core.facts import stored_checkpoints
from allranks.core.facts.model import Observed, Plan
from allranks.core.facts.rank_reports import CheckpointDue, RankReport, Reports
from allranks.core.snapshot import Snapshot

FAULT_SECONDS = 86_400.0
"""Running time between two failures of a job that has had none in a day: Auto counts one failure a day in advance."""
SHORTEST, LONGEST = 60.0, 6 * 3600.0
"""Bounds of Auto."""
ROUNDS = 3
"""Reports of a rank between the confirmation of all ranks and the step: one may be lost, and one be late."""


def with_schedule(o: Observed) -> Observed:
    """Add the schedule to the current status."""
    checkpoint, status = o.job.spec.checkpoint, o.current
    every = checkpoint.every_seconds if checkpoint else None
    if every is None:
        return o.with_current(replace(status, checkpoint_schedule=None)) if status.checkpoint_schedule else o
    if o.reports is None or status.progress is None or status.phase in WITHOUT_PODS or o.persisted.phase in FINISHED:
        return o
    schedule = _next(o.job, status, status.progress, o.reports, o.now)
    if schedule == status.checkpoint_schedule:
        return o
    return o.with_current(replace(status, checkpoint_schedule=schedule))


def with_due(snapshot: Snapshot, plan: Plan) -> Plan:
    """Pass the step of the persisted status on to the ranks."""
    schedule = snapshot.persisted.checkpoint_schedule
    if schedule is None or schedule.step is None:
        return plan
    return replace(plan, checkpoint_due=CheckpointDue(schedule.step, bool(schedule.agreed)))


def _next(
    job: Job, status: Status, progress: ProgressStatus, reports: Reports, now: datetime
) -> CheckpointSchedule | None:
    schedule = status.checkpoint_schedule
    asking = [rank for rank in reports.ranks if rank.due_step is not None]
    step = max((rank.step for rank in reports.ranks if rank.step is not None), default=None)
    paces = [rank.step_seconds for rank in reports.ranks if rank.step_seconds and not rank.done]
    if step is None or not paces or all(rank.done for rank in asking):
        return schedule
    margin = math.ceil(ROUNDS * reports.interval / min(paces))
    if schedule is not None and schedule.step is not None:
        if schedule.agreed and not (_passed(schedule.step, asking) and _is_over(schedule, progress, step, min(paces))):
            return schedule
        if not schedule.agreed and step + margin <= schedule.step:
            confirmed = len(asking) >= (schedule.ranks or 0) and all(_confirms(rank, schedule.step) for rank in asking)
            return replace(schedule, agreed=True) if confirmed else schedule
    save_seconds = _save_seconds(schedule, asking)
    interval, fault_seconds = interval_of(job, status, save_seconds, now)
    since = max(filter(None, (progress.checkpoint_time, progress.first_step_time)), default=now)
    left = interval - (now - since).total_seconds()
    return CheckpointSchedule(
        interval_seconds=interval,
        save_seconds=save_seconds,
        fault_seconds=fault_seconds,
        step=step + max(2 * margin, math.ceil(left / min(paces))),
        ranks=len(asking),
    )


def _confirms(rank: RankReport, step: int) -> bool:
    return rank.done or rank.due_step == step


def _passed(step: int, asking: list[RankReport]) -> bool:
    """Return whether all ranks have made the step: one that is behind would miss it if the next one were announced."""
    return all(rank.done or rank.step is None or rank.step >= step for rank in asking)


def _is_over(schedule: CheckpointSchedule, progress: ProgressStatus, step: int, pace: float) -> bool:
    """Return whether the checkpoint is stored, or none was stored for a whole interval after its step."""
    assert schedule.step is not None
    if progress.checkpoint_step is not None and progress.checkpoint_step >= schedule.step:
        return True
    return (step - schedule.step) * pace >= (schedule.interval_seconds or 0.0) and step > schedule.step


def _save_seconds(schedule: CheckpointSchedule | None, asking: list[RankReport]) -> float | None:
    """Return the longest pause of a rank for its newest checkpoint; the recorded one if no rank has measured it."""
    measured = [rank.save_seconds for rank in asking if rank.save_seconds is not None]
    return round(max(measured), 3) if measured else schedule.save_seconds if schedule else None


def interval_of(job: Job, status: Status, save_seconds: float | None, now: datetime) -> tuple[float, float | None]:
    """Return the seconds between two checkpoints, and for Auto the estimated seconds between two failures.

    Daly's interval (J. T. Daly, Future Generation Computer Systems 22 (2006)): checkpoints and the work that failures
    discard cost the least time together.
    """
    assert job.spec.checkpoint
    every = job.spec.checkpoint.every_seconds
    if isinstance(every, int):
        return float(every), None
    times = time_accounting.up_to(status, now)
    running = times.starting + times.productive + times.lost if times else 0.0
    failures = status.restarts.counted + status.restarts.disruptions
    fault_seconds = float(round((running + FAULT_SECONDS) / (failures + 1)))
    if save_seconds is None:
        return stored_checkpoints.FIRST_INTERVAL_SECONDS, fault_seconds
    best = fault_seconds
    if save_seconds < fault_seconds / 2:
        best = math.sqrt(2 * save_seconds * fault_seconds) - save_seconds
    return float(round(min(max(best, SHORTEST), LONGEST))), fault_seconds
