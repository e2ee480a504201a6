"""The policy `utilization`: jobs that hold their pods without training enough (docs/guides/cost.md).

At the end of each `windowSeconds` outside the queue, the share of productive time is compared with the policy."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from allranks.api.cost import Utilization, UtilizationStatus
from allranks.api.job import Job
from allranks.api.status import WITHOUT_PODS, Status
from allranks.core.accounting import cost, time_accounting
from allranks.core.facts import pool_template, status_summary
from allranks.core.facts.model import Event, Plan, Platform
from allranks.core.facts.rank_reports import Reports
from allranks.core.outcomes import Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot

CONDITION: Literal["LowUtilization"] = "LowUtilization"
_STALLED = timedelta(seconds=60)
"""A job that reports no step for this long, and for ten times the duration of a step, does not train."""


def policy_of(job: Job, platform: Platform) -> Utilization | None:
    """Return the strictest policy of the pools, which replaces the policy of the job."""
    policies = [pool.utilization for pool in pool_template.pools_of(job, platform) if pool.utilization]
    return max(policies, key=_strictness, default=job.spec.utilization)


def _strictness(policy: Utilization) -> tuple[bool, int, int]:
    return policy.action == "Suspend", policy.min_productive_percent, -policy.window_seconds


def judge(snapshot: Snapshot) -> Outcome:
    """Set the condition at the end of a window, and decide whether the job is suspended."""
    o, status = snapshot.observed, snapshot.current
    policy, times = policy_of(o.job, o.platform), time_accounting.up_to(snapshot.current, o.now)
    if policy is None or times is None or times.category == "Queued" or suspends(status):
        return None
    window = status.utilization or UtilizationStatus()
    used = times.starting + times.productive + times.lost
    passed = used - window.used_seconds
    if passed < policy.window_seconds:
        return WaitUntil(o.now + timedelta(seconds=policy.window_seconds - passed))
    stalled = _stalled(o.reports, o.now) if times.measured and times.category == "Productive" else 0.0
    productive = max(0.0, times.productive - window.productive_seconds - stalled)
    low = productive * 100 < policy.min_productive_percent * passed
    suspend = low and policy.action == "Suspend" and not o.platform.local and not o.job.spec.suspend
    percent = min(100, int(productive / passed * 100))
    text = f"{percent}% of the last {passed / 60:.0f} minutes was productive"
    was_low = (before := status.condition(CONDITION)) is not None and before.status == "True"
    bound = f"at least {policy.min_productive_percent}% is required"
    message = f"{text}, {bound}{_price(snapshot)}{'; the job is suspended' if suspend else ''}" if low else text
    following = UtilizationStatus(
        used_seconds=round(used, 6),
        productive_seconds=round(times.productive, 6),
        suspend_attempt=status.attempt if suspend else None,
    )
    after = replace(status, utilization=following)
    if low or was_low:
        after = status_summary.with_condition(
            after, CONDITION, low, "Suspended" if suspend else CONDITION if low else "Productive", message, o.now
        )
    events = [Event(CONDITION, message, warning=True)] if low and (suspend or not was_low) else []
    return write(after, *events)


def _stalled(reports: Reports | None, now: datetime) -> float:
    """Return the seconds since the last step of any rank, if that is long ago: no time accounting has them yet."""
    ranks = [rank for rank in reports.ranks if not rank.done] if reports else []
    steps = [rank.stepped_at for rank in ranks if rank.stepped_at]
    if not steps:
        return 0.0
    least = max([_STALLED.total_seconds(), *(10 * rank.step_seconds for rank in ranks if rank.step_seconds)])
    seconds = (now - max(steps)).total_seconds()
    return seconds if seconds > least else 0.0


def _price(snapshot: Snapshot) -> str:
    used = cost.up_to(snapshot.current, snapshot.observed.now)
    return f"; {used.gpus} GPUs, {used.summary} so far" if used else ""


def suspends(status: Status) -> bool:
    """Return whether the current attempt is to be suspended. One that is resumed begins with a new attempt."""
    return status.utilization is not None and status.utilization.suspend_attempt == status.attempt


def with_suspension(snapshot: Snapshot, plan: Plan) -> Plan:
    """Suspend a job whose suspension the persisted status has decided."""
    if not suspends(snapshot.persisted) or plan.decided or snapshot.observed.job.spec.suspend:
        return plan
    return replace(plan, suspend_job=snapshot.persisted.phase not in WITHOUT_PODS)
