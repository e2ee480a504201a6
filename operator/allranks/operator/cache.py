"""Caches of pods and jobs, fed by watches and by the responses to our own writes."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace

from allranks.core.diagnosis.pod_ends import says_what_ended_it
from allranks.core.facts.model import Manifest, Pod
from allranks.kube import compact_jobs
from allranks.kube.pod_codec import CachedPod
from allranks.kube.store import TOMBSTONE_TTL, Store, version_of, with_version
from allranks.operator.timing import Clock

JobKey = tuple[str, str]
"""(namespace, name)"""

_REMOVED = 5_000


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
        self._pods: Store[tuple[str, str], CachedPod] = Store(
            lambda cached: cached.version, tombstone_ttl, (clock or Clock()).monotonic
        )
        self._by_job: defaultdict[JobKey, dict[str, CachedPod]] = defaultdict(dict)
        self._removed: defaultdict[str, dict[str, Pod]] = defaultdict(dict)
        """UID of the owner -> name -> pod that is gone, with the status in its deletion event. The pod garbage
        collector, and a kubelet that starts after a reboot, write what ended a pod and delete it within milliseconds,
        often before a reconcile reads it."""
        self._removed_order: deque[tuple[str, str]] = deque()

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[CachedPod]:
        return iter(list(self._pods.objects.values()))

    @property
    def tombstones(self) -> int:
        return self._pods.tombstones

    def for_job(self, job: JobKey, uid: str) -> tuple[Pod, ...]:
        """Return the pods with the job's label, also pods of other owners, and the pods that the job owns, also pods
        without the label."""
        namespace, name = job
        out = []
        for cached in self._by_job.get((namespace, name), {}).values():
            if cached.owner == uid:
                out.append(cached.pod)
            elif cached.label == name:
                out.append(replace(cached.pod, owned=False))
        return tuple(out)

    def removed(self, uid: str) -> dict[str, Pod]:
        """Return the last states of the job's pods that are gone, by name.

        They succeeded, or their status says what ended them. Of all jobs together, the newest 5000 are kept.
        """
        return dict(self._removed.get(uid, {}))

    def get(self, namespace: str, name: str) -> CachedPod | None:
        return self._pods.get((namespace, name))

    def upsert(self, cached: CachedPod, deleted: bool = False) -> None:
        key = (cached.namespace, cached.pod.name)
        before = self._pods.get(key)
        if not (self._pods.delete(key, cached.version) if deleted else self._pods.put(key, cached)):
            return
        if before:
            for name in before.jobs:
                self._forget((cached.namespace, name), cached.pod.name)
        if deleted:
            self._keep_removed(cached)
        else:
            for name in cached.jobs:
                self._by_job[(cached.namespace, name)][cached.pod.name] = cached
        urgent = _is_urgent(cached.pod, deleted) and not (before and _is_urgent(before.pod))
        freed = deleted or (cached.pod.ended and not (before and before.pod.ended))
        for name in cached.jobs | (before.jobs if before else frozenset()):
            if freed:
                self._freed((cached.namespace, name))
            self._enqueue((cached.namespace, name), urgent)

    def relist(self, present: Sequence[CachedPod], version: int, namespace: str | None) -> None:
        """Take a complete list (of a namespace, if one is named) at `version`."""
        for cached in present:
            self.upsert(cached)
        names = {(cached.namespace, cached.pod.name) for cached in present}
        for _, cached in self._pods.missing_from(names, version, lambda key: namespace in (None, key[0])):
            self.upsert(cached._replace(version=version), deleted=True)

    def _keep_removed(self, cached: CachedPod) -> None:
        """Keep a pod until 5000 others are gone: its job may be reconciled later."""
        if not cached.owner or not (cached.pod.succeeded or says_what_ended_it(cached.pod)):
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
    """Jobs by key, with specs that are not decoded, and without those that are large. Calls `changed(job)` for each job
    that changes or is gone."""

    def __init__(
        self,
        tombstone_ttl: float = TOMBSTONE_TTL,
        clock: Clock | None = None,
        changed: Callable[[Manifest], None] = lambda job: None,
    ) -> None:
        self._changed = changed
        self._jobs: Store[JobKey, Manifest] = Store(version_of, tombstone_ttl, (clock or Clock()).monotonic)

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[JobKey]:
        return iter(self._jobs)

    def get(self, key: JobKey) -> Manifest | None:
        return self._jobs.get(key)

    def upsert(self, job: Manifest, deleted: bool = False) -> bool:
        """Store a job, or remove it. Return False for an outdated version."""
        metadata = job["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        if not (self._jobs.delete(key, version_of(job)) if deleted else self._jobs.is_newer(key, version_of(job))):
            return False
        compact = compact_jobs.without_large_spec(compact_jobs.compact(job))
        if not deleted:
            self._jobs.put(key, compact)
        self._changed(compact)
        return True

    def forget(self, key: JobKey) -> None:
        """Remove a job that the API server does not find."""
        if (gone := self._jobs.forget(key)) is not None:
            self._changed(gone)

    def missing_from_list(self, present: Set[JobKey], version: int, namespace: str | None) -> list[Manifest]:
        """Return the cached jobs that a complete list (of a namespace, if one is named) at `version` does not
        contain."""
        missing = self._jobs.missing_from(present, version, lambda key: namespace in (None, key[0]))
        return [with_version(job, version) for _, job in missing]
