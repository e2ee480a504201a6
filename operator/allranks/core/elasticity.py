"""How many workers an elastic job has: as many as are wanted and as there is room for.

Where ranks restart at another size (PyTorch), an attempt has a fixed number of them. Workers that found no room are
waited for by pods that do nothing: the scheduler itself says when there is room, and nobody stops training to try.
Where they absorb it (Horovod), pods that are pending are just that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import pairwise

from allranks.api.job import Job
from allranks.api.status import ReplicaRestarts, RoleStatus, Status
from allranks.core import naming, root_cause, topology
from allranks.core.manifests import pod_template
from allranks.core.model import Manifest, Pod
from allranks.core.topology import ELASTIC_ROLE
from allranks.frameworks.base import Replica

SETTLE = timedelta(seconds=10)
"""When there is room for one more worker, so long is waited for room for all: each growth is a restart."""
FIRST_CALM, LONGEST_CALM = timedelta(minutes=4), timedelta(hours=1)
"""Room that was gone again when all had restarted is not sought anew for so long, four times as long each time."""
FORGOTTEN = timedelta(hours=6)
"""What was in vain longer ago says nothing of today's room."""
RETRIED_WITHIN = timedelta(seconds=15)
"""A scheduler looks again at a pod that it found no room for: its backoff is ten seconds at most."""
LEAVES_WITHIN = timedelta(minutes=5)
"""A pod that was told to go so long ago holds room that nobody can wait for."""
RETRY = timedelta(seconds=60)
"""A placeholder that has ended is made anew after so long."""


def roles(job: Job, status: Status) -> dict[str, RoleStatus]:
    """What a new attempt has: all that is wanted, but for workers that the one before found no room for."""
    wanted = {role: RoleStatus(desired=size) for role, size in topology.wanted_sizes(job).items()}
    before = status.roles.get(ELASTIC_ROLE)
    if before and before.waiting:
        size = wanted[ELASTIC_ROLE].desired
        there = min(size, before.desired)
        wanted[ELASTIC_ROLE] = RoleStatus(desired=there, waiting=size - there)
    return wanted


def takes(job: Job, status: Status) -> bool:
    """Whether the present attempt can come to the wanted size without ending."""
    kind, present, wanted = topology.elasticity(job), topology.sizes(job, status), topology.wanted_sizes(job)
    others = (present | {ELASTIC_ROLE: 0}) == (wanted | {ELASTIC_ROLE: 0})
    return others and (
        kind == "absorbs" or (kind == "restarts" and wanted.get(ELASTIC_ROLE, 0) >= present.get(ELASTIC_ROLE, 0))
    )


def want(job: Job, status: Status, now: datetime) -> Status:
    """So many workers are wanted now: of an attempt that takes it."""
    wanted = topology.wanted_sizes(job)[ELASTIC_ROLE]
    present = status.roles[ELASTIC_ROLE]
    if topology.elasticity(job) == "restarts":
        return with_role(status, present.model_copy(update={"waiting": wanted - present.desired}))
    gone = [naming.replica_key(ELASTIC_ROLE, index) for index in range(wanted, present.desired)]
    come = [naming.replica_key(ELASTIC_ROLE, index) for index in range(present.desired, wanted)]
    counts = {key: entry.count for key, entry in status.replica_restarts.items()}
    # Should they come back, then not by the names of pods that are on their way out.
    entries = {key: ReplicaRestarts(count=counts.get(key, 0) + 1, restart_time=now) for key in gone}
    entries |= {key: ReplicaRestarts(count=counts.get(key, 0), restart_time=now) for key in come}
    resized = status.model_copy(
        update={
            "replica_restarts": status.replica_restarts | entries,
            "ignored": [key for key in status.ignored if key not in gone],
        }
    )
    return with_role(resized, present.model_copy(update={"desired": wanted}))


def fitted(job: Job, status: Status, room: int) -> Status:
    """The next attempt has so many workers, and waits for room for the others."""
    lacking = topology.wanted_sizes(job)[ELASTIC_ROLE] - room
    return with_role(status, RoleStatus(desired=room, waiting=lacking))


def with_role(status: Status, workers: RoleStatus) -> Status:
    return status.model_copy(update={"roles": {**status.roles, ELASTIC_ROLE: workers}})


def gives_up_at(job: Job, status: Status, leaving: Iterable[Pod], now: datetime) -> datetime | None:
    """From when on an attempt that does not run yet goes on without pods that find no room.

    `leaving` are the pods of attempts before: those still have the room that is sought, unless they are lost with
    their node, or do not go.
    """
    begun = status.restart_time or status.attempt_time
    if topology.elasticity(job) != "restarts" or status.running_time or begun is None or job.spec.elastic is None:
        return None
    there = [pod for pod in leaving if pod.node and not pod.ended and root_cause.node_lost_at(pod) is None]
    gone = [(pod.deleted_at or now) + LEAVES_WITHIN for pod in there]
    wait = timedelta(seconds=job.spec.elastic.wait_seconds)
    if status.attempt:  # when the pods before have gone nobody writes down: they had their grace
        wait = max(wait, timedelta(seconds=pod_template.longest_grace_period(job)) + RETRIED_WITHIN)
    return max([begun + wait, *gone])


