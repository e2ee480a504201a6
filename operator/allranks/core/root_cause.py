"""What went wrong first: turns the pods of an attempt into the one failure that caused the rest.

The cause is the *earliest* failure by the containers' `finishedAt`, not the avalanche that follows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from allranks.api.job import Job
from allranks.api.status import Failure, Status
from allranks.core import naming, topology
from allranks.core.manifests import pod_template, pool_template
from allranks.core.model import Platform, Pod
from allranks.frameworks.base import Replica, RootCause

DISRUPTIONS: dict[str, str] = {
    "PreemptionByScheduler": "Preempted",
    "DeletionByTaintManager": "NodeLost",
    "EvictionByEvictionAPI": "Evicted",
    "TerminationByKubelet": "Evicted",
    "DeletionByPodGC": "NodeLost",
}
"""Reason of the pod condition `DisruptionTarget` -> ours."""

UNCOUNTED = frozenset({*DISRUPTIONS.values(), "Deleted", "Disrupted"})
"""Reasons that are not the program's fault."""

UNKNOWN_END = "ContainerStatusUnknown"
"""Kubelet had lost track of the container: neither its exit code nor its time is known."""

MESSAGE_LINES = 20
MESSAGE_CHARACTERS = 2048


_ELSEWHERE = Platform(helper_image="")


def failed(pod: Pod) -> bool:
    """The pod's program will not end well: it failed, or the cluster or somebody is taking the pod away."""
    return not pod.succeeded and (pod.phase == "Failed" or pod.deleted_at is not None or pod.disruption is not None)


def first_failure(
    job: Job,
    status: Status,
    pods: Iterable[Pod],
    missing: Iterable[Replica],
    now: datetime,
    platform: Platform = _ELSEWHERE,
) -> Failure:
    """The earliest failure among `pods` (all failed) and `missing` (pods that were there and are gone)."""
    framework = topology.framework_of(job)
    endings = [_Ending(pod, framework.root_cause(pod.exit.message) if pod.exit else None, now) for pod in pods]
    if endings:
        first = min(endings, key=lambda e: (*e.order, e.pod.role, e.pod.index))
        return _describe(job, status, first, platform)
    replica = min(missing, key=lambda r: (r.node_rank is None, r.node_rank or 0, r.role, r.index))
    restart = status.replica_restarts.get(naming.replica_key(replica.role, replica.index))
    return Failure(
        attempt=status.attempt,
        role=replica.role,
        index=replica.index,
        rank=_rank(job, status, replica.role, replica.index, platform),
        pod=naming.pod_name(job.name, replica.role, replica.index, status.attempt, restart.count if restart else 0),
        reason="Deleted",
        message=_DELETED,
        time=now,
    )


_DELETED = "the pod was deleted by someone"


_SIGTERM = 15

Order = tuple[datetime, int]
"""When, and which of one second comes first: what starts an avalanche, before what an avalanche looks like."""


def _precedence(reason: str, code: int | None, signal: int | None) -> int:
    if code is None or reason == "OOMKilled":
        return 0
    if signal in (6, _SIGTERM):  # SIGABRT of a watchdog, SIGTERM of a launcher
        return 3
    return 1 if signal else 2


@dataclass(frozen=True)
class _Ending:
    """One failed pod, with what its launcher reported."""

    pod: Pod
    cause: RootCause | None
    now: datetime

    @cached_property
    def disrupted(self) -> bool:
        """The cluster or somebody took the pod away before, or instead of, its own end."""
        pod = self.pod
        if pod.disruption and pod.disruption.reason == "TerminationByKubelet":
            return True  # kubelet ends the container first and says why afterwards
        return pod.terminating

    @cached_property
    def time(self) -> datetime:
        """When it failed. A launcher first ends its other workers: its report knows better than the container's end."""
        pod = self.pod
        ended = pod.exit.finished_at if pod.exit else None
        if ended and self.cause and self.cause.time and not self.disrupted:
            # The report has no time zone; zones differ by quarters of an hour, and no launcher takes so long to end.
            return ended - (ended.replace(tzinfo=None) - self.cause.time) % timedelta(minutes=15)
        return min((moment for moment in (ended, pod.termination_requested_at) if moment), default=self.now)

    @property
    def order(self) -> Order:
        return self.time, _precedence(self.reason, self.code, self.signal)

    @property
    def sure(self) -> bool:
        """That it ended by itself in its second, and not because it was told to later in the same one."""
        return self.reason == "OOMKilled" or (self.cause is not None and self.cause.time is not None)

    @property
    def code(self) -> int | None:
        if self.disrupted or self.pod.exit is None:
            return None
        reported = self.cause.exit_code if self.cause else None
        return self.pod.exit.code if reported is None else reported

    @property
    def signal(self) -> int | None:
        if self.disrupted or self.pod.exit is None:
            return None
        return self.cause.signal if self.cause and self.cause.exit_code is not None else self.pod.exit.signal

    @property
    def reason(self) -> str:
        pod = self.pod
        if not self.disrupted and pod.exit:
            return pod.exit.reason or "Error"
        if pod.disruption:
            return DISRUPTIONS.get(pod.disruption.reason, "Disrupted")
        if pod.deleted_at:
            return "Deleted"
        return pod.waiting_reason or "PodFailed"  # an init container failed, or kubelet refused the pod

    @property
    def message(self) -> str:
        pod = self.pod
        if not self.disrupted and pod.exit:
            return (self.cause.message if self.cause else None) or pod.exit.message
        if pod.disruption:
            return pod.disruption.message
        return _DELETED if pod.deleted_at else pod.waiting_message


