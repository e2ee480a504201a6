"""What the operator has been shown so far: a cache behind a watch, late, gappy and repetitive as real ones can be.

It holds per object only ever newer versions, whatever order they arrive in; what a watch lost, a relist brings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from allranks.api import pool
from allranks.api.job import KIND
from allranks.core.model import Manifest
from allranks.core.naming import JOB_LABEL

from .store import Change, Key, Store, controller_of, key_of


@dataclass(frozen=True, slots=True)
class Lag:
    """How the watch misbehaves. The default is a perfect one."""

    seconds: float = 0.0
    """Each change arrives after a time of its own, up to this."""
    lost: float = 0.0
    """Share of changes that never arrive, until the relist."""
    repeated: float = 0.0
    """Share of changes that arrive a second time, later."""
    relist_seconds: float = 60.0
    """How long after a loss everything is listed again."""
    own_writes: bool = True
    """What the operator created is in its cache from the answer on, without waiting for the watch."""


WATCHED = (KIND, "Pod", pool.KIND)


class Timer(Protocol):
    """The part of a cluster that a view needs."""

    def after(self, seconds: float, action: Callable[[], None]) -> None: ...
    def random(self) -> float: ...


class View:
    """Jobs, pods and pools by key, each as it was at some version."""

    def __init__(self, store: Store, timer: Timer, lag: Lag, wake: Callable[[Key], None]) -> None:
        self._store, self._timer, self._lag, self._wake = store, timer, lag, wake
        self._versions: dict[Key, int] = {}
        self._relist_is_due = False
        self._open = True
        self.jobs: dict[Key, Manifest] = {}
        self.pods: dict[Key, Manifest] = {}
        self.pools: dict[Key, Manifest] = {}
        self.changes = 0
        """Grows with every change of the content."""
        store.watchers.append(self._changed)
        self.relist()

    def close(self) -> None:
        self._open = False
        self._store.watchers.remove(self._changed)

    def relist(self) -> None:
        """Everything as it is now."""
        self._relist_is_due = False
        present = {key_of(manifest): manifest for kind in WATCHED for manifest in self._store.all(kind)}
        for key, manifest in present.items():
            self._show(key, manifest, int(manifest["metadata"]["resourceVersion"]))
        for key in [key for key in (*self.jobs, *self.pods, *self.pools) if key not in present]:
            self._show(key, None, self._store.version)

    def remember(self, manifest: Manifest) -> None:
        """The answer to a write of a job's status, or of a creation: the watch brings it later."""
        if manifest["kind"] == KIND or self._lag.own_writes:
            self._show(key_of(manifest), manifest, int(manifest["metadata"]["resourceVersion"]))

    def refresh(self, key: Key) -> None:
        """Reads one object past the watch, as after a conflict."""
        found = self._store.find(key)
        self._show(key, found, int(found["metadata"]["resourceVersion"]) if found else self._store.version)

    def pods_of(self, job: Manifest) -> list[Manifest]:
        """What carries the job's label, whoever owns it, and what it owns, whatever its labels say."""
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

    def pool_of(self, job: Manifest) -> Manifest | None:
        """The TrainingPool that it names."""
        return self.pools.get((pool.KIND, "", job["spec"].get("pool", "")))

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
            self._show(change.key, None if change.kind == "DELETED" else change.object, change.version)
            self._wake_owner(change.object)

    def _relist(self) -> None:
        if self._open:
            self.relist()
            for key in list(self.jobs):
                self._wake(key)

    def _show(self, key: Key, manifest: Manifest | None, version: int) -> None:
        if version <= self._versions.get(key, 0):
            return
        self._versions[key] = version
        self.changes += 1
        shelf = {KIND: self.jobs, "Pod": self.pods, pool.KIND: self.pools}[key[0]]
        if manifest is None:
            shelf.pop(key, None)
        else:
            shelf[key] = manifest

    def _wake_owner(self, manifest: Manifest) -> None:
        kind, namespace, name = key_of(manifest)
        if kind == KIND:
            self._wake((kind, namespace, name))
            return
        if kind == pool.KIND:
            for key, job in list(self.jobs.items()):
                if job["spec"].get("pool") == name:
                    self._wake(key)
            return
        owners = [r["name"] for r in manifest["metadata"].get("ownerReferences", ()) if r.get("kind") == KIND]
        label = manifest["metadata"].get("labels", {}).get(JOB_LABEL)
        for job in {*owners, *([label] if label else [])}:
            self._wake((KIND, namespace, job))
