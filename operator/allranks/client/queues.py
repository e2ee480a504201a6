"""The queues of a namespace as people see them: quota, waiting jobs, and when they may begin. The sentences below
fields describe them in the OpenAPI document as well."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, WithJsonSchema

from allranks.core.facts.naming import controller_of
from allranks.core.facts.optional_kinds import LOCAL_QUEUE, WORKLOAD, OptionalKind
from allranks.core.facts.quantity import quantity
from allranks.errors import ClusterError
from allranks.kube import paths
from allranks.kube.cluster import Cluster
from allranks.kube.job_codec import status_of
from allranks.views.format.json_form import CONFIG, Moment

Manifest = Mapping[str, Any]

_Pair = Annotated[
    tuple[str, str], WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2})
]
"""Generators of clients know arrays, but not always tuples."""
_CLUSTER_QUEUE = OptionalKind("kueue.x-k8s.io", "ClusterQueue", "clusterqueues", LOCAL_QUEUE.versions, namespaced=False)
_VISIBILITY = "visibility.kueue.x-k8s.io"
_PREEMPTOR = re.compile(r"\(UID: ([0-9a-f-]{36})\b")


@dataclass(frozen=True)
class Waiting:
    """A job without quota."""

    job: str
    """The job, or `Kind/name` of another owner."""
    position: int | None
    """Jobs before it in the queue; null if Kueue's visibility API does not answer."""
    since: Moment | None
    reason: str
    message: str
    starts_in_seconds: float | None
    """Lower bound: the earliest time at which a running job ends, by its own estimate. null without one."""


@dataclass(frozen=True)
class Running:
    """An admitted job."""

    job: str
    priority: int
    eta_seconds: float | None


@dataclass(frozen=True)
class Preempted:
    """A job that lost its quota to another one."""

    job: str
    by: str
    """The other job; empty if the namespace does not have its Workload."""
    message: str
    """Kueue's message."""
    time: Moment


