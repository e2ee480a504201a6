"""Watches the pods of jobs in one namespace, or in all, by the label that names the job.

A pod that loses this label looks deleted, and would run unattended: `UnlabelledPods` deletes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from allranks.core.facts.model import Event, PodRef
from allranks.core.facts.naming import JOB_LABEL
from allranks.kube import paths, pod_codec, raw_pod
from allranks.kube.client import Client
from allranks.kube.decoding import decoder
from allranks.kube.errors import ApiError
from allranks.kube.watch import PAGE_OF_LARGE_OBJECTS, Watch
from allranks.operator.apply import Executor
from allranks.operator.cache import JobCache, JobKey, PodCache
from allranks.operator.event_recorder import Recorder
from allranks.operator.timing import Clock

logger = logging.getLogger("allranks.jobs")


class UnlabelledPods:
    """`delete` starts a task; `close` cancels the tasks that have not ended."""

    def __init__(self, executor: Executor, recorder: Recorder, jobs: JobCache, clock: Clock) -> None:
        self._executor, self._recorder, self._jobs, self._clock = executor, recorder, jobs, clock
        self._tasks: set[asyncio.Task[None]] = set()

    def delete(self, key: JobKey, uid: str, pod: PodRef) -> None:
        """Delete a pod of the job with that UID, unless it is gone already."""
        if (self._jobs.get(key) or {"metadata": {}})["metadata"].get("uid") != uid:
            return
        task = asyncio.create_task(self._delete(key, pod), name=f"delete {pod.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _delete(self, key: JobKey, pod: PodRef) -> None:
        try:
            if not await self._executor.delete_unlabelled(key[0], pod):
                return
        except ApiError as error:
            logger.error("cannot delete pod %s/%s, which has lost its label: %s", key[0], pod.name, error)
            return
        if raw := self._jobs.get(key):
            message = f"someone removed the label {JOB_LABEL} of pod {pod.name}, so it is deleted"
            self._recorder.record(raw, Event("PodUnlabelled", message, warning=True), self._clock.now(), 0)


def pod_watch(
    client: Client,
    namespace: str | None,
    cache: PodCache,
    unlabelled: UnlabelledPods,
    unreadable: set[str | None],
    *,
    decode: Callable[[raw_pod.Raw], pod_codec.CachedPod],
    renewed_after: int,
    received: Callable[[str, int], None] = lambda namespace, size: None,
) -> Watch[pod_codec.CachedPod]:
    """Return a watch that feeds `cache`, and calls `received(namespace, bytes)` for each pod.

    Adds the namespace to `unreadable` while the API server rejects the watch.
    """
    raw = decoder(raw_pod.Raw)

    def cached_pod(data: msgspec.Raw) -> pod_codec.CachedPod:
        cached = decode(raw(data))
        received(cached.namespace, memoryview(data).nbytes)
        return cached

    def listed(pods: Sequence[pod_codec.CachedPod], version: int) -> None:
        unreadable.discard(namespace)
        cache.relist(pods, version, namespace)

    def changed(cached: pod_codec.CachedPod, deleted: bool) -> None:
        cache.upsert(cached, deleted)
        # The object of a pod that was deleted has a deletionTimestamp.
        if deleted and cached.pod.deleted_at is None and not cached.pod.ended:
            for job in cached.jobs:
                unlabelled.delete((cached.namespace, job), cached.owner, PodRef(cached.pod.name, cached.pod.uid))

    return Watch(
        client,
        paths.collection("Pod", namespace),
        cached_pod,
        listed=listed,
        changed=changed,
        parameters={"labelSelector": JOB_LABEL},
        renewed_after=renewed_after,
        forbidden=lambda _: unreadable.add(namespace),
        page=PAGE_OF_LARGE_OBJECTS,
    )
