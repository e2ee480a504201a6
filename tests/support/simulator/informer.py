"""The operator's cache of watched objects. Events may be delayed, lost or repeated, as those of a real watch.

An older version never replaces a newer one. A relist restores what the watch lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from allranks.api import pool
from allranks.api.job import KIND
from allranks.core.facts.model import Manifest
from allranks.core.facts.naming import JOB_LABEL
from allranks.core.facts.optional_kinds import BY_ID, ObjectKey, kind_of

from .store import Change, Key, Store, controller_of, key_of


@dataclass(frozen=True, slots=True)
class Lag:
    """Faults of the watch. By default there are none."""

    seconds: float = 0.0
    """Maximum delay of an event. Each has a random one."""
    lost: float = 0.0
    """Share of events that are lost, until the next relist."""
    repeated: float = 0.0
    """Share of events that arrive twice."""
    relist_seconds: float = 60.0
    """Time from a lost event to the relist."""
    own_writes: bool = True
    """Created objects enter the cache with the response to the request, before the watch event."""

    @property
    def longest(self) -> timedelta:
        """The operator sees a change within this time."""
        return timedelta(seconds=max(self.seconds, self.relist_seconds if self.lost else 0.0))


OPTIONAL = tuple(kind.kind for kind in BY_ID.values())
WATCHED = (KIND, "Pod", pool.KIND, *OPTIONAL)


class Timer(Protocol):
    """The part of a cluster that an informer needs."""

    def after(self, seconds: float, action: Callable[[], None]) -> None: ...
    def random(self) -> float: ...


class Informer:
    """Jobs, pods and pools by key, each in a version that may be outdated."""

    def __init__(self, store: Store, timer: Timer, lag: Lag, enqueue: Callable[[Key], None]) -> None:
        self._store, self._timer, self._lag, self._enqueue = store, timer, lag, enqueue
        self._versions: dict[Key, int] = {}
        self._relist_is_due = False
        self._open = True
        self.jobs: dict[Key, Manifest] = {}
        self.pods: dict[Key, Manifest] = {}
        self.pools: dict[Key, Manifest] = {}
        self.others: dict[Key, Manifest] = {}
        """Objects of optional kinds."""
        self.changes = 0
        """Number of changes of the cache."""
        store.watchers.append(self._changed)
        self.relist()

    def close(self) -> None:
        self._open = False
        self._store.watchers.remove(self._changed)

    def relist(self) -> None:
        """Replaces the cache by the current objects."""
        self._relist_is_due = False
        present = {key_of(manifest): manifest for kind in WATCHED for manifest in self._store.all(kind)}
        for key, manifest in present.items():
            self._upsert(key, manifest, int(manifest["metadata"]["resourceVersion"]))
        for key in [key for key in (*self.jobs, *self.pods, *self.pools, *self.others) if key not in present]:
            self._upsert(key, None, self._store.version)

    def remember(self, manifest: Manifest) -> None:
        """Caches the response to a status write or to a creation, before the watch event arrives."""
        if manifest["kind"] == KIND or self._lag.own_writes:
            self._upsert(key_of(manifest), manifest, int(manifest["metadata"]["resourceVersion"]))

    def refresh(self, key: Key) -> None:
        """Reads one object from the store, as after a conflict."""
        found = self._store.find(key)
        self._upsert(key, found, int(found["metadata"]["resourceVersion"]) if found else self._store.version)

    def pods_of(self, job: Manifest) -> list[Manifest]:
        """Pods with the job's label, of any owner, and pods that the job owns, with any labels."""
        metadata = job["metadata"]
        return [
            pod
            for key, pod in self.pods.items()
            if key[1] == metadata.get("namespace", "default")
            and (
                pod["metadata"].get("labels", {}).get(JOB_LABEL) == metadata["name"]
                or controller_of(pod) == metadata["uid"]
            )
        ]

    def optional_objects(self, served: Collection[str]) -> dict[ObjectKey, Manifest]:
        """Cached objects of the optional kinds with these ids."""
        found = ((kind_of(manifest), key, manifest) for key, manifest in self.others.items())
        return {(kind, key[1], key[2]): manifest for kind, key, manifest in found if kind in served}

    def pools_of(self, job: Manifest) -> dict[str, Manifest]:
        """Name -> TrainingPool that the job or a role names."""
        found = {name: self.pools.get((pool.KIND, "", name)) for name in _pools(job)}
        return {name: manifest for name, manifest in found.items() if manifest}

    def _changed(self, change: Change) -> None:
        if change.key[0] not in WATCHED:
            return
        if self._lag.lost and self._timer.random() < self._lag.lost:
            if not self._relist_is_due:
                self._relist_is_due = True
                self._timer.after(self._lag.relist_seconds, self._relist)
            return
        again = bool(self._lag.repeated) and self._timer.random() < self._lag.repeated
        for _ in range(1 + again):
            delay = self._lag.seconds and self._lag.seconds * self._timer.random()
            self._timer.after(delay, lambda: self._arrived(change))

    def _arrived(self, change: Change) -> None:
        if self._open:
            self._upsert(change.key, None if change.kind == "DELETED" else change.object, change.version)
            self._enqueue_owner(change.object)

    def _relist(self) -> None:
        if self._open:
            self.relist()
            for key in list(self.jobs):
                self._enqueue(key)

    def _upsert(self, key: Key, manifest: Manifest | None, version: int) -> None:
        if version <= self._versions.get(key, 0):
            return
        self._versions[key] = version
        self.changes += 1
        cache = {KIND: self.jobs, "Pod": self.pods, pool.KIND: self.pools}.get(key[0], self.others)
        if manifest is None:
            cache.pop(key, None)
        else:
            cache[key] = manifest

    def _enqueue_owner(self, manifest: Manifest) -> None:
        kind, namespace, name = key_of(manifest)
        if kind == KIND:
            self._enqueue((kind, namespace, name))
            return
        if kind == pool.KIND:
            for key, job in list(self.jobs.items()):
                if name in _pools(job):
                    self._enqueue(key)
            return
        if kind in OPTIONAL and not manifest["metadata"].get("ownerReferences"):
            for key in list(self.jobs):
                self._enqueue(key)
            return
        owners = [r["name"] for r in manifest["metadata"].get("ownerReferences", ()) if r.get("kind") == KIND]
        label = manifest["metadata"].get("labels", {}).get(JOB_LABEL)
        for job in {*owners, *([label] if label else [])}:
            self._enqueue((KIND, namespace, job))


def _pools(job: Manifest) -> set[str]:
    """The names of the TrainingPools that the job and its roles name."""
    roles = (job["spec"].get("roles") or {}).values()
    return {part["pool"] for part in (job["spec"], *roles) if isinstance(part, dict) and part.get("pool")}