@dataclass(frozen=True)
class Queue:
    """A LocalQueue of Kueue, with its waiting and running jobs, as `allranks queue -o json` prints it."""

    __pydantic_config__: ClassVar[ConfigDict] = CONFIG

    name: str
    cluster_queue: str
    stopped: str
    """Its stopPolicy; empty if it is not stopped."""
    quota: dict[str, _Pair] = field(default_factory=dict)
    """Resource -> what all jobs of the ClusterQueue use, and the nominal quota."""
    running: tuple[Running, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    preempted: tuple[Preempted, ...] = ()
    """The last one first."""


async def read_queues(cluster: Cluster, names: tuple[str, ...]) -> list[Queue]:
    """Read the queues with these names, or all of the namespace. Raises ClusterError."""
    groups = {group["name"]: group for group in (await cluster.get(paths.GROUPS)).get("groups", ())}
    served = {item["version"] for item in groups.get(LOCAL_QUEUE.group, {}).get("versions", ())}
    version = next((item for item in LOCAL_QUEUE.versions if item in served), "")
    if not version:
        raise ClusterError("this cluster has no queues: Kueue is not installed")
    namespace = cluster.namespace
    queues = await _list(cluster, LOCAL_QUEUE, version, namespace)
    by_name = {item["metadata"]["name"]: item for item in queues}
    if missing := [name for name in names if name not in by_name]:
        existing = ", ".join(sorted(by_name)) or "none"
        raise ClusterError(f"namespace {namespace} has no LocalQueue {missing[0]}; it has: {existing}")
    workloads = await _list(cluster, WORKLOAD, version, namespace)
    jobs = (await cluster.get(paths.job_path(namespace))).get("items", ())
    out = []
    for name in names or sorted(by_name):
        local = by_name[name]
        path = paths.optional(_CLUSTER_QUEUE, version, None, local.get("spec", {}).get("clusterQueue", ""))
        cluster_queue = None
        with contextlib.suppress(ClusterError):  # a right that not every user has
            cluster_queue = await cluster.get(path)
        positions = await _positions(cluster, groups, namespace, name)
        out.append(describe(local, cluster_queue, workloads, {job["metadata"]["name"]: job for job in jobs}, positions))
    return out


def describe(
    queue: Manifest,
    cluster_queue: Manifest | None,
    workloads: Iterable[Manifest],
    jobs: Mapping[str, Manifest],
    positions: Mapping[str, int],
) -> Queue:
    """Describe a queue. `workloads` and `jobs` (by name): all of the namespace. `positions`: of waiting Workloads."""
    name, workloads = queue["metadata"]["name"], list(workloads)
    in_queue = [
        item for item in workloads if item.get("spec", {}).get("queueName") == name and not _is(item, "Finished")
    ]
    running = tuple(_running(workload, jobs) for workload in in_queue if _is(workload, "QuotaReserved"))
    waiting = [workload for workload in in_queue if not _is(workload, "QuotaReserved")]
    # The first job may begin when the first running one ends, the second one when the second ends, and so on.
    ends = sorted(job.eta_seconds for job in running if job.eta_seconds is not None)
    waiting.sort(key=lambda workload: (positions.get(workload["metadata"]["name"], 1 << 30), _created(workload)))
    return Queue(
        name=name,
        cluster_queue=queue.get("spec", {}).get("clusterQueue", ""),
        stopped=_stopped(queue) or _stopped(cluster_queue or {}),
        quota=_quota(cluster_queue or {}),
        running=running,
        waiting=tuple(
            _waiting(workload, positions, ends[min(number, len(ends) - 1)] if ends else None)
            for number, workload in enumerate(waiting)
        ),
        preempted=tuple(
            sorted(_preempted(name, jobs, workloads), key=lambda preempted: preempted.time, reverse=True),
        ),
    )


def _running(workload: Manifest, jobs: Mapping[str, Manifest]) -> Running:
    owner = _owner(workload)
    job = jobs.get(owner)
    progress = status_of(dict(job)).progress if job else None
    priority = int(workload.get("spec", {}).get("priority") or 0)
    return Running(owner, priority, progress.eta_seconds if progress else None)


def _waiting(workload: Manifest, positions: Mapping[str, int], starts_in: float | None) -> Waiting:
    reserved = _condition(workload, "QuotaReserved") or {}
    created = workload["metadata"].get("creationTimestamp")
    return Waiting(
        job=_owner(workload),
        position=positions.get(workload["metadata"]["name"]),
        since=datetime.fromisoformat(created) if created else None,
        reason=reserved.get("reason", ""),
        message=reserved.get("message", ""),
        starts_in_seconds=starts_in,
    )


def _preempted(queue: str, jobs: Mapping[str, Manifest], workloads: Iterable[Manifest]) -> Iterable[Preempted]:
    owners = {workload["metadata"].get("uid"): _owner(workload) for workload in workloads}
    for name, job in jobs.items():
        admission = status_of(dict(job)).queue
        eviction = admission.last_eviction if admission and admission.name == queue else None
        if eviction and eviction.reason == "Preempted":
            message = eviction.message
            uid = _PREEMPTOR.search(message)  # Kueue names it by the UID of its Workload
            yield Preempted(name, owners.get(uid[1], "") if uid else "", message, eviction.time)


def _quota(cluster_queue: Manifest) -> dict[str, tuple[str, str]]:
    """Resource -> (in use, nominal quota), summed over its flavors."""
    nominal: dict[str, list[str]] = {}
    for group in cluster_queue.get("spec", {}).get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for resource in flavor.get("resources") or ():
                nominal.setdefault(resource["name"], []).append(str(resource.get("nominalQuota", "0")))
    used: dict[str, list[str]] = {}
    for flavor in cluster_queue.get("status", {}).get("flavorsUsage") or ():
        for resource in flavor.get("resources") or ():
            used.setdefault(resource["name"], []).append(str(resource.get("total", "0")))
    return {name: (_total(used.get(name, [])), _total(amounts)) for name, amounts in nominal.items()}


def _total(amounts: list[str]) -> str:
    """Return a single amount as it is written, several as their sum."""
    if len(amounts) == 1:
        return amounts[0]
    total = sum(quantity(amount) for amount in amounts)
    return f"{total:g}"


def _stopped(manifest: Manifest) -> str:
    policy = str(manifest.get("spec", {}).get("stopPolicy") or "None")
    return "" if policy == "None" else policy


def _owner(workload: Manifest) -> str:
    owner = controller_of(workload)
    if not owner:
        return f"Workload/{workload['metadata']['name']}"
    return owner["name"] if owner["kind"] == "DistributedTraining" else f"{owner['kind']}/{owner['name']}"


def _created(workload: Manifest) -> str:
    return str(workload["metadata"].get("creationTimestamp", ""))


def _condition(workload: Manifest, kind: str) -> Manifest | None:
    conditions = workload.get("status", {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def _is(workload: Manifest, kind: str) -> bool:
    return (_condition(workload, kind) or {}).get("status") == "True"


async def _list(cluster: Cluster, kind: OptionalKind, version: str, namespace: str) -> list[Manifest]:
    items: list[Manifest] = (await cluster.get(paths.optional(kind, version, namespace))).get("items", [])
    return items


async def _positions(cluster: Cluster, groups: dict[str, Any], namespace: str, queue: str) -> dict[str, int]:
    """Return Workload -> number of Workloads before it in the queue; empty without the visibility API."""
    versions = [item["version"] for item in groups.get(_VISIBILITY, {}).get("versions", ())]
    if not versions:
        return {}
    path = f"/apis/{_VISIBILITY}/{versions[0]}/namespaces/{namespace}/localqueues/{queue}/pendingworkloads"
    try:
        pending = await cluster.get(path)
    except ClusterError:
        return {}
    return {item["metadata"]["name"]: int(item["positionInLocalQueue"]) for item in pending.get("items", ())}
