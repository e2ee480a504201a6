"""What the operator has been shown, and what it wrote itself, by key: only ever newer versions.

Resource versions are compared as numbers, which Kubernetes promises since 1.35 and etcd has always made true.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

from allranks.core.model import Manifest, Pod
from allranks.kube.pod_codec import CachedPod

JobKey = tuple[str, str]
"""(namespace, name)"""

_TOMBSTONES = 20_000
LATE_SECONDS = 120.0
"""Answers come no later: four times as long as the operator waits for one, if it is not told otherwise."""


class _Versions:
    """The newest version seen of each key, deleted ones included for a while: an answer may come after the watch."""

    def __init__(self, late: float) -> None:
        self._late = late
        self._present: dict[Any, int] = {}
        self._gone: OrderedDict[Any, tuple[int, float]] = OrderedDict()
        """(version, when it was told), the latest last."""

    def is_news(self, key: Any, version: int, deleted: bool) -> bool:
        if version < self._present.get(key, 0) or (key in self._gone and version <= self._gone[key][0]):
            return False
        if deleted:
            self._present.pop(key, None)
            now = time.monotonic()
            self._gone[key] = version, now
            self._gone.move_to_end(key)
            while len(self._gone) > _TOMBSTONES or next(iter(self._gone.values()))[1] < now - self._late:
                self._gone.popitem(last=False)
            return True
        known = self._present.get(key)
        self._present[key] = version
        return known != version

    def __getitem__(self, key: Any) -> int:
        return self._present.get(key, 0)


class PodCache:
    """Pods of all jobs. `wake` is told the jobs that a change concerns, and whether it is trouble: a failure, or a pod
    that is taken away. An answer may come `late` seconds after what the watch tells."""

    def __init__(self, wake: Callable[[JobKey, bool], None], late: float = LATE_SECONDS) -> None:
        self._wake, self.late = wake, late
        self._pods: dict[tuple[str, str], CachedPod] = {}
        self._of_job: defaultdict[JobKey, dict[str, CachedPod]] = defaultdict(dict)
        self._versions = _Versions(late)
        self.changes = 0
        """Grows with every change."""

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[CachedPod]:
        return iter(self._pods.values())

    def of(self, job: JobKey, uid: str) -> tuple[Pod, ...]:
        """What carries the job's label, whoever owns it, and what it owns, whatever its labels say."""
        namespace, name = job
        out = []
        for seen in self._of_job.get((namespace, name), {}).values():
            if seen.owner == uid:
                out.append(seen.pod)
            elif seen.label == name:
                out.append(_foreign(seen.pod))
        return tuple(out)

    def at(self, namespace: str, name: str) -> CachedPod | None:
        return self._pods.get((namespace, name))

    def show(self, seen: CachedPod, deleted: bool = False) -> None:
        key = (seen.namespace, seen.pod.name)
        if not self._versions.is_news(key, seen.version, deleted):
            return
        self.changes += 1
        before = self._pods.pop(key, None)
        if before:
            for name in before.jobs:
                self._forget((seen.namespace, name), seen.pod.name)
        if not deleted:
            self._pods[key] = seen
            for name in seen.jobs:
                self._of_job[(seen.namespace, name)][seen.pod.name] = seen
        trouble = _in_trouble(seen.pod, deleted) and not (before and _in_trouble(before.pod))
        for name in seen.jobs | (before.jobs if before else frozenset()):
            self._wake((seen.namespace, name), trouble)

    def relist(self, present: Sequence[CachedPod], version: int, namespace: str | None) -> None:
        """All there is (in that namespace), as of `version`; what is newer here came with an answer of our own."""
        for seen in present:
            self.show(seen)
        names = {(seen.namespace, seen.pod.name) for seen in present}
        for key, known in list(self._pods.items()):
            if key not in names and known.version <= version and namespace in (None, known.namespace):
                self.show(known._replace(version=version), deleted=True)

    def versions(self) -> Iterable[tuple[tuple[str, str], int]]:
        return ((key, seen.version) for key, seen in list(self._pods.items()))

    def _forget(self, job: JobKey, pod: str) -> None:
        pods = self._of_job[job]
        pods.pop(pod, None)
        if not pods:
            del self._of_job[job]


def _in_trouble(pod: Pod, gone: bool = False) -> bool:
    return not pod.succeeded and (gone or pod.ended or pod.termination_requested_at is not None)


def _foreign(pod: Pod) -> Pod:
    return replace(pod, owned=False)


class JobCache:
    """Jobs as their JSON, by key."""

    def __init__(self, late: float = LATE_SECONDS) -> None:
        self._jobs: dict[JobKey, Manifest] = {}
        self._versions = _Versions(late)

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[JobKey]:
        return iter(list(self._jobs))

    def get(self, key: JobKey) -> Manifest | None:
        return self._jobs.get(key)

    def show(self, job: Manifest, deleted: bool = False) -> bool:
        """Whether it was news."""
        metadata = job["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        if not self._versions.is_news(key, int(metadata.get("resourceVersion") or 0), deleted):
            return False
        if deleted:
            self._jobs.pop(key, None)
        else:
            self._jobs[key] = job
        return True

    def forget(self, key: JobKey) -> None:
        """The API server says that there is none."""
        self._jobs.pop(key, None)

    def gone(self, present: Set[JobKey], version: int, namespace: str | None) -> list[Manifest]:
        """Those that are not `present`, which is all there is (in that namespace), as of `version`."""
        return [
            {**job, "metadata": {**job["metadata"], "resourceVersion": str(version)}}
            for key, job in self._jobs.items()
            if key not in present and namespace in (None, key[0]) and int(job["metadata"]["resourceVersion"]) <= version
        ]

    def versions(self) -> Iterable[tuple[JobKey, int]]:
        return ((key, int(job["metadata"]["resourceVersion"])) for key, job in list(self._jobs.items()))
