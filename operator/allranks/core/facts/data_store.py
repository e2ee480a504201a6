"""The place of inputs and outputs on a cluster, and the use of its cache of inputs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from allranks.api.job import Resources
from allranks.api.pool import DataPods

DEFAULT_CACHE_BYTES = 100 << 30
DEFAULT_RESOURCES = Resources(requests={"cpu": "500m", "memory": "256Mi"}, limits={"cpu": "2", "memory": "2Gi"})
"""Of a pod that transfers files. A quota on limits.cpu or limits.memory admits only pods with these limits."""
UNSEEN = timedelta(minutes=10)
"""Entries of the cache that were used since then are not evicted: a job may read them whose status the operator has not
read yet, and the clocks of machines differ."""
_MOST_KEYS_IN_PODS = 32
"""Limit of the keys in the manifest of each pod of a job, which may have ten thousand."""


@dataclass(frozen=True, slots=True)
class DataStore:
    """Settings of a cluster for inputs that are fetched and for outputs."""

    claim: str
    """Name of the claim, in each namespace of jobs, with the cache of inputs and the directories of outputs. Empty:
    there are no outputs, and pods fetch inputs themselves."""
    image: str
    """Image of the pods that transfer files: allranks with its extra `data`."""
    cache_bytes: int
    """Bytes of inputs that the claim, or a directory of a node, holds before what was used longest ago is evicted. The
    size limit of an emptyDir for inputs."""
    host_path: str = ""
    """Directory of each node into which pods fetch their inputs, instead of the claim."""
    pods: DataPods | None = None
    """Resources and nodes of the pods that transfer files."""
    evictable: Evictable | None = None
    """Entries that a new pod may evict from the directory of its node; None for none."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Entries that the unfinished jobs of a namespace use in the cache of inputs."""

    keys: tuple[str, ...]
    """Names of entries (`cache_key`), sorted."""
    oldest: datetime | None = None
    """Time at which the oldest of these jobs was created."""


@dataclass(frozen=True, slots=True)
class Evictable:
    """Bounds of what a pod may evict from a cache: neither these entries, nor entries used since then. Every pod that
    reads an entry uses it when it starts, so it needs no lock for the life of the pod."""

    used: tuple[str, ...]
    since: int
    """Seconds since 1970."""


def evictable(use: CacheUse | None, now: datetime) -> Evictable | None:
    """Return the entries that a pod may evict; None without information about their use.

    If unfinished jobs use too many entries to list, everything used since the oldest of these jobs was created stays.
    """
    if use is None:
        return None
    if len(use.keys) <= _MOST_KEYS_IN_PODS:
        return Evictable(use.keys, int((now - UNSEEN).timestamp()))
    return Evictable((), int((use.oldest - UNSEEN).timestamp())) if use.oldest else None
