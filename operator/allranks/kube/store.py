"""Mirrors of collections of the API server, as client-go's Store.

Watches and the responses to our own writes feed a store in any order: an older version never replaces a newer one. A
deletion leaves a tombstone, because the response to our own request may arrive after the watch event. Resource versions
are compared as numbers, which Kubernetes guarantees since 1.35 and etcd has always fulfilled.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

TOMBSTONE_TTL = 120.0
"""Seconds: four request timeouts, after which no response can still arrive."""
_TOMBSTONES = 20_000


class Store(Generic[K, V]):
    """The newest version of each object, by key."""

    def __init__(
        self,
        version_of: Callable[[V], int],
        tombstone_ttl: float = TOMBSTONE_TTL,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._version_of, self._ttl, self._monotonic = version_of, tombstone_ttl, monotonic
        self._objects: dict[K, V] = {}
        self._tombstones: OrderedDict[K, tuple[int, float]] = OrderedDict()
        """Key -> (version, time of the deletion event), the latest last."""
        self.objects: Mapping[K, V] = self._objects

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[K]:
        """Iterate over a copy of the keys: objects may come and go meanwhile."""
        return iter(list(self._objects))

    def __contains__(self, key: K) -> bool:
        return key in self._objects

    @property
    def tombstones(self) -> int:
        return len(self._tombstones)

    def get(self, key: K) -> V | None:
        return self._objects.get(key)

    def is_newer(self, key: K, version: int) -> bool:
        """Return whether an object of this version changes the store."""
        current = self._objects.get(key)
        if current is not None:
            return version > self._version_of(current)
        return key not in self._tombstones or version > self._tombstones[key][0]

    def put(self, key: K, value: V) -> bool:
        """Store an object. Return False if the stored version is not older."""
        if not self.is_newer(key, self._version_of(value)):
            return False
        self._objects[key] = value
        return True

    def delete(self, key: K, version: int) -> bool:
        """Remove an object that was deleted at this version. Return False if this is not new."""
        current = self._objects.get(key)
        if current is not None and version < self._version_of(current):
            return False
        if key in self._tombstones and version <= self._tombstones[key][0]:
            return False
        self._objects.pop(key, None)
        now = self._monotonic()
        self._tombstones[key] = version, now
        self._tombstones.move_to_end(key)
        while len(self._tombstones) > _TOMBSTONES or next(iter(self._tombstones.values()))[1] < now - self._ttl:
            self._tombstones.popitem(last=False)
        return True

    def forget(self, key: K) -> V | None:
        """Remove and return an object that the API server does not find."""
        current = self._objects.get(key)
        if current is not None:
            self.delete(key, self._version_of(current))
        return current

    def drop(self, key: K) -> None:
        """Remove an object whose collection is no longer mirrored. It leaves no tombstone."""
        self._objects.pop(key, None)

    def missing_from(
        self, present: Collection[K], version: int, listed: Callable[[K], bool] = lambda _: True
    ) -> list[tuple[K, V]]:
        """Return the objects that a complete list of the `listed` keys at `version` does not contain.

        Newer objects came with a response to our own request, and stay.
        """
        return [
            (key, value)
            for key, value in self._objects.items()
            if key not in present and listed(key) and self._version_of(value) <= version
        ]


def version_of(manifest: Mapping[str, Any]) -> int:
    """Return the resourceVersion of an object."""
    return int(manifest["metadata"].get("resourceVersion") or 0)


def without_managed_fields(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object without managedFields, which kubectl hides, too."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "managedFields"}
    return {**manifest, "metadata": metadata}


def with_version(manifest: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Return the object with another resourceVersion."""
    return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(version)}}


def differences(
    before: Mapping[K, V], after: Mapping[K, V], version_of: Callable[[V], object]
) -> Iterator[tuple[Literal["added", "changed", "deleted"], V]]:
    """Yield what a new list changes, for a mirror that no response feeds: the list is the truth."""
    for key, value in before.items():
        if key not in after:
            yield "deleted", value
    for key, value in after.items():
        if key not in before:
            yield "added", value
        elif version_of(value) != version_of(before[key]):
            yield "changed", value
