"""What the unfinished jobs of a namespace have in the cache of inputs, so that no fetch evicts it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from allranks.api.status import FINISHED, WITHOUT_PODS, Status
from allranks.cache_key import cache_key
from allranks.core.facts.model import Manifest
from allranks.core.facts.uploads import CacheUse
from allranks.kube import compact_jobs

MOST_KEYS = 1000
"""They are in the manifest of a pod. If jobs use more, nothing is evicted."""


def fetches(status: Status) -> bool:
    """Whether pods of the job that fetch may be created now."""
    if status.phase in FINISHED or not status.inputs:
        return False
    creates = status.phase not in WITHOUT_PODS and (not status.launched or bool(status.replica_restarts))
    on_nodes = any(each.location == "Node" for each in status.inputs)
    return (on_nodes and creates) or any(each.state != "Ready" for each in status.inputs)


def cache_use(jobs: Iterable[Manifest | None], namespace: str) -> CacheUse | None:
    """None: too many to list, so nothing may be evicted."""
    keys: set[str] = set()
    created: list[str] = []
    for job in jobs:
        if job and job["metadata"].get("namespace") == namespace and (own := set(_keys(job))):
            keys |= own
            created.append(job["metadata"].get("creationTimestamp") or "")
    oldest = datetime.fromisoformat(min(created)) if created and all(created) else None
    return CacheUse(tuple(sorted(keys)), oldest) if len(keys) <= MOST_KEYS else None


def _keys(job: Manifest) -> Iterable[str]:
    status = job.get("status")
    inputs = status.get("inputs") if isinstance(status, dict) and status.get("phase") not in FINISHED else None
    revisions = {each.get("name"): each.get("revision") for each in inputs or () if each.get("revision")}
    if not revisions:
        return
    try:
        wanted = msgspec.json.decode(compact_jobs.spec_of(job).json, type=_Spec).inputs
    except msgspec.DecodeError:
        return
    for each in wanted:
        if revision := revisions.get(each.name):
            yield cache_key(each.source, f"sha256:{each.sha256}" if each.sha256 else revision)


class _Input(msgspec.Struct):
    name: str
    source: str = msgspec.field(name="from")
    sha256: str | None = None


class _Spec(msgspec.Struct):
    inputs: list[_Input] = []
