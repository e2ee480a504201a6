"""A plan becomes requests. What is not a pod comes first; pods are made and deleted at the same time; then the status.

Every request may be repeated without harm: names are computed, deletions name the UID, a status its resourceVersion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from allranks.api.job import API_VERSION, KIND
from allranks.core.model import Manifest, Plan, PodRef, RejectedCreate
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import Conflict, NotFound, Refused
from allranks.kube.merge_patch import diff
from allranks.kube.pod_codec import CachedPod, Raw
from allranks.operator.cache import PodCache
from allranks.operator.ssh_keys import key_pair

logger = logging.getLogger("allranks.jobs")

AT_ONCE = 24
"""Requests of one job at the same time: a large job does not keep the others waiting."""

_ObjectKey = tuple[str, str]
"""(kind, name)"""


@dataclass
class Refusals:
    """What the API server did not let us create for one job, until it does."""

    by_object: dict[_ObjectKey, RejectedCreate] = field(default_factory=dict)
    tries: int = 0


class Executor:
    """`decode` tells what the cache keeps of a pod."""

    def __init__(self, client: Client, pods: PodCache, decode: Callable[[Raw], CachedPod]) -> None:
        self._client, self._pods, self._decode_pod = client, pods, decode
        self._decode: Callable[[bytes], Raw] = msgspec.json.Decoder(Raw).decode

    async def objects(self, job: Manifest, plan: Plan, refusals: Refusals) -> None:
        """Creates and deletes. What is refused is noted. Raises Unavailable, Fenced."""
        companions = [manifest for manifest in plan.create if manifest["kind"] != "Pod"]
        pods = [manifest for manifest in plan.create if manifest["kind"] == "Pod"]
        await _together([lambda m=m: self._create(job, m, refusals) for m in companions])  # type: ignore[misc]
        if any(_key(companion) in refusals.by_object for companion in companions):
            pods = []
        requests: list[Callable[[], Awaitable[None]]] = []
        # New pods have their images to pull while old ones end: they come first.
        requests += [lambda m=m: self._create(job, m, refusals) for m in pods]  # type: ignore[misc]
        requests += [lambda r=r: self._delete(job["metadata"]["namespace"], r) for r in plan.delete]  # type: ignore[misc]
        await _together(requests)
        wanted = {_key(manifest) for manifest in plan.create}
        refusals.by_object = {key: refusal for key, refusal in refusals.by_object.items() if key in wanted}

    async def status(self, job: Manifest, wanted: Manifest) -> Manifest | None:
        """The job with its new status; only what changed is sent. None: it was changed meanwhile, or is gone.

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
        return identified(msgspec.json.decode(answer))

    async def read(self, namespace: str, name: str) -> Manifest | None:
        try:
            return identified(msgspec.json.decode(await self._client.get(paths.job(namespace, name))))
        except NotFound:
            return None

    async def delete_job(self, job: Manifest) -> None:
        metadata = job["metadata"]
        try:
            await self._client.delete(paths.job(metadata["namespace"], metadata["name"]), metadata["uid"])
        except (NotFound, Conflict):
            return

    async def _create(self, job: Manifest, manifest: Manifest, refusals: Refusals) -> None:
        kind, namespace = manifest["kind"], manifest["metadata"]["namespace"]
        key = _key(manifest)
        if kind == "Secret":
            manifest = {**manifest, "data": key_pair()}
        try:
            answer = await self._client.create(paths.collection(kind, namespace), manifest)
        except Conflict as error:
            refusal = await self._taken(job, manifest, error)
            if refusal:
                refusals.by_object[key] = refusal
            else:
                refusals.by_object.pop(key, None)
        except (Refused, NotFound) as error:
            refusals.by_object[key] = RejectedCreate(kind, key[1], error.reason or "Refused", str(error))
        else:
            refusals.by_object.pop(key, None)
            if kind == "Pod":
                self._remember(answer)

    async def _taken(self, job: Manifest, manifest: Manifest, error: Conflict) -> RejectedCreate | None:
        """The name exists. If it is ours, it is what we wanted; else it is left alone, and the job says so."""
        kind, name = _key(manifest)
        if kind == "Secret":
            # It may not be read, and its name holds the job's UID. A quota that is counted answers 409 too.
            return None if error.reason == "AlreadyExists" else RejectedCreate(kind, name, error.reason, str(error))
        try:
            answer = await self._client.get(paths.item(kind, manifest["metadata"]["namespace"], name))
        except NotFound:
            return RejectedCreate(kind, name, error.reason, str(error))  # it has gone meanwhile: the next try makes it
        found = self._decode(answer)
        owner = next((o for o in found.metadata.owner_references if o.controller), None)
        if owner is None or owner.uid != job["metadata"]["uid"]:
            message = "an object of this name exists and is not this job's: it is left alone"
            return RejectedCreate(kind, name, "AlreadyExists", message)
        if kind == "Pod":
            self._pods.show(self._decode_pod(found))
        return None

    async def _delete(self, namespace: str, reference: PodRef) -> None:
        try:
            answer = await self._client.delete(paths.item("Pod", namespace, reference.name), reference.uid)
        except (NotFound, Conflict):
            return  # the watch tells
        except Refused as error:
            # It holds up nothing: whatever the new attempt needs is made beside it.
            logger.error("%s/%s may not be deleted: %s", namespace, reference.name, error)
            return
        self._remember(answer)

    def _remember(self, answer: bytes) -> None:
        raw = self._decode(answer)
        if raw.metadata.uid and raw.metadata.name:
            self._pods.show(self._decode_pod(raw))


async def _together(requests: list[Callable[[], Awaitable[None]]]) -> None:
    """A few at a time. The first error ends it: the rest is decided anew."""
    if not requests:
        return
    waiting = iter(requests)

    async def work() -> None:
        for request in waiting:
            await request()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(requests))):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors


def kept_out(change: Any) -> str:
    """Of such a patch, the path of a field that is still to be written; what others added does not matter."""
    if not isinstance(change, dict):
        return ""
    for key, value in change.items():
        if value is not None:
            return f"{key}.{inner}" if isinstance(value, dict) and (inner := kept_out(value)) else key
    return ""


def identified(job: Manifest) -> Manifest:
    """With kind and version, which items of lists lack, and without what nobody reads and weighs most."""
    metadata = {name: value for name, value in job["metadata"].items() if name != "managedFields"}
    return {"apiVersion": API_VERSION, "kind": KIND, **job, "metadata": metadata}


def _key(manifest: Manifest) -> _ObjectKey:
    return manifest["kind"], manifest["metadata"]["name"]
