"""Decides which of two jobs gives its pods up when both hold nodes for a part of their pods and wait for each other.

It is the job with the lowest priority, of these the youngest. It tries again after a backoff. Jobs are rivals only if
they share a TrainingPool or a namespace, and if the one could use the room of the other.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from allranks.api.job import Job
from allranks.api.status import FINISHED, WITHOUT_PODS, Status
from allranks.core.facts import topology
from allranks.core.facts.contenders import Contender, Contention, NodeDemand, near, timeout_seconds
from allranks.core.facts.model import UNSCHEDULABLE, Manifest, Observed, Pod
from allranks.core.facts.pod_template import role_templates
from allranks.core.facts.quantity import pod_requests, quantity

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
    rejected = {rejection.name: rejection.message for rejection in o.refused if rejection.kind == "Pod"}
    placed: list[Pod] = []
    without_room: list[str] = []
    by_quota, placeable = False, True
    for replica in topology.replicas(job, status):
        if not _is_needed(job, replica.role, replica.index):
            continue
        pod = pods.get((replica.role, replica.index))
        if pod and pod.node and pod.deleted_at is None and not pod.ended:
            placed.append(pod)
        elif pod is None and replica.hostname in rejected:
            without_room.append(replica.role)
            by_quota, placeable = True, placeable and _fits_quota(rejected[replica.hostname])
        elif pod and pod.waiting_reason == UNSCHEDULABLE:
            without_room.append(replica.role)
            placeable = placeable and _helped_by_other_pods(pod.waiting_message)
    if not placed or not without_room or _enough(job, status, without_room):
        return None
    templates = role_templates(job, o.platform)
    return Contender(
        job=(job.namespace, job.name),
        priority=min(pod.priority for pod in pods.values()),
        created_at=job.metadata.creation_timestamp or status.start_time or o.now,
        placed_at=_last_placement(placed) or o.now,
        timeout_seconds=timeout_seconds(job),
        pools=o.pool_names,
        held=frozenset(_demand(templates[role]) for role in {pod.role for pod in placed}),
        lacking=frozenset(_demand(templates[role]) for role in set(without_room)),
        by_quota=by_quota,
        placeable=placeable,
        progress_at=_progress_at(status, placed),
        gave_up_at=tuple(past.end_time for past in status.history if past.reason == REASON),
    )


def _last_placement(placed: Iterable[Pod]) -> datetime | None:
    return max(filter(None, (pod.placed_at or pod.created_at for pod in placed)), default=None)


def _progress_at(status: Status, placed: Iterable[Pod]) -> datetime | None:
    """Return when the job got a node that it did not have before.

    Pods that replace failed ones are no progress, neither alone nor all of them in a new attempt.
    """
    ran = next((past for past in reversed(status.history) if past.running_time or past.failure is None), None)
    if status.history and ran is not status.history[-1]:
        return ran.end_time if ran else status.start_time
    return _last_placement(pod for pod in placed if pod.restart == 0)


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
    if contender.timeout_seconds == 0 or strongest(contender, contention.others) is None:
        return None
    weaker = (other for other in contention.others if _gives_way(other, contender))
    if any(0 < other.timeout_seconds <= contender.timeout_seconds for other in weaker):
        return None
    # Time for the pods of the others to take the room that a job has just given up.
    begin = max(filter(None, (contender.placed_at, contention.given_up_at)))
    return begin + timedelta(seconds=contender.timeout_seconds)


def strongest(contender: Contender, others: Iterable[Contender]) -> Contender | None:
    """Return the rival to which the job gives its pods up; None if there is none."""
    return min((other for other in others if _gives_way(contender, other)), key=_rank, default=None)


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


_MOST_IN_VAIN = 2
"""A job gives its pods up this often to a rival that gets no further node by that. So one that is stuck restarts no job
for ever."""


def _gives_way(job: Contender, other: Contender) -> bool:
    """Return whether pods of the job may hold the room that another one, which goes before it, waits for."""
    if _rank(other) > _rank(job) or not other.placeable or not _may_help(job, other):
        return False
    progress_at = other.progress_at or other.placed_at
    return sum(1 for moment in job.gave_up_at if moment > progress_at) < _MOST_IN_VAIN


def _may_help(job: Contender, other: Contender) -> bool:
    """Return whether pods of the job may be where another one waits for room."""
    (namespace, _), (other_namespace, _) = job.job, other.job
    if not near((namespace, job.pools), (other_namespace, other.pools)):
        return False
    if other.by_quota:
        return namespace == other_namespace
    return any(held.meets(lacking) for held in job.held for lacking in other.lacking)


def _rank(job: Contender) -> tuple[int, datetime, tuple[str, str]]:
    """Return the sort key of jobs: the smallest keeps its pods."""
    return -job.priority, job.created_at, job.job


# --- what pods demand, and whether other pods are in their way --------------------------------------------------------

_CLAIMS = "claims"
"""Stands for all devices of ResourceClaims."""


def _demand(template: Manifest) -> NodeDemand:
    """Return what the pods of a template demand."""
    spec = template["spec"]
    devices = {name for name, amount in pod_requests(spec).items() if "/" in name and amount}
    if spec.get("resourceClaims"):
        devices.add(_CLAIMS)
    labels = {key: frozenset({value}) for key, value in (spec.get("nodeSelector") or {}).items()}
    for expression in _expressions(spec):
        if expression.get("operator") == "In":
            values, key = frozenset(expression.get("values") or ()), expression["key"]
            labels[key] = labels.get(key, values) & values
    return NodeDemand(frozenset(devices), tuple(sorted(labels.items())))


def _expressions(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the required node affinity. Of several terms a node needs to match only one, so they exclude little."""
    required = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = required.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or ()
    return list(terms[0].get("matchExpressions") or ()) if len(terms) == 1 else []


_PREEMPTION = re.compile(r"preemption: 0/\d+ nodes are available: (?P<reasons>[^:]+?)\.*$")
_NOT_HELPFUL = re.compile(r"\d+ Preemption is not helpful for scheduling")


def _helped_by_other_pods(message: str) -> bool:
    """Return whether a pod that the scheduler cannot place may have room when other pods are gone.

    The scheduler says for each node whether the removal of pods could help. It could not if the node is too small,
    does not match the selector, or has a taint. True if it says nothing about that.
    """
    match = _PREEMPTION.search(message)
    if not match:
        return True
    return not all(_NOT_HELPFUL.fullmatch(reason) for reason in match["reasons"].split(", "))


_QUOTA = "exceeded quota"
_AMOUNTS = re.compile(r"requested: (?P<requested>\S+), used: \S+, limited: (?P<limited>\S+)")


def _fits_quota(message: str) -> bool:
    """Return whether a quota rejected a pod that it admits when other pods are gone."""
    if _QUOTA not in message:
        return False
    match = _AMOUNTS.search(message)
    if not match:
        return True
    limits = _amounts(match["limited"])
    return all(value <= limits.get(name, value) for name, value in _amounts(match["requested"]).items())


def _amounts(text: str) -> dict[str, float]:
    out = {}
    for part in text.split(","):
        name, _, amount = part.rpartition("=")
        try:
            out[name] = quantity(amount)
        except ValueError:
            continue
    return out
