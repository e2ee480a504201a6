"""Adds what supervisors report to the pods, so that all rules see the process of the current attempt in each pod."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from allranks.api.status import Status
from allranks.core.diagnosis.root_cause import pod_name
from allranks.core.facts import naming, topology
from allranks.core.facts.attempt_pods import last_attempt_of
from allranks.core.facts.model import RESTART_IN_PLACE, START_TOGETHER, Exit, Observed, Pod
from allranks.core.facts.processes import PodProcess, ProcessExit
from allranks.frameworks.base import Replica


def with_processes(o: Observed) -> Observed:
    """Return the observation with pods that have the phase of the current attempt's process.

    A container whose supervisor waits runs for Kubernetes, although its program has ended, or has not started again.
    Kubernetes is right about pods that have ended or are removed. What it says about pending ones may be late.
    """
    status, by_pod = o.current, o.processes.by_pod if o.processes else {}
    in_pods = status.pods_of_attempt is not None or any(entry.in_pod for entry in status.replica_restarts.values())
    if not (by_pod or in_pods):
        return o
    due = {pod_name(o.job, status, replica): _due(status, replica) for replica in topology.replicas(o.job, status)}
    pods = (
        _with_process(status, pod, by_pod.get(pod.uid), due[pod.name]) if pod.owned and pod.name in due else pod
        for pod in o.pods
    )
    return replace(o, pods=tuple(pods))


@dataclass(frozen=True, slots=True)
class _Due:
    """The process that has to run in a pod."""

    number: tuple[int, int]
    """As `PodProcess.number`."""
    moved: bool
    """The pod was created for an earlier process."""
    began: bool
    """Such a process has run."""


def _due(status: Status, replica: Replica) -> _Due:
    entry = status.replica_restarts.get(naming.replica_key(replica.role, replica.index))
    if entry is None:
        return _Due((status.attempt, 0), status.pods_of_attempt is not None, status.running_time is not None)
    return _Due((status.attempt, entry.in_pod or 0), bool(entry.in_pod), entry.launched)


def _with_process(status: Status, pod: Pod, process: PodProcess | None, due: _Due) -> Pod:
    """Return the pod as the current attempt sees it."""
    pod = replace(pod, attempt=status.attempt) if status.pods_of_attempt is not None else pod
    if pod.ended or pod.phase not in ("Pending", "Running"):
        return pod
    if process and (process.number > due.number or (process.number < due.number and not due.moved)):
        process = None  # no such process can exist: it is not believed
    if process is None:
        waits = due.moved and pod.phase == "Running" and not due.began
        return _waiting(pod) if waits else pod
    pod = replace(pod, process=process)
    if process.number == due.number and process.state == "Ended":
        return replace(_started(pod, process), phase="Failed", exit=_exit(process.last_exit))
    if not due.moved:
        return _waiting(pod, START_TOGETHER, "the other pods") if process.state == "Down" else pod
    if process.number == due.number and process.state == "Running":
        return _started(pod, process)
    return _waiting(pod)


def _started(pod: Pod, process: PodProcess) -> Pod:
    return replace(pod, started_at=process.started_at or pod.started_at)


def _waiting(pod: Pod, reason: str = RESTART_IN_PLACE, cause: str = "the restart in its pod") -> Pod:
    return replace(
        pod,
        phase="Pending",
        started_at=None,
        waiting_reason=reason,
        waiting_message="",
        waiting_for=cause,
        unprepared=False,
    )


def _exit(ended: ProcessExit | None) -> Exit | None:
    if ended is None:
        return None  # the phase says that it failed
    return Exit(ended.code, ended.finished_at, ended.reason, ended.message, ended.signal)


def as_ended(o: Observed, pods: Iterable[Pod]) -> list[Pod]:
    """Return pods of past attempts; a pod whose program ended has failed, although its container runs."""
    by_pod, out = o.processes.by_pod if o.processes else {}, []
    for pod in pods:
        process = by_pod.get(pod.uid)
        last = process.last_attempt if process and process.last_exit and not pod.ended else None
        if process and last is not None and last == last_attempt_of(o.current, pod.attempt):
            pod = replace(pod, phase="Failed", exit=_exit(process.last_exit))
        out.append(pod)
    return out


def earlier_ends(pods: Iterable[Pod]) -> list[Pod]:
    """Return how the programs of earlier attempts ended in these pods, as failed pods of those attempts."""
    return [
        replace(pod, attempt=process.last_attempt, phase="Failed", exit=_exit(process.last_exit), disruption=None)
        for pod in pods
        if (process := pod.process) and process.last_exit and process.last_attempt < pod.attempt
    ]
