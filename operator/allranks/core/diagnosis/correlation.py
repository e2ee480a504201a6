"""Relates failures of different times: consequences of an earlier failure, and evidence of one that arrives late."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import Failure, PastAttempt, ReplicaRestarts, Status
from allranks.core.diagnosis import pod_ends, processes, restart_policy, root_cause
from allranks.core.diagnosis.comparison import Way, same_way, way
from allranks.core.diagnosis.culprit import Evidence, waited_for
from allranks.core.diagnosis.reasons import LOST_PEER, is_uncounted, was_killed
from allranks.core.facts import naming, topology
from allranks.core.facts.attempt_pods import IN_PLACE, pods_of
from allranks.core.facts.model import LIMIT_EXCEEDED, Platform, Pod
from allranks.core.facts.pod_template import longest_grace_period
from allranks.core.facts.restarts import CORRELATION_SECONDS, MAX_IDLE_RESTARTS
from allranks.frameworks.base import Replica


class EarlierFailures:
    """The recorded failures of individually restarted replicas, indexed: many replicas can fail in one reconcile."""

    def __init__(self, job: Job, status: Status) -> None:
        self._job, self._before = job, status.attempt_failure
        self._exhausted = (status.restarts.without_progress or 0) >= MAX_IDLE_RESTARTS
        self._entries: dict[str, tuple[ReplicaRestarts, Failure, Way]] = {}
        self._counted: dict[Way, dict[str, Failure]] = {}
        for key, entry in status.replica_restarts.items():
            self.record(key, entry)

    def record(self, key: str, entry: ReplicaRestarts) -> None:
        """Record the restart of a replica. Its earlier failure no longer matters."""
        if former := self._entries.pop(key, None):
            self._counted.get(former[2], {}).pop(key, None)
        if entry.failure is None:
            return
        self._entries[key] = entry, entry.failure, way(entry.failure)
        if entry.counted:
            self._counted.setdefault(way(entry.failure), {})[key] = entry.failure

    def upstream_of(self, failure: Failure) -> ReplicaRestarts | None:
        """Return the failure of an individually restarted replica, already counted, that caused this one."""
        noticed = failure.reason == "Error" and failure.exit_code is not None and not was_killed(failure)
        if not noticed or topology.scope(self._job, failure.role, failure.index) != "Group":
            return None
        if self._before and same_way(self._before, failure):
            return None  # the previous attempt failed in the same way without an upstream failure
        if self._exhausted:
            return None  # it counts, so that such restarts end
        roles = topology.framework_of(self._job).roles
        lost = [
            (earlier.time, earlier.role, earlier.index, key)
            for key, (_, earlier, _) in self._entries.items()
            if roles[earlier.role].required_by_peers
            and timedelta(0) <= failure.time - earlier.time <= timedelta(seconds=CORRELATION_SECONDS)
        ]
        return self._entries[min(lost)[-1]][0] if lost else None

    def counted(self, failure: Failure) -> Failure | None:
        """Return the failure of another individually restarted replica, if it was in the same way just before, and was
        counted."""
        if failure.reason != "Error" or topology.scope(self._job, failure.role, failure.index) == "Group":
            return None
        began = failure.time - timedelta(seconds=failure.ran_seconds or 0.0)
        replica = naming.replica_key(failure.role, failure.index)
        same = (
            earlier
            for key, earlier in self._counted.get(way(failure), {}).items()
            if key != replica
            and began < earlier.time
            and abs(failure.time - earlier.time) <= timedelta(seconds=CORRELATION_SECONDS)
        )
        return next(same, None)


NODE_LOSS_DETECTION = timedelta(minutes=3)
"""Kubernetes declares a node lost 40 to 50 s after its last heartbeat, and marks a pod after its toleration of
`node_lost_seconds`. A node that is marked later than the sum of both was still healthy when the attempt ended."""


def corrected_cause(
    job: Job, status: Status, pods: Iterable[Pod], now: datetime, platform: Platform, current: Iterable[Pod] = ()
) -> Failure | None:
    """Return an earlier failure, or an event of a node, that caused the end of a past attempt; None without new
    evidence.

    `pods` are pods of past attempts: those that remain, and the last states of deleted ones. `current` are the pods of
    this attempt, in which the programs of earlier ones may have ended.

    When a node loses power, its peers fail within a second because their connections break, and the first of them is
    recorded as the root cause. Kubernetes marks the lost node a minute later. A node that shuts down, evicts a pod or
    reboots, and a kubelet that evicts a pod for a limit of its own, say so only when the containers have ended, and may
    delete the pod at once. A killed rank and a peer that fails because of it may end within one second; then only the
    report of a launcher has the exact time.
    """
    of_pods = {pod.name: pod for pod in pods if _is_evidence(pod)}
    of_programs = {(pod.attempt, pod.name): pod for pod in processes.earlier_ends(current)}
    if not of_pods and not of_programs:
        return None
    for past in status.history:
        failed_for_good = status.phase == "Failed" and past is status.history[-1] and past.failure is not None
        reason = past.failure.reason if failed_for_good and past.failure else past.reason
        if not (past.counted or failed_for_good) or is_uncounted(reason) or reason == LIMIT_EXCEEDED:
            continue
        then = replace(status, attempt=past.attempt, pods_of_attempt=pods_of(status, past.attempt))
        if past.how == IN_PLACE:  # what ended its pods did not end this attempt
            programs = ((key[1], pod) for key, pod in of_programs.items() if key[0] == past.attempt)
            left = {name: replace(pod, deleted_at=past.end_time) for name, pod in programs}
        else:
            left = of_pods
        # Labels may have been edited. Replicas that restart individually had their own failures, recorded at the time.
        of_then = [
            replace(left[replica.hostname], role=replica.role, index=replica.index, attempt=past.attempt)
            for replica in topology.replicas(job, then)
            if replica.hostname in left and topology.scope(job, replica.role, replica.index) == "Group"
        ]
        for pod in of_then:
            failed_at = pod_ends.node_failed_at(pod)
            if pod_ends.exceeded_limit(pod) or (
                failed_at and failed_at <= _latest_node_failure(job, past, pod, platform)
            ):
                return root_cause.end_of_pod(job, then, pod, now, platform)
        evidence = Evidence(job, then, platform, {(pod.role, pod.index): pod for pod in of_then})
        earliest = past.failure
        for pod in of_then:
            if earliest:
                earliest = root_cause.earlier_failure(job, then, earliest, pod, now, evidence.ranks) or earliest
        if earliest is not past.failure:
            return earliest
        if earliest and earliest.because == LOST_PEER:
            unseen = _without_evidence(job, then, evidence, earliest)
            if absent := waited_for(replace(evidence, missing=unseen), earliest):
                return absent
    return None


def _without_evidence(job: Job, then: Status, evidence: Evidence, failure: Failure) -> list[Replica]:
    """Return the replicas with a rank whose end is unknown, besides the one of the failure."""
    places = {*evidence.pods, (failure.role, failure.index)}
    return [
        replica
        for replica in topology.replicas(job, then)
        if (replica.role, replica.index) not in places and evidence.ranks.rank(replica.role, replica.index) is not None
    ]


def _latest_node_failure(job: Job, past: PastAttempt, pod: Pod, platform: Platform) -> datetime:
    """Return the latest time of an event of the pod's node that can have caused the end of the attempt."""
    if past.failure and pod_ends.ended_by_kubelet(pod):
        # The kubelet began at most a grace period before. Only then can a peer have failed because of it.
        return past.failure.time + timedelta(seconds=longest_grace_period(job)) + pod_ends.SETTLING
    return past.end_time + NODE_LOSS_DETECTION + timedelta(seconds=platform.node_lost_seconds or 0)


def _is_evidence(pod: Pod) -> bool:
    return bool(pod.exit or pod_ends.node_failed_at(pod) or pod_ends.exceeded_limit(pod))


def restart_counts(job: Job, failure: Failure) -> bool | None:
    """Return whether a restart for this failure counts; None if a rule would not have restarted the job at all."""
    by_default = "RestartUncounted" if is_uncounted(failure.reason) else "Restart"
    action, _ = restart_policy.by_rules(job.spec.restart.rules or [], failure) or (by_default, "")
    return {"Restart": True, "RestartUncounted": False}.get(action)
