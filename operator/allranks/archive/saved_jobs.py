"""Writes each job to the archive when an attempt begins or ends, when the job has finished, and when it is deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from allranks.api.status import FINISHED
from allranks.archive.access import Access
from allranks.archive.metrics import Metrics
from allranks.archive.store import ArchiveError
from allranks.archive.writer import Writer, folder_of
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster
from allranks.kube.paths import core_path

Manifest = dict[str, Any]
logger = logging.getLogger("allranks.archiver")

SETTLE_SECONDS = 1.0
"""Changes of a job within this time are written once."""
MOST_WAITING = 10_000
"""Jobs that wait to be written. Beyond that, the oldest is given up."""
WRITERS = 4
EVENTS_OF_PODS = 5000
"""Events of pods of a namespace that are read to find those of a job."""


class _State(NamedTuple):
    """What decides whether a job is written."""

    phase: str
    attempt: int
    version: str
    """The resourceVersion of a finished job: each change is written, for example the outcome of its pods."""


class SavedJobs:
    """`listed` and `changed` take what a watch of jobs shows, `run` writes."""

    def __init__(self, cluster_of: Callable[[str], Cluster], access: Access, writer: Writer, metrics: Metrics) -> None:
        self._cluster_of, self._access, self._writer, self._metrics = cluster_of, access, writer, metrics
        self._states: dict[str, _State] = {}
        self._unfinished: dict[str, Manifest] = {}
        """The last state of jobs that have not finished: it is written, if the job is deleted unnoticed."""
        self._folders: dict[str, str] = {}
        self._waiting: OrderedDict[str, Manifest] = OrderedDict()
        self._news = asyncio.Event()
        self._busy: set[str] = set()
        """Jobs that are being written: an older state must not replace a newer one."""

    @property
    def live(self) -> set[str]:
        """The folders of jobs that exist, or wait to be written."""
        return {*self._folders.values(), *map(folder_of, self._waiting.values())}

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._busy

    def listed(self, jobs: Sequence[Manifest], namespace: str | None) -> None:
        """All jobs of a namespace, or of all of them."""
        for job in jobs:
            self.changed(job, False)
        there = {job["metadata"]["uid"] for job in jobs}
        prefix = f"{namespace}/"
        for uid, folder in list(self._folders.items()):
            if uid not in there and (namespace is None or folder.startswith(prefix)):
                if last := self._unfinished.get(uid):
                    self._wait(uid, last)
                self._forget(uid)

    def changed(self, job: Manifest, deleted: bool) -> None:
        uid = job["metadata"]["uid"]
        job.setdefault("kind", "DistributedTraining")
        job["metadata"].pop("managedFields", None)
        if deleted:
            self._wait(uid, job)
            self._forget(uid)
            return
        state = _state(job)
        if self._states.get(uid) != state and state.phase:
            self._wait(uid, job)
        self._states[uid], self._folders[uid] = state, folder_of(job)
        if state.phase in FINISHED:
            self._unfinished.pop(uid, None)
        else:
            self._unfinished[uid] = job

    def _forget(self, uid: str) -> None:
        self._states.pop(uid, None)
        self._unfinished.pop(uid, None)
        self._folders.pop(uid, None)

    def _wait(self, uid: str, job: Manifest) -> None:
        self._waiting[uid] = job
        if len(self._waiting) > MOST_WAITING:
            _, given_up = self._waiting.popitem(last=False)
            self._lost(given_up, "too many jobs wait to be written")
        self._metrics.waiting.set(len(self._waiting))
        self._news.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        async with asyncio.TaskGroup() as writers:
            for _ in range(WRITERS):
                writers.create_task(self._write_all())

    async def _write_all(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(SETTLE_SECONDS)
            while uid := next((uid for uid in self._waiting if uid not in self._busy), None):
                job = self._waiting.pop(uid)
                self._busy.add(uid)
                try:
                    await self._save(job)
                except ArchiveError as error:
                    self._lost(job, str(error))
                except Exception:
                    logger.exception("job %s is not archived", uid)
                    self._lost(job, "internal error")
                finally:
                    self._busy.discard(uid)
                    self._metrics.waiting.set(len(self._waiting))
            self._news.clear()

    async def _save(self, job: Manifest) -> None:
        """Raises ArchiveError."""
        events = await self._events(job)
        if await self._access.persistent("job", lambda: self._writer.save_job(job, events)):
            self._metrics.written.labels("job").inc()

    async def _events(self, job: Manifest) -> list[Manifest] | None:
        metadata = job["metadata"]
        path = core_path(metadata["namespace"], "events")
        cluster = self._cluster_of(metadata["namespace"])
        with contextlib.suppress(ClusterError):
            own = await cluster.get(path, {"fieldSelector": f"involvedObject.uid={metadata['uid']}"})
            of_pods = await cluster.get(path, {"fieldSelector": "involvedObject.kind=Pod", "limit": EVENTS_OF_PODS})
            prefix, since = f"{metadata['name']}-", str(metadata.get("creationTimestamp"))
            return [
                *own["items"],
                *(
                    event
                    for event in of_pods["items"]
                    if event["involvedObject"].get("name", "").startswith(prefix)
                    and event["metadata"]["creationTimestamp"] >= since
                ),
            ]
        return None

    def _lost(self, job: Manifest, why: str) -> None:
        self._metrics.lost.labels("job").inc()
        logger.error("job %s is not archived: %s", folder_of(job), why)


def _state(job: Manifest) -> _State:
    status = job.get("status")
    status = status if isinstance(status, dict) else {}
    phase = str(status.get("phase") or "")
    attempt = status.get("attempt")
    version = str(job["metadata"].get("resourceVersion") or "") if phase in FINISHED else ""
    return _State(phase, attempt if isinstance(attempt, int) else 0, version)
