"""Causes that show only later.

When a node's power goes, its peers fail within a second for want of their connections, and are blamed: Kubernetes
finds the node to be lost a minute later. By then the next attempt runs, and the pod that was on the node is still
there: it was deleted with its attempt, and nobody confirms it.

A rank that is killed, and a peer that fails for want of it, end within a second as well, and the peer's launcher may be
the quicker one. How the other pod ended shows while it is being deleted, and its launcher's report says when.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import Failure, Status
from allranks.core import restart_policy, root_cause, topology
from allranks.core.model import Platform, Pod
from allranks.core.root_cause import UNCOUNTED

NOTICED_WITHIN = timedelta(minutes=3)
"""Kubernetes finds a node to be lost 40 to 50 seconds after its last word, and marks a pod when that has tolerated it
for `node_lost_seconds`. A node that is marked later than both together was still there when the attempt ended."""


def cause(job: Job, status: Status, pods: Iterable[Pod], now: datetime, platform: Platform) -> Failure | None:
    """The earlier failure, or the loss of a node, for which a past attempt failed though another rank was blamed.

    `pods`: those that are left of past attempts.
    """
    left = {pod.name: pod for pod in pods if pod.exit or root_cause.node_lost_at(pod)}
    if not left:
        return None
    for past in status.history:
        if not past.counted or past.reason in UNCOUNTED:
            continue
        then = status.model_copy(update={"attempt": past.attempt})
        # Labels prove nothing. What restarts alone had its own failures, each told when it came.
        of_then = [
            replace(left[replica.hostname], role=replica.role, index=replica.index, attempt=past.attempt)
            for replica in topology.replicas(job, then)
            if replica.hostname in left and restart_policy.scope(job, replica.role, replica.index) == "group"
        ]
        latest = past.end_time + NOTICED_WITHIN + timedelta(seconds=platform.node_lost_seconds or 0)
        for pod in of_then:
            lost_at = root_cause.node_lost_at(pod)
            if lost_at and lost_at <= latest:
                return root_cause.of_lost(job, status, pod, now, platform)
        earliest = past.failure
        for pod in of_then:
            if earliest:
                earliest = root_cause.before(job, status, earliest, pod, now, platform) or earliest
        if earliest is not past.failure:
            return earliest
    return None


def counts(job: Job, found: Failure) -> bool | None:
    """Whether an attempt that ended for it counts; None where a rule would not have restarted the job at all."""
    by_default = "restartUncounted" if found.reason in UNCOUNTED else "restart"
    action, _ = restart_policy.by_rules(job.spec.restart.rules or [], found) or (by_default, "")
    return {"restart": True, "restartUncounted": False}.get(action)
