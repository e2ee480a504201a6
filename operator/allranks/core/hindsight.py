"""Causes that show only later.

When a node's power goes, its peers fail within a second for want of their connections, and are blamed: Kubernetes
finds the node to be lost a minute later. By then the next attempt runs, and the pod that was on the node is still
there: it was deleted with its attempt, and nobody confirms it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from allranks.api.job import Job
from allranks.api.status import Failure, Status
from allranks.core import failures, policies, topology
from allranks.core.failures import UNCOUNTED
from allranks.core.model import Platform, Pod


def cause(job: Job, status: Status, pods: Iterable[Pod], now: datetime, platform: Platform) -> Failure | None:
    """The loss of a node that explains why a past attempt failed, though another rank was blamed and it was counted.

    `pods`: those that are left of past attempts.
    """
    lost = {pod.name: pod for pod in pods if failures.lost_with_its_node(pod)}
    if not lost:
        return None
    for past in status.history:
        if not past.counted or past.reason in UNCOUNTED:
            continue
        for replica in topology.replicas(job, status.model_copy(update={"attempt": past.attempt})):
            # What restarts alone had its own failures, each told when it came.
            if replica.hostname in lost and policies.scope(job, replica.role) == "group":
                # Labels prove nothing.
                was = replace(lost[replica.hostname], role=replica.role, index=replica.index, attempt=past.attempt)
                return failures.of_lost(job, status, was, now, platform)
    return None


def counts(job: Job, found: Failure) -> bool | None:
    """Whether an attempt that ended for it counts; None where a rule would not have restarted the job at all."""
    action, _ = policies.by_rules(job.spec.restart.rules or [], found) or ("restartUncounted", "")
    return {"restart": True, "restartUncounted": False}.get(action)
