"""Applies a plan: first the objects that are no pods, then pods are created and deleted concurrently, then the status.

Every request is idempotent: names are computed, a deletion names the UID, a status write its resourceVersion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from allranks.core.model import Manifest, Plan, PodRef, RejectedCreate
from allranks.kube import compact_jobs, paths
from allranks.kube.client import Client
from allranks.kube.errors import Conflict, NotFound, Refused
from allranks.kube.merge_patch import diff
from allranks.kube.pod_codec import CachedPod, Raw
from allranks.operator.cache import PodCache
from allranks.operator.ssh_keys import key_pair

logger = logging.getLogger("allranks.jobs")

JOB_CONCURRENCY = 24
"""Concurrent requests of one job, so that a large job does not block the others."""

_ObjectKey = tuple[str, str]
"""(kind, name)"""


@dataclass
class Rejections:
    """Creates of one job that the API server rejected, until they succeed."""

    by_object: dict[_ObjectKey, RejectedCreate] = field(default_factory=dict)
    tries: int = 0

    def clear(self) -> None:
        self.by_object.clear()
        self.tries = 0


class Executor:
    """`decode` converts a pod to what the cache keeps of it."""

    def __init__(self, client: Client, pods: PodCache, decode: Callable[[Raw], CachedPod]) -> None:
        self._client, self._pods, self._decode_pod = client, pods, decode
        self._decode: Callable[[bytes], Raw] = msgspec.json.Decoder(Raw).decode

    async def objects(self, job: Manifest, plan: Plan, rejections: Rejections) -> None:
        """Creates and deletes objects. Collects rejected creates. Raises Unavailable, Fenced."""
        companions = [manifest for manifest in plan.create if manifest["kind"] != "Pod"]
        pods = [manifest for manifest in plan.create if manifest["kind"] == "Pod"]
        first: list[Callable[[], Awaitable[None]]] = []
        first += [lambda m=m: self._create(job, m, rejections) for m in companions]  # type: ignore[misc]
        first += [lambda n=n: self._delete_config_map(job, n) for n in plan.superseded]  # type: ignore[misc]
        await _gather(first)
        if any(_key(companion) in rejections.by_object for companion in companions):
            pods = []
        requests: list[Callable[[], Awaitable[None]]] = []
        # Creates come first: new pods pull their images while old ones terminate.
        requests += [lambda m=m: self._create(job, m, rejections) for m in pods]  # type: ignore[misc]
        requests += [lambda r=r: self._delete(job["metadata"]["namespace"], r) for r in plan.delete]  # type: ignore[misc]
        await _gather(requests)
        wanted = {_key(manifest) for manifest in plan.create}
        rejections.by_object = {key: rejected for key, rejected in rejections.by_object.items() if key in wanted}

    async def status(self, job: Manifest, wanted: Manifest) -> Manifest | None:
        """Sends the changed fields and returns the updated job. None: the job changed in the meantime or is gone.

        Raises Unavailable, Fenced, Refused.
        """
        metadata = job["metadata"]
        change = diff(job.get("status") or {}, wanted)
        return await self.patch_status(metadata, change)

    async def patch_status(self, metadata: Manifest, change: Manifest) -> Manifest | None:
        path = paths.job(metadata["namespace"], metadata["name"])
        guard = {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]}
        try:
            answer = await self._client.patch(f"{path}/status", {"metadata": guard, "status": change})
        except (Conflict, NotFound):
            return None
        return compact_jobs.job(answer)

    async def read(self, namespace: str, name: str) -> Manifest | None:
        try:
            return compact_jobs.job(await self._client.get(paths.job(namespace, name)))
        except NotFound:
            return None

    async def delete_job(self, job: Manifest) -> None:
        metadata = job["metadata"]
        try:
            await self._client.delete(paths.job(metadata["namespace"], metadata["name"]), metadata["uid"])
        except (NotFound, Conflict):
            return

    async def _create(self, job: Manifest, manifest: Manifest, rejections: Rejections) -> None:
        kind, namespace = manifest["kind"], manifest["metadata"]["namespace"]
        key = _key(manifest)
        if kind == "Secret":
            manifest = {**manifest, "data": key_pair()}
        try:
            answer = await self._client.create(paths.collection(kind, namespace), manifest)
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
            if kind == "Pod":
                self._remember(answer)

    async def _resolve_conflict(self, job: Manifest, manifest: Manifest, error: Conflict) -> RejectedCreate | None:
        """The name exists. An object of this job is what we wanted. Any other object is left alone and reported."""
        kind, name = _key(manifest)
        if kind == "Secret":
            # Secrets are not readable for the operator, but the name contains the job's UID. A quota update that
            # conflicts answers 409 as well.
            return None if error.reason == "AlreadyExists" else RejectedCreate(kind, name, error.reason, str(error))
        try:
            answer = await self._client.get(paths.item(kind, manifest["metadata"]["namespace"], name))
        except NotFound:
            return RejectedCreate(kind, name, error.reason, str(error))  # deleted in the meantime: retried
        found = self._decode(answer)
        owner = next((o for o in found.metadata.owner_references if o.controller), None)
        if owner is None or owner.uid != job["metadata"]["uid"]:
            message = "an object with this name exists and belongs to another owner; it is left alone"
            return RejectedCreate(kind, name, "AlreadyExists", message)
        if kind == "Pod":
            self._pods.upsert(self._decode_pod(found))
        return None

    async def _delete(self, namespace: str, reference: PodRef) -> None:
        try:
            answer = await self._client.delete(paths.item("Pod", namespace, reference.name), reference.uid)
        except (NotFound, Conflict):
            return  # the watch reports what happened
        except Refused as error:
            # Nothing waits for the deletion: a new attempt uses other names.
            logger.error("cannot delete pod %s/%s: %s", namespace, reference.name, error)
            return
        self._remember(answer)

    async def _delete_config_map(self, job: Manifest, name: str) -> None:
        """Deletes a ConfigMap of the job, if it exists."""
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

    def _remember(self, answer: bytes) -> None:
        raw = self._decode(answer)
        if raw.metadata.uid and raw.metadata.name:
            self._pods.upsert(self._decode_pod(raw))


async def _gather(requests: list[Callable[[], Awaitable[None]]]) -> None:
    """Runs a few requests at a time. The first error cancels the rest, which the next reconcile decides again."""
    if not requests:
        return
    waiting = iter(requests)

    async def work() -> None:
        for request in waiting:
            await request()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(JOB_CONCURRENCY, len(requests))):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors


def unwritten_field(change: Any) -> str:
    """The path of the first field that a merge patch still sets. Deletions do not count: others may add fields."""
    if not isinstance(change, dict):
        return ""
    for key, value in change.items():
        if value is not None:
            return f"{key}.{inner}" if isinstance(value, dict) and (inner := unwritten_field(value)) else key
    return ""


def _key(manifest: Manifest) -> _ObjectKey:
    return manifest["kind"], manifest["metadata"]["name"]
