"""The jobs of a cluster, from one watch for all viewers, and shared reads of the pods and Events of a job."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from allranks.client.queues import Queue, read_queues
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import JOB_LABEL
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster
from allranks.kube.decoding import decoder
from allranks.kube.errors import ApiError
from allranks.kube.events import events_of_job, events_of_object
from allranks.kube.job_codec import by_rank
from allranks.kube.object_text import ObjectText, name_only, object_text, of_manifest, without_spec
from allranks.kube.paths import core_path, job_path
from allranks.kube.pod_codec import pod
from allranks.kube.raw_pod import Raw
from allranks.kube.store import differences
from allranks.kube.watch import LAST_BACKOFF_SECONDS, PAGE_OF_LARGE_OBJECTS, Watch
from allranks.shares import Share
from allranks.ui.changes import Hub
from allranks.ui.entries import Entry, Manifest
from allranks.ui.problems import Problem

FRESH_SECONDS = 2.0
"""Time in which viewers share one answer of the API server."""
MOST_READS = 256
MOST_LISTED_BYTES = 32 * 2**20
"""JSON text of a list of sweeps, or of the pods of a job. Of the others, a list has the names."""
MOST_JOB_BYTES = 192 * 2**20
"""JSON text of the jobs that all users of a server in the cluster watch. Of further jobs, there is no spec."""
_NO_ROOM_FOR_JOBS = (
    f"the jobs that users look at have more than {MOST_JOB_BYTES >> 20} MiB, or this user's are too much of it"
)
T = TypeVar("T")


class JobRoom:
    """The place for the jobs of one mirror, in a room that all mirrors share. Accounts have shares of it."""

    def __init__(self, share: Share, account: str) -> None:
        self._share, self._account = share, account
        self._sizes: dict[tuple[str, str], int] = {}
        """Job -> bytes that it takes; 0 for a job without its spec."""

    def fitting(self, job: ObjectText) -> ObjectText:
        """Return the job, without its spec if there is no room."""
        key, size = (job.metadata["namespace"], job.metadata["name"]), len(job.json)
        self.forget(*key)
        fits = self._share.take(self._account, size)
        self._sizes[key] = size if fits else 0
        return job if fits else without_spec(job, _NO_ROOM_FOR_JOBS)

    def is_reduced(self, namespace: str, name: str) -> bool:
        return self._sizes.get((namespace, name)) == 0

    def forget(self, namespace: str, name: str) -> None:
        """Give back the place of a job."""
        if size := self._sizes.pop((namespace, name), 0):
            self._share.give(self._account, size)

    def keep_only(self, jobs: Collection[tuple[str, str]]) -> None:
        """Give back the places of all other jobs."""
        for key in [key for key in self._sizes if key not in jobs]:
            self.forget(*key)


class ClusterJobs:
    """A mirror of the jobs of one namespace, or of all."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str | None,
        hub: Hub,
        turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        room: JobRoom | None = None,
    ) -> None:
        """`namespace` None: all namespaces. `turn`: a block in which one page of a list is in memory."""
        self.cluster, self.namespace, self._turn, self._room = cluster, namespace, turn, room
        self.problem = ""
        """Reason why the jobs are not current, as a sentence; empty if they are."""
        self.listed = asyncio.Event()
        """Set when the jobs were listed, or when the first try has failed."""
        self._hub = hub
        self._entries: dict[tuple[str, str], Entry] = {}
        self._reads = SharedReads()

    def all(self) -> list[Entry]:
        return list(self._entries.values())

    def get(self, namespace: str, name: str) -> Entry:
        """Return a job. Raises Problem if there is none."""
        if self.namespace not in (None, namespace):
            raise Problem(
                404,
                f"this server shows namespace {self.namespace}: allranks ui -n {namespace} shows that of {name}, "
                "and allranks ui -A all",
            )
        entry = self._entries.get((namespace, name))
        if entry is None:
            reason = f" ({self.problem})" if self.problem else ""
            raise Problem(404, f"there is no job {name} in namespace {namespace}{reason}")
        return entry

    async def whole(self, entry: Entry) -> Entry:
        """Return the job with its spec, which is read again if there was no room for it. Raises ClusterError."""
        if self._room is None or not self._room.is_reduced(entry.group, entry.name):
            return entry
        return _entry(of_manifest(await self.cluster.get(job_path(entry.group, entry.name))))

    def within(self, namespace: str) -> Cluster:
        """Return the session for requests in a namespace."""
        return replace(self.cluster, namespace=namespace)

    def add(self, job: Manifest) -> None:
        """Show a job that was just created here, before the watch has it."""
        if (job["metadata"]["namespace"], job["metadata"]["name"]) not in self._entries:
            self._on_change(of_manifest(job), False)

    def watch(self) -> Watch[ObjectText]:
        """Return the watch that feeds this mirror."""
        return Watch(
            self.cluster.client,
            job_path(self.namespace),
            self._decode,
            listed=self._on_list,
            changed=self._on_change,
            on_error=self._on_error,
            on_open=lambda: self._say(""),
            page=PAGE_OF_LARGE_OBJECTS,
            turn=self._turn,
        )

    async def run(self) -> None:
        """Watch until cancelled. Try again after an error."""
        watch = self.watch()
        while True:
            try:
                await watch.run()
            except ClusterError as error:
                self._say(str(error))
            except Exception as error:  # any error: the page must say that it is not current
                self._say(f"the watch of the jobs has ended: {error}")
            await asyncio.sleep(LAST_BACKOFF_SECONDS)

    async def close(self) -> None:
        await self._reads.close()
        if self._room:
            self._room.keep_only(())

    def _decode(self, data: msgspec.Raw) -> ObjectText:
        text = object_text(data)
        if self._room is None:
            return text
        key = (text.metadata["namespace"], text.metadata["name"])
        before = self._entries.get(key)
        unchanged = before is not None and _version(before) == text.metadata["resourceVersion"]
        if before and unchanged and not self._room.is_reduced(*key) and isinstance(before.content, ObjectText):
            return before.content  # listed again: it has its place
        return self._room.fitting(text)

    def _on_list(self, jobs: Sequence[ObjectText], _resource_version: int) -> None:
        before = self._entries
        self._entries = {(entry.group, entry.name): entry for entry in map(_entry, jobs)}
        if self._room:
            self._room.keep_only(self._entries)
        for kind, entry in differences(before, self._entries, _version):
            self._hub.publish(kind, entry)
        self._say("")

    def _on_change(self, job: ObjectText, deleted: bool) -> None:
        entry = _entry(job)
        key = (entry.group, entry.name)
        if deleted:
            self._entries.pop(key, None)
            if self._room:
                self._room.forget(*key)
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

    # --- reads that viewers share; they raise ClusterError -----------------------------------------------------------

    async def pods(self, entry: Entry) -> list[Pod]:
        """Return the job's own pods, by attempt, then rank."""
        uid = _uid(entry)

        def own_pod(data: msgspec.Raw) -> Pod | None:
            raw = _raw_pod(data)
            return (
                pod(raw) if uid in (owner.uid for owner in raw.metadata.owner_references if owner.controller) else None
            )

        async def read() -> list[Pod]:
            return by_rank(entry.manifest, await self.items(*_pods_of(entry), own_pod))

        return await self._reads.get(("pods", uid, entry.status.attempt, entry.status.ready), read)

    async def pod_texts(self, entry: Entry) -> list[ObjectText]:
        """Return the objects of `pods`. Viewers do not share them: they are large."""
        order = {pod.uid: place for place, pod in enumerate(await self.pods(entry))}
        texts = await self.texts(*_pods_of(entry), "Pod")
        owned = (text for text in texts if text.metadata["uid"] in order)
        return sorted(owned, key=lambda text: order[text.metadata["uid"]])

    async def events(self, entry: Entry) -> list[Manifest]:
        """Return the Events of the job and its pods, the oldest first."""

        async def read() -> list[Manifest]:
            return _oldest_first(await events_of_job(self.cluster, dict(entry.metadata), self._turn))

        return await self._reads.get(("events", _uid(entry)), read)

    async def events_of(self, namespace: str, uid: str) -> list[Manifest]:
        """Return the Events of one object, the oldest first."""
        return await self._reads.get(
            ("events", uid), lambda: events_of_object(self.cluster, namespace, uid, self._turn)
        )

    async def queues(self, namespace: str) -> list[Queue]:
        return await self._reads.get(("queues", namespace), lambda: read_queues(self.within(namespace), ()))

    async def shared_items(
        self, path: str, query: Mapping[str, str] | None, decode: Callable[[msgspec.Raw], T | None]
    ) -> list[T]:
        """Return what `decode` keeps of the objects at a path, which must be little."""
        return await self._reads.get((path, str(query)), lambda: self.items(path, query, decode))

    async def items(
        self, path: str, query: Mapping[str, str] | None, decode: Callable[[msgspec.Raw], T | None]
    ) -> list[T]:
        return await self.cluster.items(path, query, decode, self._turn)

    async def texts(self, path: str, query: Mapping[str, str] | None, kind: str) -> list[ObjectText]:
        """Return the objects at a path: of those for which there is no room, the name. Namespaces share the room."""
        room = Share(MOST_LISTED_BYTES)

        def keep(data: msgspec.Raw) -> ObjectText:
            text = object_text(data, kind)
            fits = room.take(str(text.metadata.get("namespace")), len(text.json))
            return text if fits else name_only(text, _NO_ROOM)

        return await self.items(path, query, keep)


