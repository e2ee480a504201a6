"""The place into which a cluster fetches the inputs of a job.

    Claim   a pod of its own fetches into a volume that all pods of the namespace share
    Node    the pods of ranks fetch into a directory of their node, HOST_PATH/NAMESPACE.UID, which they share there
    Pod     each pod of a rank fetches into an emptyDir

The platform team chooses: the pool of rank 0, else the operator's settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from allranks.api.data import Input, InputStatus, Location
from allranks.api.job import Job
from allranks.core.facts import pool_template
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.quantity import whole_number

VOLUME = "allranks-inputs"


@dataclass(frozen=True, slots=True)
class Place:
    location: Location
    limit: int
    """Bytes."""
    host_path: str = ""

    def volume_source(self, namespace: str, uid: str) -> Manifest:
        """Return the volume of Node and Pod.

        It has no directory of another namespace, for a mount of the job's author, nor of an earlier namespace of the
        same name. `uid`: of the namespace; empty if it is not read.
        """
        if self.location == "Node":
            path = f"{self.host_path.rstrip('/')}/{namespace}{f'.{uid}' if uid else ''}"
            return {"hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        return {"emptyDir": {"sizeLimit": str(self.limit)}}


def place(job: Job, platform: Platform) -> Place | None:
    """Return the place of an input that is not fetched yet; None in a local run, or if the cluster fetches nothing."""
    store, pool = platform.data, pool_template.pool_of_ranks(job, platform)
    if platform.local or store is None:
        return None
    if pool and (cache := pool.input_cache):
        limit = store.cache_bytes if cache.size_limit is None else whole_number(cache.size_limit)
        return Place("Node", limit, cache.host_path) if cache.host_path else Place("Pod", limit)
    if store.host_path:
        return Place("Node", store.cache_bytes, store.host_path)
    return Place("Claim" if store.claim else "Pod", store.cache_bytes)


def place_of(item: Input, state: InputStatus | None, job: Job, platform: Platform) -> Place | None:
    """Return the place of an input that pods of ranks read.

    An input in the claim stays there, and any other is fetched by the pods, whatever the platform team chose since.
    """
    now = place(job, platform)
    if item.mounted or item.streamed or now is None or platform.data is None:
        return None
    if state is None or state.state != "Ready":
        return now
    if state.location in (None, "Claim") and platform.data.claim:
        return Place("Claim", platform.data.cache_bytes)
    return now if now.location != "Claim" else Place("Pod", now.limit)
