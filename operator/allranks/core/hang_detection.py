"""When a job counts as stuck: no rank has made a step for `hang.timeoutSeconds`, though one has made a first step.

Its ranks are then asked for the stacks of their threads, and have a moment to print them before the rule applies.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import Failure, Status
from allranks.core import restart_policy
from allranks.core.progress import RankReport, Reports, name

REASON = "Hang"
STACKS = timedelta(seconds=10)
"""From the question to the answer: ranks ask for it with their next report, within 5 s."""
_JITTER = timedelta(seconds=2)
"""Ranks say how long ago something was."""
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Watch:
    """Of an attempt whose ranks report."""

    moved_at: datetime
    """The last step, or what stands for it."""
    since: datetime
    """Nothing has moved since then, as far as somebody has listened."""
    stuck_at: datetime
    """From then on ranks are asked for their stacks."""
    due_at: datetime
    """And then it is a failure."""
    question: str
    """Another one for another silence, the same for another operator."""


def watch(job: Job, status: Status, reports: Reports | None) -> Watch | None:
    """None where there is nothing to wait for: no `hang`, no first step yet that was due, or all ranks are done."""
    if job.spec.hang is None or reports is None or status.attempt_time is None or not reports.ranks:
        return None
    waited_for = [rank for rank in reports.ranks if not rank.done]
    if not waited_for:
        return None
    first = status.progress.first_step_time if status.progress else None
    if first:
        moves = [rank.stepped_at for rank in reports.ranks if rank.stepped_at]
        moved_at = max([first, *moves])
        limit = timedelta(seconds=job.spec.hang.timeout_seconds)
    elif status.running_time:
        # Importing, reading data, meeting the others: there are no steps to tell a slow start from a stuck one.
        moved_at = status.running_time
        limit = timedelta(seconds=job.spec.startup_deadline_seconds)
    else:
        return None
    since = max(moved_at, reports.since)
    question = f"{status.attempt}-{max(rank.step or 0 for rank in reports.ranks)}"
    return Watch(moved_at, since, since + limit, since + limit + STACKS, question)


def failure(job: Job, status: Status, reports: Reports, watched: Watch, now: datetime) -> Failure:
    """What is told of it: the rank that lags most is named, and the others with their steps."""
    lagging = _lagging(reports)
    first = lagging[0]
    began = status.running_time or status.attempt_time or now
    return Failure(
        attempt=status.attempt,
        role=first.role,
        index=first.index,
        rank=first.rank,
        pod=first.pod,
        node=first.node,
        reason=REASON,
        message=_message(job, reports, lagging, watched),
        time=watched.moved_at,
        ran_seconds=max(0.0, (now - began).total_seconds()),
    )


def rule_on(job: Job, status: Status, failure: Failure) -> restart_policy.Ruling:
    """The user's rules for reason Hang, then `hang.action`."""
    assert job.spec.hang
    why = f"no progress for {job.spec.hang.timeout_seconds} s (hang.timeoutSeconds)"
    action, reason = restart_policy.by_rules(job.spec.restart.rules or [], failure) or (job.spec.hang.action, why)
    return restart_policy.within_budget(job, status, failure, action, reason)


def told(status: Status, watched: Watch) -> bool:
    """With action `ignore`: this silence is on record already."""
    last = status.last_failure
    return last is not None and last.reason == REASON and last.time >= watched.moved_at - _JITTER


def _lagging(reports: Reports) -> list[RankReport]:
    """Those that did not get as far as the others; where all did equally many steps, those that are still at their own
    work while the others wait for them, where programs tell that; else all."""
    there = [rank for rank in reports.ranks if not rank.done]
    least = min(rank.step or 0 for rank in there)
    behind = [rank for rank in there if (rank.step or 0) == least]
    if len(behind) == len(there) and any(rank.waiting for rank in there):
        behind = [rank for rank in there if not rank.waiting] or there
    return sorted(behind, key=lambda r: (r.rank is None, r.rank or 0, r.role, r.index, r.local_rank))


def _message(job: Job, reports: Reports, lagging: list[RankReport], watched: Watch) -> str:
    named = ", ".join(name(rank) for rank in lagging[:_NAMED])
    if len(lagging) > _NAMED:
        named += f" and {len(lagging) - _NAMED} more"
    there = [rank for rank in reports.ranks if not rank.done]
    furthest = max(rank.step or 0 for rank in reports.ranks)
    if all(rank.step is None for rank in there):
        limit = job.spec.startup_deadline_seconds
        return f"no rank has made a first step within {limit} s (startupDeadlineSeconds); ranks that report: {named}"
    silent = f"no rank has made a step since {watched.moved_at:%H:%M:%S} UTC"
    if (lagging[0].step or 0) < furthest:
        return f"{silent}: {named} at step {lagging[0].step or 0}, the others at {furthest}"
    if len(lagging) == len(there):
        return f"{silent}: all {len(there)} ranks are at step {furthest}, and who holds them up is in their stacks"
    return f"{silent}: {named} did not come out of step {furthest + 1}, for which the others wait"
