"""Finds the replica that a failure is a consequence of, from the other pods of the attempt and from the reports.

A rank that only says that it lost its peers is not the cause. The cause may be a pod that never started, a rank that
never joined the group or did not come to a collective, or one that completed before the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

from allranks.api.job import Job
from allranks.api.status import Because, Failure, Status
from allranks.core.diagnosis import hardware
from allranks.core.diagnosis.exec_failure import CANNOT_START
from allranks.core.diagnosis.patterns import absent, is_unreadable_data, joined, was_joining
from allranks.core.diagnosis.root_cause import (
    ABSENT,
    COMPLETED_EARLY,
    HARDWARE,
    LOST_PEER,
    NEVER_WHOLE,
    NOT_JOINED,
    cause_line,
)
from allranks.core.facts import naming, stored_checkpoints, topology
from allranks.core.facts.attempt import Ranks
from allranks.core.facts.model import INIT_FAILED, Platform, Pod, RejectedCreate
from allranks.core.facts.rank_reports import Reports
from allranks.frameworks.base import Replica

TOGETHER = timedelta(seconds=30)
"""A rank that completed at most this long before another one lost its peers is the peer that was lost."""

Place = tuple[str, int]


def weigh(
    job: Job,
    status: Status,
    failure: Failure,
    pods: Mapping[Place, Pod],
    missing: Iterable[Replica],
    refused: Iterable[RejectedCreate],
    reports: Reports | None,
    platform: Platform,
    node_problems: Mapping[str, str] = MappingProxyType({}),
) -> Failure:
    """Return the failure, or the one of the replica that it is a consequence of.

    `pods` are the pods of the attempt, `missing` the replicas without one, `refused` the creations that the API server
    rejected. `node_problems`: as in `Observed`.
    """
    unhealthy = hardware.problem(pods.get((failure.role, failure.index)), node_problems)
    if unhealthy and failure.reason in _ENDS_BY_HARDWARE and failure.because != LOST_PEER:
        return replace(failure, because=unhealthy[0], message=f"{unhealthy[1]}\n{failure.message}"[:2048])
    if failure.because == "InitContainer" and _passed_elsewhere(failure, pods):
        return replace(failure, because="InitContainerOfNode")
    if failure.reason != "Error" or topology.scope(job, failure.role, failure.index) != "Group":
        return failure
    ranks = Ranks(job, status, platform)
    if failure.because == LOST_PEER:
        return (
            _never_whole(status, failure, pods, missing, refused, ranks)
            or _on_unhealthy_hardware(failure, pods, node_problems, ranks)
            or _completed_early(job, failure, pods, reports, ranks)
            or _not_joined(status, failure, pods, ranks)
            or waited_for(failure, pods, ranks)
            or failure
        )
    failure = _of_rank(failure, pods, ranks)
    if _could_not_resume(job, status) and is_unreadable_data(failure.message):
        return _unreadable(job, status, failure, reports)
    return failure


_ENDS_BY_HARDWARE = frozenset({"Error", INIT_FAILED, *CANNOT_START})
"""Reasons of failures that a device can cause. A limit of memory, or a deletion, has a cause of its own."""


def hang_on_hardware(failure: Failure, pods: Iterable[Pod], node_problems: Mapping[str, str], ranks: Ranks) -> Failure:
    """Return the hang as one of the rank with unhealthy hardware, if there is one."""
    if not (unhealthy := hardware.first((pod for pod in pods if not pod.ended), node_problems)):
        return failure
    pod, because, text = unhealthy
    return replace(
        failure,
        role=pod.role,
        index=pod.index,
        rank=ranks.rank(pod.role, pod.index),
        pod=pod.name,
        node=pod.node,
        because=because,
        message=f"{text}; {failure.message}"[:2048],
    )


def _on_unhealthy_hardware(
    failure: Failure, pods: Mapping[Place, Pod], node_problems: Mapping[str, str], ranks: Ranks
) -> Failure | None:
    """Return the rank that others lost while its device or its node was unhealthy."""
    running = (pod for pod in pods.values() if not pod.succeeded)
    if not (unhealthy := hardware.first(running, node_problems)):
        return None
    pod, because, text = unhealthy
    return replace(_of_pod(failure, pod, ranks, HARDWARE, text), because=because)


def _passed_elsewhere(failure: Failure, pods: Mapping[Place, Pod]) -> bool:
    """Return whether the init containers of this role succeeded on other nodes."""
    if failure.node is None:
        return False
    started = (pod for pod in pods.values() if pod.role == failure.role and pod.started_at is not None)
    return any(pod.node is not None and pod.node != failure.node for pod in started)


def _never_whole(
    status: Status,
    failure: Failure,
    pods: Mapping[Place, Pod],
    missing: Iterable[Replica],
    refused: Iterable[RejectedCreate],
    ranks: Ranks,
) -> Failure | None:
    """Return the pod that did not run yet, if not all pods of the attempt ever ran at the same time."""
    if status.running_time is not None:
        return None
    waiting = [pod for pod in pods.values() if not pod.ended and pod.started_at is None and pod.deleted_at is None]
    if waiting:
        pod = min(waiting, key=lambda pod: (pod.node is not None, pod.role, pod.index))
        text = f"{pod.name} had {'not started' if pod.node else 'no node'}: {pod.waiting_text or 'no reason yet'}"
        return _of_pod(failure, pod, ranks, NEVER_WHOLE, text)
    rejected = next(iter(refused), None)
    replica = next(iter(missing), None)
    if rejected is None or replica is None:
        return None
    text = f"pod {rejected.name} was not created: {rejected.message}"
    place = replica.role, replica.index
    return replace(_of_place(failure, place, rejected.name, None, ranks, NEVER_WHOLE, text), because="PodRefused")


def _completed_early(
    job: Job, failure: Failure, pods: Mapping[Place, Pod], reports: Reports | None, ranks: Ranks
) -> Failure | None:
    """Return the rank that completed just before others lost it, if most of the others still ran."""
    services = topology.framework_of(job).long_running_roles({role: 1 for role, _ in pods})
    ranked = [pod for place, pod in pods.items() if place[0] not in services and ranks.rank(*place) is not None]
    completed = [
        pod
        for pod in ranked
        if pod.succeeded and pod.exit and timedelta(0) <= failure.time - pod.exit.finished_at + _SECOND <= TOGETHER
    ]
    if not completed or 2 * len(completed) > len(ranked):
        return None
    first = min(completed, key=lambda pod: (pod.exit.finished_at if pod.exit else failure.time, pod.role, pod.index))
    steps = _steps(reports, first)
    text = f"{naming.replica_key(first.role, first.index)} completed{steps} while other ranks still needed it"
    return _of_pod(failure, first, ranks, COMPLETED_EARLY, text)


_SECOND = timedelta(seconds=1)
"""Kubernetes has whole seconds."""


def _steps(reports: Reports | None, pod: Pod) -> str:
    for rank in reports.ranks if reports else ():
        if (rank.role, rank.index) == (pod.role, pod.index) and rank.step is not None:
            return f" at step {rank.step}" + (f" of {rank.total_steps}" if rank.total_steps else "")
    return ""


def _not_joined(status: Status, failure: Failure, pods: Mapping[Place, Pod], ranks: Ranks) -> Failure | None:
    """Return the rank for which the others waited without success, if the group of this attempt never formed.

    The rank is only named if the numbers leave no doubt: as many pods still run as processes are missing.
    """
    stepped = status.progress is not None and status.progress.first_step_time is not None
    if stepped or not was_joining(failure.message):
        return None
    numbers = joined(failure.message)
    present, size = numbers or (0, 1)
    text = f"{present} of {size} ranks had joined the group" if numbers else "the group of ranks never formed"
    ranked = [pod for place, pod in pods.items() if ranks.rank(*place) is not None]
    running = [pod for pod in ranked if not pod.ended]
    missing = _named(failure, ranked, ranks) or (running if len(running) == size - present else [])
    if not missing:
        return replace(failure, because="NotJoined", message=f"{text}\n{failure.message}"[-2048:])
    return _of_pod(failure, missing[0], ranks, NOT_JOINED, f"{text}: {_names(missing)} had not joined")


def waited_for(failure: Failure, pods: Mapping[Place, Pod], ranks: Ranks) -> Failure | None:
    """Return the rank for which others waited in a collective without success, as one of their outputs names it."""
    ranked = [pod for place, pod in pods.items() if ranks.rank(*place) is not None]
    missing = _named(failure, ranked, ranks)
    if not missing:
        return None
    return _of_pod(failure, missing[0], ranks, ABSENT, f"other ranks waited for {_names(missing)} without success")


def _named(failure: Failure, ranked: list[Pod], ranks: Ranks) -> list[Pod]:
    """Return the pods of the ranks for which others waited, as an output says, without the rank that printed it."""
    texts = [failure.message, *(pod.exit.message for pod in ranked if pod.exit and not pod.succeeded)]
    numbers = next((numbers for text in texts if (numbers := absent(text))), [])
    others = [pod for pod in ranked if (pod.role, pod.index) != (failure.role, failure.index)]
    return [pod for pod in others if not pod.succeeded and ranks.rank(pod.role, pod.index) in numbers]


def _names(pods: list[Pod]) -> str:
    named = ", ".join(naming.replica_key(pod.role, pod.index) for pod in pods[:8])
    if any(pod.ended for pod in pods):
        return named
    return f"{named} ({'it runs' if len(pods) == 1 else 'they run'})"


def _of_rank(failure: Failure, pods: Mapping[Place, Pod], ranks: Ranks) -> Failure:
    """Return the failure with the pod of the rank that raised, if the output of another rank says which one did."""
    printed_by = ranks.rank(failure.role, failure.index)
    if printed_by is None or failure.rank is None or failure.rank == printed_by:
        return failure
    pod = next((pod for place, pod in pods.items() if ranks.rank(*place) == failure.rank), None)
    return replace(failure, role=pod.role, index=pod.index, pod=pod.name, node=pod.node) if pod else failure


def _could_not_resume(job: Job, status: Status) -> bool:
    """Return whether the attempt made no step, and the program may have read a checkpoint."""
    stepped = status.progress is not None and status.progress.first_step_time is not None
    return not stepped and (job.spec.checkpoint is not None or last_step(status) is not None)


def _unreadable(job: Job, status: Status, failure: Failure, reports: Reports | None) -> Failure:
    """Return the failure of a checkpoint that cannot be read, with its step if a rank has listed the directory."""
    newest = stored_checkpoints.newest(reports)
    if newest is not None and newest.verified:
        return failure  # the files are as they were stored
    if newest is None:
        return replace(failure, because="CheckpointUnreadable", message=_with_steps(status, failure.message))
    older = stored_checkpoints.before(job, status, newest.step)
    text = f"the checkpoint of step {newest.step}, {newest.path}, cannot be read"
    text += f"; the one before it is of step {older.step}" if older else "; there is no older one"
    return replace(
        failure,
        because="CheckpointUnreadable",
        checkpoint_step=newest.step,
        message=f"{text}\n{failure.message}"[:4096],
    )


def _with_steps(status: Status, message: str) -> str:
    """Return the message of a checkpoint that cannot be read, with the steps of others."""
    stored = [past.checkpoint_step for past in status.history if past.checkpoint_step is not None]
    reached = last_step(status)
    parts = [f"a checkpoint of step {stored[-1]} was stored before"] if stored else []
    parts += [f"the program had come to step {reached}"] if reached is not None else []
    return f"the newest checkpoint cannot be read; {', and '.join(parts)}\n{message}"[:2048] if parts else message


def last_step(status: Status) -> int | None:
    """Return the last step of the newest attempt that made one; None if none did."""
    return next((past.last_step for past in reversed(status.history) if past.last_step is not None), None)


_EVIDENCE: dict[str, Because] = {
    HARDWARE: "NodeUnhealthy",
    NEVER_WHOLE: "NeverWhole",
    NOT_JOINED: "NotJoined",
    ABSENT: "Absent",
    COMPLETED_EARLY: "CompletedEarly",
}


def _of_pod(failure: Failure, pod: Pod, ranks: Ranks, reason: str, text: str) -> Failure:
    return _of_place(failure, (pod.role, pod.index), pod.name, pod.node, ranks, reason, text)


def _of_place(
    failure: Failure, place: Place, pod: str, node: str | None, ranks: Ranks, reason: str, text: str
) -> Failure:
    """Return the failure of another replica, with the line of the rank that gave up because of it."""
    gave_up = naming.replica_key(failure.role, failure.index)
    line = cause_line(failure)
    return replace(
        failure,
        role=place[0],
        index=place[1],
        rank=ranks.rank(*place),
        pod=pod,
        node=node,
        exit_code=None,
        signal=None,
        reason=reason,
        because=_EVIDENCE[reason],
        message=f"{text}\n{gave_up}: {line}"[-2048:] if line else text,
    )
