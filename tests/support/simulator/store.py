"""Objects as an API server keeps them: versions, UIDs, owners, conflicts, preconditions, graceful deletion, quota.

Manifests are immutable values: a change creates a new one.

ApiError
 ├─ NotFound        404
 ├─ AlreadyExists   409, on create
 ├─ Conflict        409, the resourceVersion or UID is not the current one
 ├─ Forbidden       403, quota
 └─ Invalid         422, the schema or a rule of the CRD
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal

from allranks.api import pool
from allranks.core.facts.model import Manifest
from allranks.errors import AllranksError
from allranks.kube import merge_patch

Key = tuple[str, str, str]
"""(kind, namespace, name). The namespace of cluster-scoped objects is empty."""
CLUSTER_SCOPED = frozenset({pool.KIND, "ResourceFlavor", "WorkloadPriorityClass", "PriorityClass"})

GRACE_SECONDS = 30


class ApiError(AllranksError):
    """An error response of the API server."""

    code: ClassVar[int]

    @property
    def reason(self) -> str:
        """As `reason` in a Status object."""
        return type(self).__name__


class NotFound(ApiError):
    code = 404


class AlreadyExists(ApiError):
    code = 409


class Conflict(ApiError):
    code = 409


class Forbidden(ApiError):
    code = 403


class Invalid(ApiError):
    code = 422


@dataclass(frozen=True, slots=True)
class Change:
    """One watch event. That of a deletion has the last state of the object and the version of the deletion."""

    kind: Literal["ADDED", "MODIFIED", "DELETED"]
    key: Key
    object: Manifest
    version: int


class Store:
    """The objects and their watchers. Requests are synchronous."""

    def __init__(
        self, now: Callable[[], datetime], admit: Callable[[Manifest | None, Manifest], None] | None = None
    ) -> None:
        self._now = now
        self._admit = admit
        self._objects: dict[Key, Manifest] = {}
        self._uids = 0
        self.version = 0
        self.watchers: list[Callable[[Change], None]] = []
        self.quota: dict[str, int] = {}
        """Kind -> maximum number of objects."""

    def create(self, manifest: Manifest) -> Manifest:
        """Raises AlreadyExists, Forbidden (quota) or Invalid (rejected by `admit`)."""
        key = key_of(manifest)
        if key in self._objects:
            raise AlreadyExists(f'{key[0].lower()}s "{key[2]}" already exists')
        if self._admit:
            self._admit(None, manifest)
        self._check_quota(key)
        self._uids += 1
        metadata = {
            **manifest["metadata"],
            "uid": f"{self._uids:08x}-0000-4000-8000-{self._uids:012d}",
            "creationTimestamp": stamp(self._now()),
            "generation": 1,
        }
        created = {**manifest, "metadata": metadata}
        if key[0] == "Pod":
            created["status"] = {"phase": "Pending"}
        return self._put("ADDED", key, created)

    def get(self, key: Key) -> Manifest:
        """Raises NotFound."""
        try:
            return self._objects[key]
        except KeyError:
            raise NotFound(f'{key[0].lower()}s "{key[2]}" not found') from None

    def find(self, key: Key) -> Manifest | None:
        return self._objects.get(key)

    def all(self, kind: str | None = None) -> list[Manifest]:
        """Objects in the order of creation."""
        return [manifest for key, manifest in self._objects.items() if kind in (None, key[0])]

    def patch(self, key: Key, change: Mapping[str, Any]) -> Manifest:
        """A JSON merge patch of all but status. A changed spec gets a new generation. Raises NotFound, Invalid."""
        before = self.get(key)
        after = merge_patch.apply({name: value for name, value in change.items() if name != "status"}, before)
        return self._change_spec(key, before, after)

    def _change_spec(self, key: Key, before: Manifest, after: Manifest) -> Manifest:
        if after.get("spec") != before.get("spec"):
            if self._admit:
                self._admit(before, after)
            generation = before["metadata"]["generation"] + 1
            after["metadata"] = {**after["metadata"], "generation": generation}
        return self._replace(key, before, after)

    def patch_version(
        self, key: Key, change: Mapping[str, Any], uid: str, version: str, status: bool = False
    ) -> Manifest:
        """A merge patch of the status, or of all but the status, if the object still has this UID and this version.

        Raises NotFound, Conflict, Invalid.
        """
        before = self.get(key)
        if (uid, version) != (before["metadata"]["uid"], before["metadata"]["resourceVersion"]):
            raise Conflict(f'the object "{key[2]}" has been modified; please apply your changes to the latest version')
        if status:
            after = merge_patch.apply(change.get("status", {}), before.get("status", {}))
            return self._replace(key, before, {**before, "status": after})
        return self.patch(key, change)

    def apply(self, manifest: Manifest) -> Manifest:
        """Creates the object, or replaces its spec. Raises Forbidden, Invalid."""
        key = key_of(manifest)
        before = self.find(key)
        if before is None:
            return self.create(manifest)
        return self._change_spec(key, before, {**before, **{k: v for k, v in manifest.items() if k != "metadata"}})

    def write_status(self, key: Key, status: Manifest, version: str | None = None) -> Manifest:
        """Replaces the status if the object still has `version`. Raises NotFound, Conflict."""
        before = self.get(key)
        if version not in (None, before["metadata"]["resourceVersion"]):
            raise Conflict(f'the object "{key[2]}" has been modified; please apply your changes to the latest version')
        return self._replace(key, before, {**before, "status": status})

    def bind(self, key: Key, node: str) -> Manifest:
        """Binds a pod to a node. Raises NotFound."""
        before = self.get(key)
        return self._replace(key, before, {**before, "spec": {**before["spec"], "nodeName": node}})

    def delete(self, key: Key, uid: str | None = None, grace: int | None = None) -> None:
        """As the API server deletes: a pod on a node gets its grace period, all else goes at once.

        Raises NotFound, and Conflict when the object has another UID.
        """
        before = self.get(key)
        metadata = before["metadata"]
        if uid not in (None, metadata["uid"]):
            raise Conflict(f"Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}")
        if grace is None:
            grace = before["spec"].get("terminationGracePeriodSeconds", GRACE_SECONDS) if key[0] == "Pod" else 0
        # A pod that no kubelet runs, or that has terminated, is removed at once.
        runs = key[0] == "Pod" and "nodeName" in before["spec"] and not ended(before["status"])
        if not metadata.get("finalizers") and not (runs and grace):
            self.remove(key)
            return
        if metadata.get("deletionGracePeriodSeconds", grace + 1) <= grace:
            return
        asked = parse_stamp(metadata["deletionTimestamp"]) if "deletionTimestamp" in metadata else None
        since = asked - timedelta(seconds=metadata["deletionGracePeriodSeconds"]) if asked else self._now()
        going = {"deletionTimestamp": stamp(since + timedelta(seconds=grace)), "deletionGracePeriodSeconds": grace}
        self._replace(key, before, {**before, "metadata": {**metadata, **going}})

    def remove(self, key: Key) -> None:
        """Removes the object unconditionally, as the last step of every deletion."""
        gone = self._objects.pop(key)
        self.version += 1
        metadata = {**gone["metadata"], "resourceVersion": str(self.version)}
        self._notify(Change("DELETED", key, {**gone, "metadata": metadata}, self.version))

    def _check_quota(self, key: Key) -> None:
        limit = self.quota.get(key[0])
        if limit is None:
            return
        # Finished pods do not count, terminating pods do.
        used = sum(1 for other in self.all(key[0]) if not ended(other.get("status", {})))
        if used >= limit:
            what = f"count/{key[0].lower()}s"
            raise Forbidden(
                f'{key[0].lower()}s "{key[2]}" is forbidden: exceeded quota: training, requested: {what}=1, '
                f"used: {what}={used}, limited: {what}={limit}"
            )

    def _replace(self, key: Key, before: Manifest, after: Manifest) -> Manifest:
        # A write without a change creates no version and no event.
        return before if after == before else self._put("MODIFIED", key, after)

    def _put(self, kind: Literal["ADDED", "MODIFIED"], key: Key, manifest: Manifest) -> Manifest:
        self.version += 1
        kept = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(self.version)}}
        self._objects[key] = kept
        self._notify(Change(kind, key, kept, self.version))
        return kept

    def _notify(self, change: Change) -> None:
        for watcher in tuple(self.watchers):
            watcher(change)


def key_of(manifest: Manifest) -> Key:
    kind, metadata = manifest["kind"], manifest["metadata"]
    return kind, "" if kind in CLUSTER_SCOPED else metadata.get("namespace", "default"), metadata["name"]


def owners(manifest: Manifest, kind: str | None = None) -> Iterable[str]:
    """UIDs of all owners, or of those of one kind."""
    references = manifest["metadata"].get("ownerReferences", ())
    return (reference["uid"] for reference in references if kind in (None, reference["kind"]))


def controller_of(manifest: Manifest) -> str | None:
    """UID of the owner that controls the object."""
    references = manifest["metadata"].get("ownerReferences", ())
    return next((reference["uid"] for reference in references if reference.get("controller")), None)


def ended(status: Manifest) -> bool:
    return status.get("phase") in ("Succeeded", "Failed")


def stamp(moment: datetime) -> str:
    """Formats a time as metav1.Time does, in whole seconds."""
    return moment.isoformat()[:19] + "Z"


def parse_stamp(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
