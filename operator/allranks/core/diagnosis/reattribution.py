"""Corrects the root cause of a past attempt when later evidence shows an earlier failure.

When a node loses power, its peers fail within a second because their connections break, and the first of them is
recorded as the root cause. Kubernetes detects the lost node a minute later. By then the next attempt runs, and the pod
on the lost node still exists: it was deleted with its attempt, but no kubelet confirms the deletion. A node that shuts
down, evicts a pod or reboots says so when the containers have ended, which may also be after the failure of a peer. So
does a kubelet that evicts a pod for a limit of its own. A kubelet may delete the pod as soon as it has said so, as
after a reboot: then the last state of the pod is the evidence.

A rank that is killed and a peer that fails because of it may also end within the same second, and the peer's launcher
may report first. The other pod's exit shows while it is being deleted, and its launcher's report has the exact time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import Failure, PastAttempt, Status
from allranks.core.diagnosis import restart_policy, root_cause
from allranks.core.facts import topology
from allranks.core.facts.attempt import Ranks
from allranks.core.facts.model import LIMIT_EXCEEDED, Platform, Pod
from allranks.core.facts.pod_template import longest_grace_period
from allranks.core.facts.status_update import changed

NODE_LOSS_DETECTION = timedelta(minutes=3)
"""Kubernetes declares a node lost 40 to 50 s after its last heartbeat, and marks a pod after its toleration of
`node_lost_seconds`. A node that is marked later than the sum of both was still healthy when the attempt ended."""


def cause(job: Job, status: Status, pods: Iterable[Pod], now: datetime, platform: Platform) -> Failure | None:
    """An earlier failure, or what happened to a node, that caused the end of a past attempt; None without new evidence.

    `pods` are pods of past attempts: those that remain, and the last states of those that are gone.
    """
    left = {pod.name: pod for pod in pods if _is_evidence(pod)}
    if not left:
        return None
    for past in status.history:
        if not past.counted or root_cause.is_uncounted(past.reason) or past.reason == LIMIT_EXCEEDED:
            continue
        then = changed(status, attempt=past.attempt)
        # Labels may have been edited. Replicas that restart individually had their own failures, recorded at the time.
        of_then = [
            replace(left[replica.hostname], role=replica.role, index=replica.index, attempt=past.attempt)
            for replica in topology.replicas(job, then)
            if replica.hostname in left and topology.scope(job, replica.role, replica.index) == "Group"
        ]
        for pod in of_then:
            failed_at = root_cause.node_failed_at(pod)
            if root_cause.exceeded_limit(pod) or (failed_at and failed_at <= _latest(job, past, pod, platform)):
                return root_cause.kubelet_failure(job, status, pod, now, platform)
        earliest, ranks = past.failure, Ranks(job, then, platform)
        for pod in of_then:
            if earliest:
                earliest = root_cause.earlier_failure(job, status, earliest, pod, now, ranks) or earliest
        if earliest is not past.failure:
            return earliest
    return None


def _latest(job: Job, past: PastAttempt, pod: Pod, platform: Platform) -> datetime:
    """The latest time of an event of the pod's node that can have caused the end of the attempt."""
    if past.failure and root_cause.ended_by_kubelet(pod):
        # The kubelet began at most a grace period before. Only then can a peer have failed because of it.
        return past.failure.time + timedelta(seconds=longest_grace_period(job)) + root_cause.SETTLING
    return past.end_time + NODE_LOSS_DETECTION + timedelta(seconds=platform.node_lost_seconds or 0)


def _is_evidence(pod: Pod) -> bool:
    return bool(pod.exit or root_cause.node_failed_at(pod) or root_cause.exceeded_limit(pod))


def counts(job: Job, found: Failure) -> bool | None:
    """Whether a restart for this failure counts; None if a rule would not have restarted the job at all."""
    by_default = "RestartUncounted" if root_cause.is_uncounted(found.reason) else "Restart"
    action, _ = restart_policy.by_rules(job.spec.restart.rules or [], found) or (by_default, "")
    return {"Restart": True, "RestartUncounted": False}.get(action)