def shrinks_to(
    job: Job,
    status: Status,
    places: Iterable[Replica],
    pods: Mapping[tuple[str, int], Pod],
    refused: Collection[str],
) -> int | None:
    """So many workers have room, where not all have; None: all have, or too few, or that is not known yet.

    `refused` are names of pods that the API server did not take.
    """
    assert job.spec.elastic
    roomless = 0
    for replica in places:
        pod = pods.get((replica.role, replica.index))
        if pod is None and replica.hostname not in refused:
            return None
        if pod is None or pod.node is None:
            if pod and pod.waiting_reason != "Unschedulable":
                return None
            roomless += 1
    room = status.roles[ELASTIC_ROLE].desired - roomless
    return room if roomless and room >= job.spec.elastic.min_replicas else None


def placeholders(job: Job, status: Status, pods: Iterable[Manifest]) -> list[Manifest]:
    """Pods that do nothing, one for each worker that is waited for; to the scheduler they are workers.

    `pods` are the manifests of the present attempt.
    """
    worker = next(pod for pod in pods if pod["metadata"]["labels"][naming.ROLE_LABEL] == ELASTIC_ROLE)
    trainer = next(c for c in worker["spec"]["containers"] if c["name"] == naming.TRAINER)
    idle = [_idle(container, container["image"]) for container in worker["spec"]["containers"]]
    spec = {**worker["spec"], "containers": idle, "terminationGracePeriodSeconds": 0}
    if "initContainers" in spec:
        spec["initContainers"] = [_idle(container, trainer["image"], True) for container in spec["initContainers"]]
    shared = {key: value for key, value in worker["metadata"]["labels"].items() if key != naming.RESTART_LABEL}
    out = []
    for place in topology.waiting(job, status):
        labels = {**shared, naming.ROLE_LABEL: naming.PLACEHOLDER, naming.INDEX_LABEL: str(place.index)}
        metadata = {**worker["metadata"], "name": place.hostname, "labels": labels}
        out.append({**worker, "metadata": metadata, "spec": {**spec, "hostname": place.hostname}})
    return out


def _idle(container: Manifest, image: str, first: bool = False) -> Manifest:
    """As a scheduler sees it, it is the same. `first`: an init container, which has to end unless it is a sidecar."""
    kept = ("name", "imagePullPolicy", "resources", "securityContext", "restartPolicy")
    ends = first and container.get("restartPolicy") != "Always"
    ports = [port for port in container.get("ports", ()) if "hostPort" in port]
    return {
        **{key: container[key] for key in kept if key in container},
        **({"ports": ports} if ports else {}),
        "image": image,
        "command": ["sleep", "0" if ends else "infinity"],
    }


def grows_to(status: Status, placeholders: Iterable[Pod], now: datetime) -> int | None:
    """So many workers would have room now, where that is more than there are."""
    there = list(placeholders)
    room_since = [pod.started_at or now for pod in there if runs(pod)]
    if not room_since:
        return None
    workers = status.roles[ELASTIC_ROLE]
    if len(room_since) < workers.waiting and now < min(room_since) + SETTLE:
        return None
    return workers.desired + len(room_since)


def grows_at(placeholders: Iterable[Pod], now: datetime) -> datetime | None:
    """When room for some more workers is enough, or a placeholder is made anew."""
    there = list(placeholders)
    moments = [pod.started_at + SETTLE for pod in there if runs(pod) and pod.started_at]
    moments += [ended_at(pod, now) + RETRY for pod in there if pod.ended]
    return min((moment for moment in moments if moment > now), default=None)


def ended_at(placeholder: Pod, now: datetime) -> datetime:
    moments = (
        placeholder.exit and placeholder.exit.finished_at,
        placeholder.termination_requested_at,
        placeholder.created_at,
    )
    return next((moment for moment in moments if moment), now)


def seeks_room_from(status: Status) -> datetime | None:
    """From when on there may be placeholders: while the ranks run, and not soon after room that did not last."""
    if status.running_time is None:
        return None
    reasons = [(past.reason, past.end_time) for past in status.history]
    in_vain = sum(
        before == "Grown" and after == "Shrunk" and ended > status.running_time - FORGOTTEN
        for (before, _), (after, ended) in pairwise(reasons)
    )
    calm = min(LONGEST_CALM, FIRST_CALM * 4 ** (in_vain - 1)) if in_vain else timedelta(0)
    return status.running_time + calm


def runs(placeholder: Pod) -> bool:
    """There is room where it is."""
    return placeholder.phase == "Running" and not placeholder.ended and placeholder.termination_requested_at is None
