"""The jobs of a cluster, from one watch for all viewers, and what is read of a single job when somebody looks at it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from allranks.cli.commands.describe import events_of
from allranks.cli.commands.queue import read_queues
from allranks.cli.queues import Queue
from allranks.core.naming import JOB_LABEL
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster
from allranks.kube.errors import ApiError
from allranks.kube.job_codec import pods_of
from allranks.kube.paths import core_path, job_path
from allranks.kube.watch import LAST_BACKOFF_SECONDS, Watch
from allranks.ui.changes import Hub
from allranks.ui.entries import Entry, Manifest
from allranks.ui.problems import Problem

FRESH_SECONDS = 2.0
"""Viewers of the same job share one answer of the API server for so long."""
MOST_READINGS = 256


class ClusterJobs:
    """A mirror of the jobs of one namespace, or of all."""

    def __init__(self, cluster: Cluster, namespace: str | None, hub: Hub) -> None:
        """`namespace` None: all namespaces."""
        self.cluster, self.namespace = cluster, namespace
        self.problem = ""
        """Why the jobs are not current, as a sentence; empty if they are."""
        self.listed = asyncio.Event()
        """Set when the jobs were listed, or when the first try has failed."""
        self._hub = hub
        self._entries: dict[tuple[str, str], Entry] = {}
        self._readings = Readings()

    def all(self) -> list[Entry]:
        return list(self._entries.values())

    def get(self, namespace: str, name: str) -> Entry:
        """Raises Problem."""
        if self.namespace not in (None, namespace):
            raise Problem(
                404,
                f"this server shows namespace {self.namespace}: allranks ui -n {namespace} shows that of {name}, "
                "and allranks ui -A all",
            )
        found = self._entries.get((namespace, name))
        if found is None:
            why = f" ({self.problem})" if self.problem else ""
            raise Problem(404, f"there is no job {name} in namespace {namespace}{why}")
        return found

    def within(self, namespace: str) -> Cluster:
        """The session for requests in that namespace."""
        return replace(self.cluster, namespace=namespace)

    def add(self, job: Manifest) -> None:
        """A job that was just created here: its page must not wait for the watch."""
        if (job["metadata"]["namespace"], job["metadata"]["name"]) not in self._entries:
            self._on_change(job, False)

    async def run(self) -> None:
        """Watches until it is cancelled. After an error it tries again."""
        watch = Watch(
            self.cluster.client,
            job_path(self.namespace),
            Manifest,
            listed=self._on_list,
            changed=self._on_change,
            on_error=self._on_error,
            on_open=lambda: self._say(""),
        )
        while True:
            try:
                await watch.run()
            except ClusterError as error:
                self._say(str(error))
            except Exception as error:  # whatever it is, the page must say that it is not current
                self._say(f"the watch of the jobs has ended: {error}")
            await asyncio.sleep(LAST_BACKOFF_SECONDS)

    async def close(self) -> None:
        await self._readings.close()

    def _on_list(self, found: Sequence[Manifest], _version: int) -> None:
        before = self._entries
        self._entries = {(entry.group, entry.name): entry for entry in map(_entry, found)}
        for key, entry in self._entries.items():
            if key not in before:
                self._hub.publish("added", entry)
            elif _version_of(entry) != _version_of(before[key]):
                self._hub.publish("changed", entry)
        for key in before.keys() - self._entries.keys():
            self._hub.publish("deleted", before[key])
        self._say("")

    def _on_change(self, found: Manifest, deleted: bool) -> None:
        entry = _entry(found)
        key = (entry.group, entry.name)
        if deleted:
            self._entries.pop(key, None)
            self._hub.publish("deleted", entry)
        else:
            self._hub.publish("changed" if key in self._entries else "added", entry)
            self._entries[key] = entry

    def _on_error(self, error: ApiError | msgspec.DecodeError, _failures: int) -> None:
        text = self.cluster.explain(error, job_path(self.namespace)) if isinstance(error, ApiError) else error
        self._say(str(text))

    def _say(self, problem: str) -> None:
        self.listed.set()
        if problem != self.problem:
            self.problem = problem
            self._hub.wake()

    # --- one job -----------------------------------------------------------------------------------------------------

    async def pods(self, entry: Entry) -> list[Manifest]:
        """The manifests of the job's own pods, by attempt, then rank. Raises ClusterError."""

        async def read() -> list[Manifest]:
            query = {"labelSelector": f"{JOB_LABEL}={entry.name}"}
            found = (await self.cluster.get(core_path(entry.group, "pods"), query))["items"]
            manifests = {pod["metadata"]["uid"]: pod for pod in found}
            return [manifests[pod.uid] for pod in pods_of(entry.manifest, found)]

        uid = entry.metadata.get("uid")
        found: list[Manifest] = await self._readings.get(("pods", uid, entry.status.attempt, entry.status.ready), read)
        return found

    async def events(self, entry: Entry) -> list[Manifest]:
        """The Events of the job and its pods, the oldest first. Raises ClusterError."""

        async def read() -> list[Manifest]:
            found = await events_of(self.within(entry.group), entry.manifest)
            if isinstance(found, str):
                raise ClusterError(found, 403, "Forbidden")
            for event in found:
                event["metadata"].pop("managedFields", None)
            return sorted(found, key=lambda event: str(event["metadata"].get("creationTimestamp")))

        found: list[Manifest] = await self._readings.get(("events", entry.metadata.get("uid")), read)
        return found

    async def events_of(self, namespace: str, uid: str) -> list[Manifest]:
        """The Events of one object, the oldest first. Raises ClusterError."""

        async def read() -> list[Manifest]:
            query = {"fieldSelector": f"involvedObject.uid={uid}"}
            found: list[Manifest] = (await self.within(namespace).get(core_path(namespace, "events"), query))["items"]
            for event in found:
                event["metadata"].pop("managedFields", None)
            return sorted(found, key=lambda event: str(event["metadata"].get("creationTimestamp")))

        found: list[Manifest] = await self._readings.get(("events", uid), read)
        return found

    async def read_shared(self, path: str) -> list[Manifest]:
        """The objects at a path, without their managed fields. Raises ClusterError."""

        async def read() -> list[Manifest]:
            found: list[Manifest] = (await self.cluster.get(path))["items"]
            for each in found:
                each["metadata"].pop("managedFields", None)
            return found

        found: list[Manifest] = await self._readings.get(("objects", path), read)
        return list(found)

    async def all_pods(self) -> list[Manifest]:
        """The pods of all jobs that the server shows. Raises ClusterError."""
        return await self._listed("pods", core_path(self.namespace, "pods"), {"labelSelector": JOB_LABEL})

    async def nodes(self) -> list[Manifest]:
        """The Nodes of the cluster. Raises ClusterError."""
        return await self._listed("nodes", core_path(None, "nodes"), {})

    async def _listed(self, what: str, path: str, query: Manifest) -> list[Manifest]:
        async def read() -> list[Manifest]:
            found: list[Manifest] = (await self.cluster.get(path, query))["items"]
            return found

        found: list[Manifest] = await self._readings.get((what,), read)
        return found

    async def queues(self, namespace: str) -> list[Queue]:
        """Raises ClusterError."""

        async def read() -> list[Queue]:
            return await read_queues(self.within(namespace), ())

        found: list[Queue] = await self._readings.get(("queues", namespace), read)
        return found


