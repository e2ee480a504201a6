"""The policy `utilization`: whether it suspends a job (`rules/utilization.py` decides)."""

from __future__ import annotations

from dataclasses import replace

from allranks.api.status import WITHOUT_PODS, Status
from allranks.core.facts.model import Plan
from allranks.core.snapshot import Snapshot


def suspends(status: Status) -> bool:
    """Whether the current attempt is to be suspended. One that is resumed begins with a new attempt."""
    return status.utilization is not None and status.utilization.suspend_attempt == status.attempt


def with_suspension(snapshot: Snapshot, plan: Plan) -> Plan:
    """Suspend a job whose suspension the persisted status has decided."""
    if not suspends(snapshot.persisted) or plan.decided or snapshot.observed.job.spec.suspend:
        return plan
    return replace(plan, suspend_job=snapshot.persisted.phase not in WITHOUT_PODS)
