"""Causes that show only later.

When a node's power goes, its peers fail within a second for want of their connections, and are blamed: Kubernetes
finds the node to be lost a minute later. By then the next attempt runs, and the pod that was on the node is still
there: it was deleted with its attempt, and nobody confirms it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import Failure, Status
from allranks.core import failures, policies, topology
from allranks.core.failures import UNCOUNTED
from allranks.core.model import Platform, Pod

NOTICED_WITHIN = timedelta(minutes=3)
"""Kubernetes finds a node to be lost 40 to 50 seconds after its last word; from then on pods bear it as long as they
tolerate. What is lost later than this and that was not yet lost when the attempt ended."""


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
        latest = past.end_time + NOTICED_WITHIN + timedelta(seconds=platform.node_lost_seconds or 0)
        for replica in topology.replicas(job, status.model_copy(update={"attempt": past.attempt})):
            # What restarts alone had its own failures, each told when it came.
            pod = lost.get(replica.hostname)
            if pod and _known_at(pod) <= latest and policies.scope(job, replica.role) == "group":
                # Labels prove nothing.
                was = replace(pod, role=replica.role, index=replica.index, attempt=past.attempt)
                return failures.of_lost(job, status, was, now, platform)
    return None


def _known_at(pod: Pod) -> datetime:
    assert pod.disruption is not None
    return pod.disruption.at


def counts(job: Job, found: Failure) -> bool | None:
    """Whether an attempt that ended for it counts; None where a rule would not have restarted the job at all."""
    action, _ = policies.by_rules(job.spec.restart.rules or [], found) or ("restartUncounted", "")
    return {"restart": True, "restartUncounted": False}.get(action)