def _describe(job: Job, status: Status, ending: _Ending, platform: Platform) -> Failure:
    """One failed pod as `status.lastFailure` tells it."""
    pod = ending.pod
    reported = ending.cause.rank if ending.cause else None
    return Failure(
        attempt=status.attempt,
        role=pod.role,
        index=pod.index,
        rank=_rank(job, status, pod.role, pod.index, platform) if reported is None else _within(reported, 0),
        pod=pod.name,
        node=pod.node,
        exit_code=_within(ending.code, -(2**31)),
        signal=_within(ending.signal, 1, 128),
        reason=ending.reason[:128],
        message=_last_lines(ending.message),
        time=ending.time,
        ran_seconds=max(0.0, (ending.time - pod.started_at).total_seconds()) if pod.started_at else 0.0,
    )


def _within(number: int | None, least: int, most: int = 2**31 - 1) -> int | None:
    """A log can claim anything: what makes no sense is not told."""
    return number if number is not None and least <= number <= most else None


def node_lost_at(pod: Pod) -> datetime | None:
    """When its node was found to be lost, with which it is: how its program ended nobody knows. None: it is not."""
    lost = pod.exit is None and pod.disruption and DISRUPTIONS.get(pod.disruption.reason) == "NodeLost"
    return pod.disruption.at if lost and pod.disruption else None


def of_lost(job: Job, status: Status, pod: Pod, now: datetime, platform: Platform = _ELSEWHERE) -> Failure:
    """As a failure of its attempt."""
    of_then = status.model_copy(update={"attempt": pod.attempt})
    return _describe(job, of_then, _Ending(pod, None, now), platform)


def before(job: Job, status: Status, blamed: Failure, pod: Pod, now: datetime, platform: Platform) -> Failure | None:
    """How a pod that was deleted with its attempt had failed before the one that is blamed. None: it had not.

    The deletion was our own, and says nothing; nor does an end that it may have caused. Clocks differ, and Kubernetes
    tells whole seconds: of two ends in one second that one is earlier whose launcher says so.
    """
    if pod.exit is None or pod.exit.code == 0 or pod.exit.reason == UNKNOWN_END:
        return None
    report = topology.framework_of(job).root_cause(pod.exit.message)
    ending = _Ending(replace(pod, deleted_at=None), report, now)
    found = _describe(job, status.model_copy(update={"attempt": pod.attempt}), ending, platform)
    told_to_go = pod.deleted_at is not None and pod.exit.finished_at >= pod.deleted_at.replace(microsecond=0)
    if told_to_go and (not ending.sure or found.signal == _SIGTERM):
        return None
    at, then = found.time.replace(microsecond=0), blamed.time.replace(microsecond=0)
    earlier = (at, _precedence_of(found)) < (then, _precedence_of(blamed))
    return found if earlier and (at < then or ending.sure) else None


def _precedence_of(failure: Failure) -> int:
    return _precedence(failure.reason, failure.exit_code, failure.signal)


def of_bad_start(job: Job, status: Status, pod: Pod, now: datetime, platform: Platform = _ELSEWHERE) -> Failure:
    """Of a pod whose image or configuration keeps it from starting: it has not failed, and never will run."""
    return _describe(job, status, _Ending(replace(pod, deleted_at=None, disruption=None), None, now), platform)


def same_way(one: Failure, other: Failure) -> bool:
    """Both ended alike: code, signal, reason and the last line, numbers aside (addresses, times, pids differ)."""

    def way(failure: Failure) -> tuple[object, ...]:
        lines = [line for line in failure.message.splitlines() if line.strip()]
        last = re.sub(r"0x[0-9a-f]+|\d+", "#", lines[-1].strip())[-200:] if lines else ""
        return failure.exit_code, failure.signal, failure.reason, last

    return way(one) == way(other)


def _rank(job: Job, status: Status, role: str, index: int, platform: Platform) -> int | None:
    """The pod's rank, where one process runs in each: then node rank and rank are the same."""
    if pool_template.unavailable(job, platform):
        return None  # how many GPUs, and so processes, its pods had was the pool's to say
    context = pod_template.attempt_context(job, status, platform)
    framework = topology.framework_of(job)
    if any(framework.processes(context, ranked) != 1 for ranked in {replica.role for replica in context.ranked()}):
        return None
    return next((r.node_rank for r in context.replicas if r.index == index and r.role == role), None)


def _last_lines(text: str) -> str:
    lines = text.rstrip().splitlines()[-MESSAGE_LINES:]
    return "\n".join(lines)[-MESSAGE_CHARACTERS:]
