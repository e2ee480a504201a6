"""A job on a cluster while it runs: its status, its pods, and what its ranks print, told to a listener.

Three kinds of requests run side by side in one thread: a watch on the job, one on its pods, and a log for each rank.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from allranks.api.status import FINISHED, Status
from allranks.core.model import Pod
from allranks.core.naming import JOB_LABEL, TRAINER, replica_key
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest, Watch
from allranks.kube.job_codec import pods_of, status_of
from allranks.kube.paths import core_path, job_path
from allranks.kube.pod_logs import Line, Wanted, followed

LAST_LINES_SECONDS = 5.0
"""What still prints so long after the job's end (a parameter server that nobody stops) is left alone."""
SETTLE_SECONDS = 1.0


class Listener(Protocol):
    """Whom all of it is told."""

    def status(self, status: Status, pods: Sequence[Pod]) -> None: ...
    def lines(self, pod: Pod, lines: list[Line]) -> None: ...
    def say(self, text: str) -> None: ...


class Gone(ClusterError):
    """The job was deleted while it was followed."""


@dataclass
class Follower:
    """Follows one job. `await look()` first: what there is; then `await follow(until)`."""

    cluster: Cluster
    job: Manifest
    listener: Listener
    wanted: Wanted | None = None
    """Which part of the logs; None: no logs."""
    chosen: Callable[[Pod], bool] = lambda _pod: True
    after: dict[str, bytes] = field(default_factory=dict)
    """Pod's UID -> time up to which its log has been told."""
    _pods: dict[str, Pod] = field(default_factory=dict)
    _manifests: dict[str, Manifest] = field(default_factory=dict)
    _readers: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _first: set[str] = field(default_factory=set)
    """Pods whose logs had begun when we came."""
    _watch: Watch | None = None

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.job["metadata"]["namespace"])

    @property
    def pods(self) -> list[Pod]:
        return list(self._pods.values())

    async def look(self) -> None:
        """Learns the job's pods. Raises ClusterError, but who may not see pods may see the status without them."""
        query = {"labelSelector": f"{JOB_LABEL}={self.name}"}
        watch = Watch(self.cluster, core_path(self.namespace, "pods"), query)
        try:
            listed = await watch.listed()
        except ClusterError as error:
            if self.wanted or error.status != 403:
                raise
            self.listener.say(f"the ranks are not shown: {error}")
            return
        self._watch = watch
        self._take(listed)
        self._first = {uid for uid, pod in self._pods.items() if begun(pod)}

    async def follow(self, until: Callable[[Status], bool]) -> Status:
        """Tells everything until the job's status is such, and the logs are told to their end.

        Raises ClusterError, and Gone when the job is deleted.
        """
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failed = failed
        jobs = asyncio.create_task(self._watch_job(until))
        pods = self._start(self._watch_pods())
        try:
            both: set[asyncio.Future[Any]] = {jobs, failed}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
            status = await jobs
            if self.wanted and status.phase in FINISHED:
                await asyncio.sleep(SETTLE_SECONDS)  # the last pods' last states may be on their way
                await self._last_lines()
            return status
        finally:
            tasks = [jobs, pods, *self._readers.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_job(self, until: Callable[[Status], bool]) -> Status:
        uid = self.job["metadata"]["uid"]
        query = {"fieldSelector": f"metadata.name={self.name}"}
        watch = Watch(self.cluster, job_path(self.namespace), query, on_interruption=self.listener.say)
        there = next((item for item in await watch.listed() if item["metadata"]["uid"] == uid), None)
        if there is None:
            raise Gone(f"{self.name} was deleted", 404, "NotFound")
        if until(status := self._seen(there)):
            return status
        async with aclosing(watch.changes()) as changes:
            async for change in changes:
                if change.item["metadata"]["uid"] != uid:
                    continue
                if change.kind == "deleted":
                    raise Gone(f"{self.name} was deleted", 404, "NotFound")
                if until(status := self._seen(change.item)):
                    return status
        raise AssertionError("a watch does not end")

    def _seen(self, job: Manifest) -> Status:
        self.job = job
        return self._tell()

    def _tell(self) -> Status:
        status = status_of(self.job)
        self.listener.status(status, [pod for pod in self._pods.values() if pod.attempt >= status.attempt])
        return status

    async def _watch_pods(self) -> None:
        if self._watch is None:
            return
        self._begin()
        async with aclosing(self._watch.changes()) as changes:
            async for change in changes:
                uid = change.item["metadata"]["uid"]
                if change.kind == "deleted":
                    self._manifests.pop(uid, None)
                    self._take([])
                else:
                    self._take([change.item])
                self._tell()
                self._begin()

    def _take(self, manifests: Sequence[Manifest]) -> None:
        for manifest in manifests:
            self._manifests[manifest["metadata"]["uid"]] = manifest
        self._pods = {pod.uid: pod for pod in pods_of(self.job, self._manifests.values())}

    def _begin(self) -> None:
        """Reads the logs of those that have begun."""
        if self.wanted is None:
            return
        for uid, pod in self._pods.items():
            if uid not in self._readers and self.chosen(pod) and begun(pod, self.wanted.container):
                # What comes later is told from its beginning.
                part = self.wanted if uid in self._first else Wanted(self.wanted.container)
                self._readers[uid] = self._start(self._read(pod, part))

    async def _read(self, pod: Pod, wanted: Wanted) -> None:
        def over() -> bool:
            now = self._pods.get(pod.uid)
            return now is None or now.ended

        after = self.after.get(pod.uid, b"")
        lines = followed(self.cluster, self.namespace, pod.name, wanted, after, over, self.listener.say)
        async with aclosing(lines):
            async for some in lines:
                self.listener.lines(pod, some)

    async def _last_lines(self) -> None:
        readers = [task for task in self._readers.values() if not task.done()]
        if readers:
            await asyncio.wait(readers, timeout=LAST_LINES_SECONDS)
        if self._failed.done():
            self._failed.result()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose error ends the whole."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._failed.done():
            self._failed.set_exception(error)


def begun(pod: Pod, container: str = TRAINER) -> bool:
    """There is, or was, a log to read."""
    if container == TRAINER:
        return pod.started_at is not None or pod.exit is not None
    return pod.phase in ("Running", "Succeeded", "Failed")


def label(pod: Pod, container: str) -> str:
    """What stands in front of a line: as `allranks run` has it."""
    replica = replica_key(pod.role, pod.index)
    return replica if container == TRAINER else f"{replica}/{container}"
