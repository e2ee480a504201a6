"""Decides which of two jobs gives its pods up when both hold nodes for a part of their pods and wait for each other.

It is the job with the lowest priority, of these the youngest. It tries again after a backoff.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import FINISHED, WITHOUT_PODS, Status
from allranks.core.facts import topology
from allranks.core.facts.contenders import Contender, Contention, timeout_seconds
from allranks.core.facts.model import Observed, Pod

REASON = "GangTimeout"
"""Reason of an attempt that gave its pods up."""
_BACKOFF_INITIAL, _BACKOFF_MAX = timedelta(seconds=60), timedelta(minutes=30)
_PLACED_BY_OTHERS = frozenset({"Native", "Volcano", "Coscheduling"})
"""Backends whose scheduler places all pods or none."""


def may_contend(observed: Observed) -> bool:
    """Return whether the job may hold nodes and wait for others: a cheap test, before its pods are examined."""
    status = observed.current
    if observed.platform.local or status.running_time or status.start_time is None:
        return False
    if status.phase in FINISHED | WITHOUT_PODS:
        return False
    return not (status.gang and status.gang.backend in _PLACED_BY_OTHERS)


def contender(o: Observed, pods: Mapping[tuple[str, int], Pod]) -> Contender | None:
    """Return the job as a rival of others if it has nodes for some of its pods and no room for the rest; else None.

    `pods`: (role, index) -> the pod in this place.
    """
    job, status = o.job, o.current
    if not may_contend(o) or (status.progress and status.progress.first_step_time):
        return None
    rejected = {rejection.name for rejection in o.refused if rejection.kind == "Pod"}
    placed: list[Pod] = []
    without_room: list[str] = []
    for replica in topology.replicas(job, status):
        if not _is_needed(job, replica.role, replica.index):
            continue
        pod = pods.get((replica.role, replica.index))
        if pod and pod.node and pod.deleted_at is None and not pod.ended:
            placed.append(pod)
        elif (pod is None and replica.hostname in rejected) or (pod and pod.waiting_reason == "Unschedulable"):
            without_room.append(replica.role)
    if not placed or not without_room or _enough(job, status, without_room):
        return None
    return Contender(
        job=(job.namespace, job.name),
        priority=min(pod.priority for pod in pods.values()),
        created_at=job.metadata.creation_timestamp or status.start_time or o.now,
        placed_at=max(pod.placed_at or pod.created_at or o.now for pod in placed),
        timeout_seconds=timeout_seconds(job),
        pool=o.pool_name,
    )


def _is_needed(job: Job, role: str, index: int) -> bool:
    """Return whether the ranks that are placed wait for this replica.

    Ranks that can be replaced alone may come later, such as the workers of a chief with parameter servers; the servers
    themselves may not.
    """
    kind = topology.framework_of(job).roles[role]
    serves_all = not kind.ranked and kind.required_by_peers
    return topology.scope(job, role, index) == "Group" or serves_all or job.spec.elastic is not None


def _enough(job: Job, status: Status, without_room: Collection[str]) -> bool:
    """Return whether an elastic job runs with the pods that have room: other rules make it smaller."""
    if topology.elasticity(job) is None or any(role != topology.ELASTIC_ROLE for role in without_room):
        return False
    assert job.spec.elastic
    return topology.sizes(job, status)[topology.ELASTIC_ROLE] - len(without_room) >= job.spec.elastic.min_replicas


def gives_up_at(contender: Contender, contention: Contention) -> datetime | None:
    """Return when the job gives its pods up; None if it keeps them, or another job gives up before."""
    if contender.timeout_seconds == 0:
        return None
    rivals = [other for other in contention.others if _compete(contender, other)]
    if not any(_rank(other) < _rank(contender) for other in rivals):
        return None
    weaker = (other for other in rivals if _rank(other) > _rank(contender))
    if any(0 < other.timeout_seconds <= contender.timeout_seconds for other in weaker):
        return None
    # Time for the pods of the others to take the room that a job has just given up.
    begin = max(filter(None, (contender.placed_at, contention.given_up_at)))
    return begin + timedelta(seconds=contender.timeout_seconds)


def strongest(contender: Contender, others: Iterable[Contender]) -> Contender:
    """Return the rival that keeps its pods."""
    return min((other for other in others if _compete(contender, other)), key=_rank)


def given_up_at(status: Status) -> datetime | None:
    """Return when the job gave its pods up, while its next attempt does not run yet."""
    last = status.history[-1] if status.history else None
    return last.end_time if last and last.reason == REASON and not status.running_time else None


def backoff(status: Status) -> timedelta:
    """Return the delay of the next attempt: a minute, doubled for each time in a row, at most half an hour."""
    times = 0
    for past in reversed(status.history):
        if past.reason != REASON:
            break
        times += 1
    return min(_BACKOFF_MAX, _BACKOFF_INITIAL * (1 << min(times, 10)))


def _compete(contender: Contender, other: Contender) -> bool:
    """Return whether two jobs may need the same nodes: jobs of different pools do not."""
    return contender.pool is None or other.pool is None or contender.pool == other.pool


def _rank(job: Contender) -> tuple[int, datetime, tuple[str, str]]:
    """Return the sort key of jobs: the smallest keeps its pods."""
    return -job.priority, job.created_at, job.job
