"""What went wrong first: turns the pods of an attempt into the one failure that caused the rest.

The cause is the *earliest* failure by the containers' `finishedAt`, not the avalanche that follows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from allranks.api.job import Job
from allranks.api.status import Failure, Status
from allranks.core import names, topology
from allranks.core.model import Exit, Pod
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

MESSAGE_LINES = 20
MESSAGE_CHARACTERS = 2048


def failed(pod: Pod) -> bool:
    """The pod's program will not end well: it failed, or the cluster or somebody is taking the pod away."""
    return not pod.succeeded and (pod.phase == "Failed" or pod.deleted_at is not None or pod.disruption is not None)


def first_failure(job: Job, status: Status, pods: Iterable[Pod], missing: Iterable[Replica], now: datetime) -> Failure:
    """The earliest failure among `pods` (all failed) and `missing` (pods that were there and are gone)."""
    found = [(_time(pod, now), _precedence(pod), pod.role, pod.index, pod) for pod in pods]
    if found:
        return describe(job, status, min(found, key=lambda item: item[:4])[4], now)
    replica = min(missing, key=lambda r: (r.node_rank is None, r.node_rank or 0, r.role, r.index))
    restart = status.replica_restarts.get(names.replica_key(replica.role, replica.index))
    return Failure(
        attempt=status.attempt,
        role=replica.role,
        index=replica.index,
        rank=_rank(job, status, replica.role, replica.index),
        pod=names.pod_name(job.name, replica.role, replica.index, status.attempt, restart.count if restart else 0),
        reason="Deleted",
        message="the pod was deleted by someone",
        time=now,
    )


def describe(job: Job, status: Status, pod: Pod, now: datetime) -> Failure:
    """One failed pod as `status.lastFailure` tells it."""
    time = _time(pod, now)
    ending = pod.exit if not _disrupted(pod) else None
    cause = topology.framework_of(job).root_cause(ending.message) if ending else None
    code, signal = (ending.code, ending.signal) if ending else (None, None)
    if cause and cause.exit_code is not None:
        code, signal = cause.exit_code, cause.signal
    return Failure(
        attempt=status.attempt,
        role=pod.role,
        index=pod.index,
        rank=cause.rank if cause and cause.rank is not None else _rank(job, status, pod.role, pod.index),
        pod=pod.name,
        node=pod.node,
        exit_code=code,
        signal=signal,
        reason=_reason(pod),
        message=_last_lines(_message(pod, ending, cause)),
        time=time,
        ran_seconds=max(0.0, (time - pod.started_at).total_seconds()) if pod.started_at else 0.0,
    )


def same_way(one: Failure, other: Failure) -> bool:
    """Both ended alike: code, signal, reason and the last line, numbers aside (addresses, times, pids differ)."""

    def way(failure: Failure) -> tuple[object, ...]:
        lines = [line for line in failure.message.splitlines() if line.strip()]
        last = re.sub(r"0x[0-9a-f]+|\d+", "#", lines[-1].strip()) if lines else ""
        return failure.exit_code, failure.signal, failure.reason, last

    return way(one) == way(other)


def _disrupted(pod: Pod) -> bool:
    """The cluster or somebody took it away before, or instead of, its own end."""
    if pod.disruption:
        return True
    return pod.deleted_at is not None and (pod.exit is None or pod.deleted_at <= pod.exit.finished_at)


def _time(pod: Pod, now: datetime) -> datetime:
    moments = [
        pod.disruption.at if pod.disruption else None,
        pod.exit.finished_at if pod.exit else None,
        pod.deleted_at,
    ]
    return min((moment for moment in moments if moment is not None), default=now)


def _precedence(pod: Pod) -> int:
    """Between failures of the same second: what starts an avalanche comes before what an avalanche looks like."""
    if _disrupted(pod) or pod.exit is None or pod.exit.reason == "OOMKilled":
        return 0
    aftermath = pod.exit.signal in (6, 15)  # SIGABRT of a watchdog, SIGTERM of a launcher
    return 1 if pod.exit.signal and not aftermath else 3 if aftermath else 2


def _reason(pod: Pod) -> str:
    if pod.disruption:
        return DISRUPTIONS.get(pod.disruption.reason, "Disrupted")
    if pod.exit and not _disrupted(pod):
        return pod.exit.reason or "Error"
    if pod.deleted_at:
        return "Deleted"
    return pod.waiting_reason or "PodFailed"  # an init container failed, or kubelet refused the pod


def _message(pod: Pod, ending: Exit | None, cause: RootCause | None) -> str:
    if cause and cause.message:
        return cause.message
    if ending:
        return ending.message
    if pod.disruption:
        return pod.disruption.message
    if pod.deleted_at:
        return "the pod was deleted by someone"
    return pod.waiting_message


def _rank(job: Job, status: Status, role: str, index: int) -> int | None:
    """The pod's rank, where one process runs per pod: then node rank and rank are the same."""
    for replica in topology.replicas(job, status):
        if (replica.role, replica.index) == (role, index):
            return replica.node_rank
    return None


def _last_lines(text: str) -> str:
    lines = text.rstrip().splitlines()[-MESSAGE_LINES:]
    return "\n".join(lines)[-MESSAGE_CHARACTERS:]
