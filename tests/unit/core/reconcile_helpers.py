"""Shared by the tests of `reconcile`."""

from __future__ import annotations

from allranks.core.facts.model import Plan
from support.builders import Life

GROUP = {"roles": {"master": 1, "worker": 2}}
PS_JOB = {"framework": "tensorflow", "roles": {"chief": 1, "worker": 1, "ps": 2}}
ALL = ["job-master-0-0", "job-worker-0-0", "job-worker-1-0"]


def names(plan: Plan) -> list[str]:
    return [f"{made['kind']} {made['metadata']['name']}" for made in plan.create]


def condition(life: Life, kind: str) -> tuple[str, str, str]:
    found = life.status.condition(kind)
    assert found is not None
    return found.status, found.reason, found.message