_raw_pod = decoder(Raw)
_NO_ROOM = f"the list has more than {MOST_LISTED_BYTES >> 20} MiB, or too much of it is of this namespace"


def _pods_of(entry: Entry) -> tuple[str, Mapping[str, str]]:
    """Return the path and the query of a job's pods."""
    return core_path(entry.group, "pods"), {"labelSelector": f"{JOB_LABEL}={entry.name}"}


def _entry(job: ObjectText) -> Entry:
    return Entry("jobs", job.metadata["namespace"], job.metadata["name"], job)


def _oldest_first(events: Iterable[Manifest]) -> list[Manifest]:
    return sorted(events, key=lambda event: str(event["metadata"].get("creationTimestamp")))


def _uid(entry: Entry) -> str:
    return str(entry.metadata.get("uid") or "")


def _version(entry: Entry) -> str:
    return str(entry.metadata.get("resourceVersion") or "")


class SharedReads:
    """Answers that viewers share: a second request for the same key joins the first, or gets its recent answer."""

    def __init__(self, fresh_seconds: float | None = None) -> None:
        """`fresh_seconds` None: FRESH_SECONDS."""
        self._fresh = fresh_seconds
        self._reads: dict[Hashable, _Read] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of `read`, or of an earlier call with the key. Raises the errors of `read`."""
        now, fresh = time.monotonic(), FRESH_SECONDS if self._fresh is None else self._fresh
        shared = self._reads.get(key)
        if shared is None or (shared.task.done() and (now - shared.began > fresh or _failed(shared.task))):
            self._reads = {
                other: entry
                for other, entry in list(self._reads.items())[-MOST_READS:]
                if not entry.task.done() or now - entry.began <= fresh
            }
            shared = self._reads[key] = _Read(asyncio.ensure_future(read()), now)
        # A viewer who leaves does not end the request of the others.
        answer: T = await asyncio.shield(shared.task)
        return answer

    async def close(self) -> None:
        for shared in self._reads.values():
            shared.task.cancel()
            with contextlib.suppress(BaseException):
                await shared.task


@dataclass
class _Read:
    task: asyncio.Task[Any]
    began: float


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None
