"""How urgent a new status is: which ones only tell what is seen, and may wait for more of it."""

from __future__ import annotations

from typing import Any

from allranks.api.status import FINISHED, Status
from allranks.core.model import Observed, Plan


def may_wait(observed: Observed, plan: Plan) -> bool:
    """Ranks end together, or nearly: success waits a moment for those that still run, and so does their ending after
    it, which is on record before they are cleaned up. Every other decision is written at once."""
    if observed.status.phase in FINISHED:
        return True
    assert plan.status is not None
    present = observed.status.attempt
    return plan.status.phase == "Succeeded" and any(
        pod.phase == "Running" and pod.attempt == present and not pod.termination_requested_at for pod in observed.pods
    )


def told(status: Status) -> Any:
    """All of a status but counts of pods, and that all of them were seen, which comes to the same a moment later."""
    conditions = [(c.type, c.status, "" if c.reason in _STARTING else c.reason) for c in status.conditions]
    counts = {"roles": {}, "ready": "", "launched": False, "selector": "", "conditions": []}
    return conditions, _without_progress(status.model_copy(update=counts))


def kind_of_time(status: Status) -> Any:
    """All of a status but progress, and seconds that anybody can add."""
    return status.times and status.times.state, _without_progress(status)


def _without_progress(status: Status) -> Status:
    return status.model_copy(update={"progress": None, "times": None, "goodput": None})


_STARTING = frozenset({"Created", "Resumed", "PodsPending"})
"""Reasons that say no more than that not all pods run yet."""
