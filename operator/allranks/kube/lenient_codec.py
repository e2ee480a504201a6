"""Jobs and pods of a cluster as the rest of the command line knows them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from allranks.api.job import Job, Metadata, Spec
from allranks.api.status import Status
from allranks.core import topology
from allranks.core.model import Pod
from allranks.core.naming import PLACEHOLDER, replica_key
from allranks.kube.login import Manifest


def status_of(job: Manifest) -> Status:
    """What a newer operator writes and this version does not understand is left out, never a reason to show nothing."""
    found = copy.deepcopy(job.get("status") or {})
    for _ in range(20):
        try:
            return Status.model_validate(found, by_alias=True, by_name=False)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                _drop(found, detail["loc"])
    return Status()


def job_of(job: Manifest) -> Job | None:
    """None where this version does not understand the job's spec."""
    try:
        metadata = Metadata.model_validate(job["metadata"], by_alias=True, by_name=False)
        return Job(metadata=metadata, spec=Spec.model_validate(job["spec"], by_alias=True, by_name=False))
    except ValidationError:
        return None


def pods_of(job: Manifest, pods: Iterable[Manifest]) -> list[Pod]:
    """The job's own pods, by attempt, then in the order of ranks; without those that only wait for room."""
    import msgspec

    from allranks.kube.pod_codec import Raw, pod

    uid = job["metadata"]["uid"]
    whole = (pod(msgspec.convert(_whole(manifest), Raw)) for manifest in pods if _owner(manifest) == uid)
    own = [found for found in whole if found.role != PLACEHOLDER]
    places = {key: place for place, key in enumerate(ranks_of(job))}
    return sorted(own, key=lambda pod: (pod.attempt, places.get(replica_key(pod.role, pod.index), 1 << 30), pod.name))


def ranks_of(job: Manifest) -> dict[str, int | None]:
    """Replica -> its (node) rank, in the order of ranks; None for one that holds none, such as a parameter server."""
    parsed = job_of(job)
    if parsed is None:
        return {}
    return {replica_key(r.role, r.index): r.node_rank for r in topology.replicas(parsed, status_of(job))}


def _owner(pod: Manifest) -> str:
    """UID of its controller. Labels alone adopt nothing."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")


def _whole(pod: Manifest) -> Manifest:
    """A pod that nothing has happened to yet lacks what others have."""
    return {**pod, "status": {"phase": "Pending", **(pod.get("status") or {})}, "spec": pod.get("spec") or {}}


def _drop(value: Any, path: tuple[int | str, ...]) -> None:
    """Removes what is at `path`, or the nearest thing above it that is there."""
    for step in path[:-1]:
        inner = value.get(step) if isinstance(value, dict) else value[step] if _has(value, step) else None
        if not isinstance(inner, dict | list):
            break
        value, path = inner, path[1:]
    key = path[0]
    if isinstance(value, dict):
        value.pop(key, None) if key in value else value.clear()
    elif _has(value, key):
        del value[int(key)]


def _has(value: Any, step: int | str) -> bool:
    return isinstance(value, list) and isinstance(step, int) and step < len(value)
