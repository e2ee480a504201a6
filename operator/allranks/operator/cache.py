"""Caches of pods and jobs, fed by watches and by the responses to our own writes. Older versions never replace newer
ones.

Resource versions are compared as numbers, which Kubernetes guarantees since 1.35 and etcd has always fulfilled.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

from allranks.core.diagnosis.root_cause import says_what_ended_it
from allranks.core.facts.model import Manifest, Pod
from allranks.kube import compact_jobs
from allranks.kube.pod_codec import CachedPod
from allranks.operator.timing import Clock

JobKey = tuple[str, str]
"""(namespace, name)"""

_TOMBSTONES = 20_000
_REMOVED = 5_000
TOMBSTONE_TTL = 120.0
"""Tombstone TTL: four request timeouts, after which no response can still arrive."""


class _Versions:
    """Highest resourceVersion per key. Deletions leave a tombstone, because the response to our own request may arrive
    after the watch event."""

    def __init__(self, ttl: float, clock: Clock) -> None:
        self._ttl, self._clock = ttl, clock
        self._present: dict[Any, int] = {}
        self._tombstones: OrderedDict[Any, tuple[int, float]] = OrderedDict()
        """Key -> (version, time of the deletion event), the latest last."""

    def is_newer(self, key: Any, version: int, deleted: bool) -> bool:
        """Records the version. Whether it changes what is cached."""
        if version < self._present.get(key, 0):
            return False
        if key in self._tombstones and version <= self._tombstones[key][0]:
            return False
        if deleted:
            self._present.pop(key, None)
            now = self._clock.monotonic()
            self._tombstones[key] = version, now
            self._tombstones.move_to_end(key)
            while len(self._tombstones) > _TOMBSTONES or next(iter(self._tombstones.values()))[1] < now - self._ttl:
                self._tombstones.popitem(last=False)
            return True
        previous = self._present.get(key)
        self._present[key] = version
        return previous != version

    def __len__(self) -> int:
        """Tombstones that are kept."""
        return len(self._tombstones)


class PodCache:
    """Pods of all jobs. Calls `enqueue(job, urgent)` for each job that a change concerns; failures and deletions are
    urgent. Before that, calls `freed(job)` when a pod ended or is gone, which returns room to a quota."""

    def __init__(
        self,
        enqueue: Callable[[JobKey, bool], None],
        tombstone_ttl: float = TOMBSTONE_TTL,
        clock: Clock | None = None,
        freed: Callable[[JobKey], None] = lambda job: None,
    ) -> None:
        self._enqueue, self._freed = enqueue, freed
        self._pods: dict[tuple[str, str], CachedPod] = {}
        self._by_job: defaultdict[JobKey, dict[str, CachedPod]] = defaultdict(dict)
        self._versions = _Versions(tombstone_ttl, clock or Clock())
        self._removed: defaultdict[str, dict[str, Pod]] = defaultdict(dict)
        """UID of the owner -> name -> pod that is gone, with the status in its deletion event. The pod garbage
        collector, and a kubelet that starts after a reboot, write what ended a pod and delete it within milliseconds,
        often before a reconcile reads it."""
        self._removed_order: deque[tuple[str, str]] = deque()

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[CachedPod]:
        return iter(list(self._pods.values()))

    @property
    def tombstones(self) -> int:
        return len(self._versions)

    def for_job(self, job: JobKey, uid: str) -> tuple[Pod, ...]:
        """Pods with the job's label, also those of other owners, and pods that the job owns, also those without the
        label."""
        namespace, name = job
        out = []
        for cached in self._by_job.get((namespace, name), {}).values():
            if cached.owner == uid:
                out.append(cached.pod)
            elif cached.label == name:
                out.append(replace(cached.pod, owned=False))
        return tuple(out)

    def removed(self, uid: str) -> dict[str, Pod]:
        """Name -> last state of each pod of the job that is gone and whose status says what ended it; of all jobs the
        newest 5000."""
        return dict(self._removed.get(uid, {}))

    def get(self, namespace: str, name: str) -> CachedPod | None:
        return self._pods.get((namespace, name))

    def upsert(self, cached: CachedPod, deleted: bool = False) -> None:
        key = (cached.namespace, cached.pod.name)
        if not self._versions.is_newer(key, cached.version, deleted):
            return
        before = self._pods.pop(key, None)
        if before:
            for name in before.jobs:
                self._forget((cached.namespace, name), cached.pod.name)
        if deleted:
            self._keep_removed(cached)
        else:
            self._pods[key] = cached
            for name in cached.jobs:
                self._by_job[(cached.namespace, name)][cached.pod.name] = cached
        urgent = _is_urgent(cached.pod, deleted) and not (before and _is_urgent(before.pod))
        freed = deleted or (cached.pod.ended and not (before and before.pod.ended))
        for name in cached.jobs | (before.jobs if before else frozenset()):
            if freed:
                self._freed((cached.namespace, name))
            self._enqueue((cached.namespace, name), urgent)

    def relist(self, present: Sequence[CachedPod], version: int, namespace: str | None) -> None:
        """A complete list (of that namespace) at `version`. A cached pod that is newer came with a response to our own
        request and stays."""
        for cached in present:
            self.upsert(cached)
        names = {(cached.namespace, cached.pod.name) for cached in present}
        for key, cached in list(self._pods.items()):
            if key not in names and cached.version <= version and namespace in (None, cached.namespace):
                self.upsert(cached._replace(version=version), deleted=True)

    def _keep_removed(self, cached: CachedPod) -> None:
        """Until 5000 others are gone: its job may be reconciled later."""
        if not cached.owner or not says_what_ended_it(cached.pod):
            return
        self._removed[cached.owner][cached.pod.name] = cached.pod
        self._removed_order.append((cached.owner, cached.pod.name))
        if len(self._removed_order) > _REMOVED:
            owner, name = self._removed_order.popleft()
            pods = self._removed[owner]
            pods.pop(name, None)
            if not pods:
                del self._removed[owner]

    def _forget(self, job: JobKey, pod: str) -> None:
        pods = self._by_job[job]
        pods.pop(pod, None)
        if not pods:
            del self._by_job[job]


def _is_urgent(pod: Pod, deleted: bool = False) -> bool:
    return not pod.succeeded and (deleted or pod.ended or pod.termination_requested_at is not None)


class JobCache:
    """Jobs by key, with specs that are not decoded. Calls `changed(job)` for each job that changes or is gone."""

    def __init__(
        self,
        tombstone_ttl: float = TOMBSTONE_TTL,
        clock: Clock | None = None,
        changed: Callable[[Manifest], None] = lambda job: None,
    ) -> None:
        self._changed = changed
        self._jobs: dict[JobKey, Manifest] = {}
        self._versions = _Versions(tombstone_ttl, clock or Clock())

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[JobKey]:
        return iter(list(self._jobs))

    def get(self, key: JobKey) -> Manifest | None:
        return self._jobs.get(key)

    def upsert(self, job: Manifest, deleted: bool = False) -> bool:
        """Whether it was newer than the cached version."""
        metadata = job["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        if not self._versions.is_newer(key, int(metadata.get("resourceVersion") or 0), deleted):
            return False
        compact = compact_jobs.compact(job)
        if deleted:
            self._jobs.pop(key, None)
        else:
            self._jobs[key] = compact
        self._changed(compact)
        return True

    def forget(self, key: JobKey) -> None:
        """The API server answered 404."""
        if (gone := self._jobs.pop(key, None)) is not None:
            self._changed(gone)

    def missing_from_list(self, present: Set[JobKey], version: int, namespace: str | None) -> list[Manifest]:
        """Cached jobs that a complete list (of that namespace) at `version` does not contain."""
        return [
            {**job, "metadata": {**job["metadata"], "resourceVersion": str(version)}}
            for key, job in self._jobs.items()
            if key not in present and namespace in (None, key[0]) and int(job["metadata"]["resourceVersion"]) <= version
        ]
