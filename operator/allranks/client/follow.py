"""Follows a job on a cluster: passes its status, its pods and its logs to a listener.

One thread runs a watch on the job, a watch on its pods, and a log request for each rank.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from allranks.api.status import FINISHED, Status
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import JOB_LABEL, TRAINER
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest, Watch
from allranks.kube.job_codec import pods_of, status_of
from allranks.kube.paths import core_path, job_path
from allranks.kube.pod_logs import Line, LogOptions, follow

LAST_LINES_SECONDS = 5.0
"""Time limit for the last log lines of a finished job: a parameter server may print forever."""
SETTLE_SECONDS = 1.0


class Listener(Protocol):
    """Receives status, log lines and messages about the connection."""

    def status(self, status: Status, pods: Sequence[Pod]) -> None: ...
    def lines(self, pod: Pod, lines: list[Line]) -> None: ...
    def message(self, text: str) -> None: ...


class Deleted(ClusterError):
    """The job was deleted while it was followed."""


@dataclass
class Follower:
    """Follows one job: first `await list_pods()`, then `await follow(until)`."""

    cluster: Cluster
    job: Manifest
    listener: Listener
    log_options: LogOptions | None = None
    """The part of the logs to read; None: no logs."""
    selected: Callable[[Pod], bool] = lambda _pod: True
    """Selects the pods whose logs are read."""
    after: dict[str, bytes] = field(default_factory=dict)
    """UID of a pod -> time of its last log line that was passed on."""
    _pods: dict[str, Pod] = field(default_factory=dict)
    _manifests: dict[str, Manifest] = field(default_factory=dict)
    _readers: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _initial: set[str] = field(default_factory=set)
    """UIDs of the pods that had a log at the start."""
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

    async def list_pods(self) -> None:
        """Raise ClusterError. Without logs, missing permission for pods is only a message."""
        query = {"labelSelector": f"{JOB_LABEL}={self.name}"}
        watch = Watch(self.cluster, core_path(self.namespace, "pods"), query)
        try:
            listed = await watch.listed()
        except ClusterError as error:
            if self.log_options or error.status != 403:
                raise
            self.listener.message(f"ranks are not shown: {error}")
            return
        self._watch = watch
        self._take(listed)
        self._initial = {uid for uid, pod in self._pods.items() if has_log(pod)}

    async def follow(self, until: Callable[[Status], bool]) -> Status:
        """Pass on everything until `until(status)`; if the job has finished, also the rest of the logs.

        Raise ClusterError, and Deleted when the job is deleted.
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
            if self.log_options and status.phase in FINISHED:
                await asyncio.sleep(SETTLE_SECONDS)  # for the last updates of the pods
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
        watch = Watch(self.cluster, job_path(self.namespace), query, on_interruption=self.listener.message)
        job = next((item for item in await watch.listed() if item["metadata"]["uid"] == uid), None)
        if job is None:
            raise Deleted(f"{self.name} was deleted", 404, "NotFound")
        if until(status := self._update(job)):
            return status
        async with aclosing(watch.changes()) as changes:
            async for change in changes:
                if change.item["metadata"]["uid"] != uid:
                    continue
                if change.kind == "deleted":
                    raise Deleted(f"{self.name} was deleted", 404, "NotFound")
                if until(status := self._update(change.item)):
                    return status
        raise AssertionError("a watch never ends")

    def _update(self, job: Manifest) -> Status:
        self.job = job
        self._take([])  # their attempts follow from the status
        return self._notify()

    def _notify(self) -> Status:
        status = status_of(self.job)
        self.listener.status(status, [pod for pod in self._pods.values() if pod.attempt >= status.attempt])
        return status

    async def _watch_pods(self) -> None:
        if self._watch is None:
            return
        self._read_logs()
        async with aclosing(self._watch.changes()) as changes:
            async for change in changes:
                uid = change.item["metadata"]["uid"]
                if change.kind == "deleted":
                    self._manifests.pop(uid, None)
                    self._take([])
                else:
                    self._take([change.item])
                self._notify()
                self._read_logs()

    def _take(self, manifests: Sequence[Manifest]) -> None:
        for manifest in manifests:
            self._manifests[manifest["metadata"]["uid"]] = manifest
        self._pods = {pod.uid: pod for pod in pods_of(self.job, self._manifests.values())}

    def _read_logs(self) -> None:
        """Start to read the logs of pods that have one."""
        if self.log_options is None:
            return
        for uid, pod in self._pods.items():
            if uid not in self._readers and self.selected(pod) and has_log(pod, self.log_options.container):
                # Logs of later pods are read from the beginning.
                options = self.log_options if uid in self._initial else LogOptions(self.log_options.container)
                self._readers[uid] = self._start(self._read(pod, options))

    async def _read(self, pod: Pod, options: LogOptions) -> None:
        def over() -> bool:
            now = self._pods.get(pod.uid)
            return now is None or now.ended

        after = self.after.get(pod.uid, b"")
        batches = follow(
            self.cluster, self.namespace, pod.name, options, after, over, on_interruption=self.listener.message
        )
        async with aclosing(batches):
            async for lines in batches:
                self.listener.lines(pod, lines)

    async def _last_lines(self) -> None:
        readers = [task for task in self._readers.values() if not task.done()]
        if readers:
            await asyncio.wait(readers, timeout=LAST_LINES_SECONDS)
        if self._failed.done():
            self._failed.result()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task whose error ends `follow`."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._failed.done():
            self._failed.set_exception(error)


def has_log(pod: Pod, container: str = TRAINER) -> bool:
    """Return whether the container has started, so that there is a log."""
    if container == TRAINER:
        return pod.started_at is not None or pod.exit is not None
    return pod.phase in ("Running", "Succeeded", "Failed")