def _entry(job: Manifest) -> Entry:
    metadata = {key: value for key, value in job["metadata"].items() if key != "managedFields"}
    return Entry("jobs", metadata["namespace"], metadata["name"], {**job, "metadata": metadata})


def _version_of(entry: Entry) -> str:
    return str(entry.metadata.get("resourceVersion") or "")


@dataclass
class _Reading:
    task: asyncio.Task[Any]
    began: float


class Readings:
    """Answers that viewers share: a second request for the same key joins the first, or gets its recent answer."""

    def __init__(self, fresh_seconds: float | None = None) -> None:
        self._fresh = fresh_seconds
        self._readings: dict[Hashable, _Reading] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[Any]]) -> Any:
        """Raises what `read` raises."""
        found = self._readings.get(key)
        now, fresh = time.monotonic(), FRESH_SECONDS if self._fresh is None else self._fresh
        if found is None or (found.task.done() and (now - found.began > fresh or _failed(found.task))):
            self._readings = {
                other: one
                for other, one in list(self._readings.items())[-MOST_READINGS:]
                if not one.task.done() or now - one.began <= fresh
            }
            found = self._readings[key] = _Reading(asyncio.ensure_future(_call(read)), now)
        # A viewer who leaves does not end the request of the others.
        return await asyncio.shield(found.task)

    async def close(self) -> None:
        for one in self._readings.values():
            one.task.cancel()
            with contextlib.suppress(BaseException):
                await one.task


async def _call(read: Callable[[], Awaitable[Any]]) -> Any:
    return await read()


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None
