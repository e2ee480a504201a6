"""Applies a plan: pods are deleted, then other objects and pods are created, then the status is written.

Every request is idempotent: names are computed, a deletion names the UID, a status write its resourceVersion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from allranks.core.facts.model import Event, Manifest, ObjectPatch, PodRef, RejectedCreate, RejectedDelete
from allranks.core.facts.naming import JOB_LABEL, ROLE_LABEL
from allranks.core.facts.optional_kinds import BY_ID, kind_of
from allranks.kube import compact_jobs, paths
from allranks.kube.client import Client
from allranks.kube.errors import Conflict, NotFound, Refused
from allranks.kube.merge_patch import diff
from allranks.kube.pod_codec import CachedPod
from allranks.kube.raw_pod import Raw
from allranks.operator.cache import PodCache
from allranks.operator.job_state import Rejections
from allranks.operator.secret_data import secret_data

logger = logging.getLogger("allranks.jobs")

JOB_CONCURRENCY = 24
"""Concurrent requests of one job, so that a large job does not block the others."""

T = TypeVar("T")
_ObjectKey = tuple[str, str]
"""(kind, name)"""


class Executor:
    """`decode` converts a pod to what the cache keeps of it. `remember` caches an object of an optional kind."""

    def __init__(
        self,
        client: Client,
        pods: PodCache,
        decode: Callable[[Raw], CachedPod],
        remember: Callable[[Manifest], None] = lambda manifest: None,
        forget: Callable[[Manifest], None] = lambda manifest: None,
    ) -> None:
        self._client, self._pods, self._decode_pod = client, pods, decode
        self._remember, self._forget = remember, forget
        self._decode: Callable[[bytes], Raw] = msgspec.json.Decoder(Raw).decode

    async def create(
        self, job: Manifest, manifests: Sequence[Manifest], rejections: Rejections, superseded: Iterable[str] = ()
    ) -> None:
        """Create objects; pods only if everything else exists. Deletes the ConfigMaps `superseded`.

        Raises Unavailable, Fenced.
        """
        companions = [manifest for manifest in manifests if manifest["kind"] != "Pod"]
        await for_all(companions, lambda companion: self._create(job, companion, rejections))
        await for_all(superseded, lambda name: self._delete_config_map(job, name))
        if not any(_key(companion) in rejections.by_object for companion in companions):
            await self._create_pods(job, [m for m in manifests if m["kind"] == "Pod"], rejections)
        planned = {_key(manifest) for manifest in manifests}
        rejections.by_object = {key: rejected for key, rejected in rejections.by_object.items() if key in planned}

    async def change(
        self, removals: Sequence[Manifest], patches: Sequence[ObjectPatch], rejections: Rejections
    ) -> None:
        """Delete, then patch objects of optional kinds, one after the other.

        An object that changed meanwhile, or is gone, is left alone: the core decides again. Raises Unavailable, Fenced.
        """
        outcome = Rejections()
        for manifest in removals:
            metadata = manifest["metadata"]
            # With the version, the observed state is the last one: a later event cannot bring the object back.
            request = self._client.delete(paths.item_of(manifest), metadata["uid"], metadata["resourceVersion"])
            if await self._change(manifest, request, "deletion", outcome) is not None:
                self._forget(manifest)
        for patch in patches:
            current = patch.object["metadata"]
            guard = {"uid": current["uid"], "resourceVersion": current["resourceVersion"]}
            body = {**patch.change, "metadata": {**patch.change.get("metadata", {}), **guard}}
            request = self._client.patch(paths.item_of(patch.object, patch.subresource), body)
            answer = await self._change(patch.object, request, "change", outcome)
            patched: Manifest = msgspec.json.decode(answer) if answer is not None else {}
            if patched.get("kind") == patch.object["kind"] and patched["metadata"].get("deletionTimestamp") is None:
                self._remember(patched)
        rejections.changes, rejections.conflicts = outcome.changes, outcome.conflicts

    async def _change(
        self, manifest: Manifest, request: Awaitable[bytes], name: str, rejections: Rejections
    ) -> bytes | None:
        """Send a request that changes an object of an optional kind. Return None if it had no effect."""
        try:
            return await request
        except NotFound:
            return None
        except Conflict:
            rejections.conflicts = True  # the watch usually shows the change; a retry does not depend on that
        except Refused as error:
            kind, object_name = _key(manifest)
            rejections.changes[kind, object_name] = RejectedCreate(
                kind, object_name, error.reason or "Refused", str(error)
            )
            logger.warning("the %s of %s %s was rejected: %s", name, kind, object_name, error)
        return None

    async def _create_pods(self, job: Manifest, pods: Sequence[Manifest], rejections: Rejections) -> None:
        """Stop creating pods of a role when one is rejected: the others have the same template, so a quota or a policy
        rejects them as well. After a rejection, the first pod of a role is created alone."""
        rejected: dict[str, RejectedCreate] = {}
        probed: set[str] = set()
        probes, others = [], []
        for pod in pods:
            role = _role(pod)
            if _key(pod) in rejections.by_object and role not in probed:
                probed.add(role)
                probes.append(pod)
            else:
                others.append(pod)

        async def create(pod: Manifest) -> None:
            key = _key(pod)
            if because := rejected.get(_role(pod)):
                rejections.by_object[key] = replace(because, name=key[1], tried=False)
                return
            await self._create(job, pod, rejections)
            answer = rejections.by_object.get(key)
            # These concern one pod: a name that another owner uses, a quota that concurrent requests update.
            if answer and answer.reason not in ("AlreadyExists", "Conflict"):
                rejected.setdefault(_role(pod), answer)

        await for_all(probes, create)
        await for_all(others, create)

    async def delete(self, namespace: str, pods: Sequence[PodRef], rejections: Rejections) -> None:
        """Delete pods, those that were never rejected first. Stops at a rejection. Raises Unavailable, Fenced."""
        sent = rejections.deletions_sent
        because: RejectedDelete | None = None

        async def delete(pod: PodRef) -> None:
            nonlocal because
            if because:
                rejections.deletions.setdefault(pod.uid, replace(because, name=pod.name, uid=pod.uid))
                sent.setdefault(pod.uid, 0)
            elif rejected := await self._delete(namespace, pod):
                because = rejections.deletions[pod.uid] = rejected
                sent[pod.uid] = sent.get(pod.uid, 0) + 1
            else:
                rejections.deletions.pop(pod.uid, None)
                sent.pop(pod.uid, None)

        in_order = sorted(pods, key=lambda pod: sent.get(pod.uid, 0))
        await for_all(in_order, delete)

    async def restore(self, job: Manifest, manifests: Sequence[Manifest]) -> list[Event]:
        """Create companions that someone else deleted. Those that someone else changed stay as they are, because the
        operator has no right to change Services and ConfigMaps. Returns the Events that say so.

        Raises Unavailable, Fenced. A rejection is logged: the pods that run do not depend on it.
        """
        events: list[Event] = []

        async def restore(manifest: Manifest) -> None:
            kind, name = _key(manifest)
            if kind != "Secret":  # The operator may not read Secrets.
                path = paths.item(kind, manifest["metadata"]["namespace"], name)
                try:
                    current = msgspec.json.decode(await self._client.get(path))
                except NotFound:
                    pass
                except Refused as error:
                    logger.warning("cannot read %s %s: %s", kind, name, error)
                    return
                else:
                    if differences := _differences(manifest, current):
                        change = f"{kind} {name} was changed by someone else ({', '.join(differences)})"
                        advice = "delete it, and it is created again as the job needs it"
                        events.append(Event("CompanionChanged", f"{change}: {advice}", warning=True))
                    return
            rejections = Rejections()
            if await self._create(job, manifest, rejections):
                message = f"{kind} {name} was deleted by someone else and is created again"
                events.append(Event("CompanionRestored", message, warning=True))
            elif rejected := rejections.by_object.get((kind, name)):
                # For a Secret that exists, a full quota is the answer as well.
                level = logging.DEBUG if kind == "Secret" else logging.WARNING
                logger.log(level, "cannot restore %s %s: %s", kind, name, rejected.message)

        await for_all(manifests, restore)
        return events

    async def status(self, job: Manifest, status: Manifest) -> Manifest | None:
        """Send the changed fields and return the updated job; None if the job changed in the meantime or is gone.

        Raises Unavailable, Fenced, Refused.
        """
        return await self.patch_status(job["metadata"], diff(job.get("status") or {}, status))

    async def patch_status(self, metadata: Manifest, change: Manifest) -> Manifest | None:
        path = paths.job_path(metadata["namespace"], metadata["name"], "status")
        guard = {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]}
        try:
            answer = await self._client.patch(path, {"metadata": guard, "status": change})
        except (Conflict, NotFound):
            return None
        return compact_jobs.job(answer)

    async def read(self, namespace: str, name: str) -> Manifest | None:
        try:
            return compact_jobs.job(await self._client.get(paths.job_path(namespace, name)))
        except NotFound:
            return None

    async def delete_job(self, job: Manifest) -> bool:
        """Delete the job. Return False after a conflict, after which it is tried again. Raises Unavailable, Fenced,
        Refused."""
        metadata = job["metadata"]
        return await _sent(
            self._client.delete(paths.job_path(metadata["namespace"], metadata["name"]), metadata["uid"])
        )

    async def suspend_job(self, job: Manifest) -> bool:
        """Set `spec.suspend`. Return False after a conflict. Raises Unavailable, Fenced, Refused."""
        metadata = job["metadata"]
        change = {"metadata": {"uid": metadata["uid"]}, "spec": {"suspend": True}}
        return await _sent(self._client.patch(paths.job_path(metadata["namespace"], metadata["name"]), change))

    async def _create(self, job: Manifest, manifest: Manifest, rejections: Rejections) -> bool:
        """Return whether the object is new."""
        kind, key = manifest["kind"], _key(manifest)
        if kind == "Secret":
            manifest = {**manifest, "data": secret_data(manifest)}
        try:
            answer = await self._client.create(paths.collection_of(manifest), manifest)
        except Conflict as error:
            rejected = await self._resolve_conflict(job, manifest, error)
            if rejected:
                rejections.by_object[key] = rejected
            else:
                rejections.by_object.pop(key, None)
        except (Refused, NotFound) as error:
            rejections.by_object[key] = RejectedCreate(kind, key[1], error.reason or "Refused", str(error))
        else:
            rejections.by_object.pop(key, None)
            if kind == "Pod" and (rejected := await self._keep(job, self._decode(answer))):
                rejections.by_object[key] = rejected
            elif kind_of(manifest) in BY_ID:
                self._remember(msgspec.json.decode(answer))
            return True
        return False

    async def _keep(self, job: Manifest, pod: Raw) -> RejectedCreate | None:
        """Cache a pod of the job, unless its label was changed during admission: the watch selects by it."""
        name, label = pod.metadata.name, job["metadata"]["name"]
        if pod.metadata.labels.job == label:
            self._pods.upsert(self._decode_pod(pod))
            return None
        await self._delete(pod.metadata.namespace, PodRef(name, pod.metadata.uid))
        message = f"an admission policy changed its label {JOB_LABEL}, so it was deleted: exempt the pods of jobs"
        return RejectedCreate("Pod", name, "LabelChanged", message)

    async def _resolve_conflict(self, job: Manifest, manifest: Manifest, error: Conflict) -> RejectedCreate | None:
        """Accept an existing object of this job. Any other object of the name is left alone and reported."""
        kind, name = _key(manifest)
        if kind == "Secret":
            # Secrets are not readable for the operator, but the name contains the job's UID. A quota update that
            # conflicts answers 409 as well.
            return None if error.reason == "AlreadyExists" else RejectedCreate(kind, name, error.reason, str(error))
        try:
            answer = await self._client.get(paths.item_of(manifest))
        except NotFound:
            return RejectedCreate(kind, name, error.reason, str(error))  # deleted in the meantime: retried
        existing = self._decode(answer)
        owner = next((o for o in existing.metadata.owner_references if o.controller), None)
        if owner is None or owner.uid != job["metadata"]["uid"]:
            message = "an object with this name exists and belongs to another owner; it is left alone"
            return RejectedCreate(kind, name, "AlreadyExists", message)
        if kind_of(manifest) in BY_ID:
            self._remember(msgspec.json.decode(answer))
        return await self._keep(job, existing) if kind == "Pod" else None

    async def delete_unlabelled(self, namespace: str, pod: PodRef) -> bool:
        """Delete a pod that the watch no longer shows. Return False if it had been deleted. Raises ApiError."""
        try:
            await self._client.delete(paths.item("Pod", namespace, pod.name), pod.uid)
        except (NotFound, Conflict):
            return False
        return True

    async def _delete(self, namespace: str, reference: PodRef) -> RejectedDelete | None:
        try:
            path = paths.item("Pod", namespace, reference.name)
            answer = await self._client.delete(path, reference.uid, grace_seconds=reference.grace_seconds)
        except (NotFound, Conflict):
            return None  # the watch reports what happened
        except Refused as error:
            return RejectedDelete(reference.name, reference.uid, error.reason or "Refused", str(error))
        if (raw := self._decode(answer)).metadata.uid and raw.metadata.labels.job:
            self._pods.upsert(self._decode_pod(raw))
        return None

    async def _delete_config_map(self, job: Manifest, name: str) -> None:
        """Delete a ConfigMap of the job, if it exists."""
        path = paths.item("ConfigMap", job["metadata"]["namespace"], name)
        try:
            metadata = self._decode(await self._client.get(path)).metadata
            if any(owner.controller and owner.uid == job["metadata"]["uid"] for owner in metadata.owner_references):
                await self._client.delete(path, metadata.uid)
        except (NotFound, Conflict):
            return
        except Refused as error:
            # Nothing waits for it, and it is deleted with the job.
            logger.error("cannot delete ConfigMap %s/%s: %s", job["metadata"]["namespace"], name, error)


async def _sent(request: Awaitable[object]) -> bool:
    """Send a request. Return False after a conflict; True if it had its effect, or its object is gone."""
    try:
        await request
    except NotFound:
        pass
    except Conflict:
        return False
    return True


async def for_all(items: Iterable[T], send: Callable[[T], Awaitable[object]]) -> None:
    """Send a request for each item, a few at a time. The first error cancels the others, about which the
    next reconcile decides."""
    waiting = list(items)
    remaining = iter(waiting)

    async def work() -> None:
        for item in remaining:
            await send(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(JOB_CONCURRENCY, len(waiting))):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors


def unwritten_field(change: Any) -> str:
    """Return the path of the first field that a merge patch still sets. Deletions do not count: others may add
    fields."""
    if not isinstance(change, dict):
        return ""
    for key, value in change.items():
        if value is not None:
            return f"{key}.{inner}" if isinstance(value, dict) and (inner := unwritten_field(value)) else key
    return ""


def _differences(planned: Manifest, current: Manifest) -> list[str]:
    """Return the paths of the fields that a companion depends on and that differ."""
    parts = ("spec", "data")
    out = [
        f"{part}.{name}"
        for part in parts
        for name, value in (planned.get(part) or {}).items()
        if not _equals((current.get(part) or {}).get(name), value)
    ]
    [owner] = planned["metadata"]["ownerReferences"]
    owners = {reference.get("uid") for reference in current["metadata"].get("ownerReferences") or ()}
    return out if owner["uid"] in owners else [*out, "metadata.ownerReferences"]


def _equals(current: Any, planned: Any) -> bool:
    """Return whether they are equal, except for fields in elements of lists that the API server adds as defaults."""
    if isinstance(planned, list) and isinstance(current, list) and len(planned) == len(current):
        return all(_includes(item, other) for item, other in zip(current, planned, strict=True))
    return bool(current == planned)


def _includes(current: Any, planned: Any) -> bool:
    if isinstance(planned, dict) and isinstance(current, dict):
        return all(_includes(current.get(name), value) for name, value in planned.items())
    return _equals(current, planned)


def _role(pod: Manifest) -> str:
    role: str = (pod["metadata"].get("labels") or {}).get(ROLE_LABEL, "")
    return role


def _key(manifest: Manifest) -> _ObjectKey:
    return manifest["kind"], manifest["metadata"]["name"]
