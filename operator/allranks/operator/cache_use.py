"""What the unfinished jobs of a namespace have in the cache of inputs, so that no fetch evicts it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from allranks.api.status import FINISHED
from allranks.cache_key import cache_key
from allranks.core.model import Manifest
from allranks.core.uploads import CacheUse
from allranks.kube import compact_jobs

MOST_KEYS = 1000
"""They are in the manifest of a pod. If jobs use more, nothing is evicted."""


def cache_use(jobs: Iterable[Manifest | None], namespace: str) -> CacheUse | None:
    """None: too many to list, so nothing may be evicted."""
    keys = {key for job in jobs if job and job["metadata"].get("namespace") == namespace for key in _keys(job)}
    return CacheUse(tuple(sorted(keys))) if len(keys) <= MOST_KEYS else None


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
