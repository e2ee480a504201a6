"""Write jobs and sweeps to the archive.

A job is written when an attempt begins or ends, a sweep when a trial ends, both when they have finished and when they
are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from allranks.api.job import KIND as JOB
from allranks.api.status import FINISHED
from allranks.api.sweep import KIND as SWEEP
from allranks.api.sweep_status import ENDED
from allranks.archive.access import Access, Metrics
from allranks.archive.job_attempts import JobAttempts
from allranks.archive.pod_secrets import SecretValues, references
from allranks.archive.store import ArchiveError
from allranks.archive.writer import Writer, folder_of
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster
from allranks.kube.events import events_of_job, events_of_object
from allranks.kube.object_text import ObjectText
from allranks.shares import Share, Traffic, Turns

Manifest = dict[str, Any]
logger = logging.getLogger("allranks.archiver")

SETTLE_SECONDS = 1.0
"""Changes of an object within this time are written once."""
MOST_WAITING_BYTES = 192 * 2**20
"""JSON text of objects that wait to be written. Namespaces share it. Beyond it, the oldest of the namespace is
dropped."""
MOST_UNFINISHED_BYTES = 192 * 2**20
"""JSON text of objects that have not finished. Of an object for which there is no room, the archive has the last state
that was written, if the watch misses its deletion."""
_TOO_MANY = "too many jobs of its namespace wait to be written"
WRITERS = 4
_WORDS = {JOB: "job", SWEEP: "sweep"}


class _State(NamedTuple):
    """The part of an object that is compared: a change of it is written."""

    phase: str
    number: int
    """The attempt of a job, the number of trials of a sweep that have ended."""
    version: str
    """The resourceVersion of a finished object: each change is written, for example the outcome of its pods."""


class SavedObjects:
    """Writes the jobs and sweeps that watches report to `listed` and `changed`. `run` does the writing."""

    def __init__(
        self,
        cluster_of: Callable[[str], Cluster],
        access: Access,
        writer: Writer,
        metrics: Metrics,
        secrets: SecretValues,
        attempts: JobAttempts,
    ) -> None:
        self._cluster_of, self._access, self._writer, self._metrics = cluster_of, access, writer, metrics
        self._secrets, self._attempts = secrets, attempts
        self._states: dict[str, _State] = {}
        self._unfinished: dict[str, ObjectText] = {}
        """UID -> an object that has not finished. It is written if the watch misses its deletion."""
        self._folders: dict[str, tuple[str, str]] = {}
        """UID -> kind, folder."""
        self._waiting: dict[str, OrderedDict[str, ObjectText]] = {}
        """Namespace -> UID -> object. Namespaces have turns: the first one is the next one."""
        self._places, self._writes = Share(MOST_WAITING_BYTES), Share(WRITERS)
        self._room = Share(MOST_UNFINISHED_BYTES)
        self._pages = Turns()
        """For pages of Events: one is in memory at a time."""
        self.received = Traffic()
        """Events that were read."""
        metrics.waiting.set_function(lambda: sum(map(len, self._waiting.values())))
        self._news = asyncio.Event()
        self._busy: set[str] = set()
        """UIDs of objects that are being written: an older state must not replace a newer one."""

    @property
    def live(self) -> set[str]:
        """Return the folders of objects that exist, or wait to be written."""
        waiting = (_folder(text) for objects in self._waiting.values() for text in objects.values())
        return {*(folder for _, folder in self._folders.values()), *waiting}

    @property
    def large(self) -> dict[str, float]:
        """Return `Share.large` of the objects that wait to be written."""
        return self._places.large

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._busy

    def listed(self, objects: Sequence[ObjectText], namespace: str | None, kind: str = JOB) -> None:
        """Take all objects of a kind in a namespace; None: in all namespaces. Objects that are missing are deleted."""
        for text in objects:
            self.changed(text, False)
        uids = {text.metadata["uid"] for text in objects}
        prefix = f"{namespace}/"
        for uid, (saved_kind, folder) in list(self._folders.items()):
            if saved_kind == kind and uid not in uids and (namespace is None or folder.startswith(prefix)):
                if last := self._unfinished.get(uid):
                    self._wait(uid, last)
                self._forget(uid)

    def changed(self, text: ObjectText, deleted: bool) -> None:
        uid = text.metadata["uid"]
        status, folder = text.status, _folder(text)
        if text.kind == JOB and status:  # without a status, the operator has created no pods
            self._attempts.note(folder, _attempt(status))
        if deleted:
            self._wait(uid, text)
            self._forget(uid)
            return
        state = _state(text, status)
        if self._states.get(uid) != state and state.phase:
            self._wait(uid, text)
        self._states[uid], self._folders[uid] = state, (text.kind, folder)
        self._drop_unfinished(uid)
        if state.phase not in FINISHED and self._room.take(text.metadata["namespace"], len(text.json)):
            self._unfinished[uid] = text

    def _drop_unfinished(self, uid: str) -> None:
        if text := self._unfinished.pop(uid, None):
            self._room.give(text.metadata["namespace"], len(text.json))

    def _forget(self, uid: str) -> None:
        self._states.pop(uid, None)
        self._drop_unfinished(uid)
        _, folder = self._folders.pop(uid, ("", ""))
        self._attempts.forget(folder)

    def _wait(self, uid: str, text: ObjectText) -> None:
        namespace = text.metadata["namespace"]
        waiting = self._waiting.get(namespace, OrderedDict())
        if before := waiting.get(uid):
            self._places.give(namespace, len(before.json))
        while not self._places.take(namespace, len(text.json)):
            oldest = next((key for key in waiting if key != uid), None)
            if oldest is None:
                self._lost(text, _TOO_MANY)
                if before:
                    self._places.take(namespace, len(before.json))  # it keeps its place
                return
            dropped = waiting.pop(oldest)
            self._places.give(namespace, len(dropped.json))
            self._lost(dropped, _TOO_MANY)
        waiting[uid] = text
        self._waiting[namespace] = waiting
        self._news.set()

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as writers:
            for _ in range(WRITERS):
                writers.create_task(self._write_all())

    async def _write_all(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(SETTLE_SECONDS)
            while text := self._next():
                uid = text.metadata["uid"]
                self._busy.add(uid)
                try:
                    await self._save(text.manifest())
                except ArchiveError as error:
                    self._lost(text, str(error))
                except Exception:
                    logger.exception("%s %s is not archived", _word(text.kind), uid)
                    self._lost(text, "internal error")
                finally:
                    self._busy.discard(uid)
                    self._writes.give(text.metadata["namespace"])
            self._news.clear()

    def _next(self) -> ObjectText | None:
        """Take the oldest object of the namespace whose turn it is, and one of the `WRITERS` for it."""
        for namespace, objects in self._waiting.items():
            uid = next((uid for uid in objects if uid not in self._busy), None)
            if uid is not None and self._writes.take(namespace):
                text = objects.pop(uid)
                self._places.give(namespace, len(text.json))
                del self._waiting[namespace]
                if objects:
                    self._waiting[namespace] = objects  # behind all others
                return text
        return None

    async def _save(self, manifest: Manifest) -> None:
        """Write an object with its Events, masked. Raises ArchiveError."""
        events = await self._events(manifest)
        values = await self._secrets.read(manifest["metadata"]["namespace"], set(references(manifest)))
        if await self._access.persistent(_word(manifest["kind"]), lambda: self._writer.save(manifest, events, values)):
            self._metrics.written.labels(_word(manifest["kind"])).inc()

    async def _events(self, manifest: Manifest) -> list[Manifest] | None:
        """Return the Events of an object, for a job also of its pods; None if they cannot be read."""
        metadata = manifest["metadata"]
        namespace, cluster = metadata["namespace"], self._cluster_of(metadata["namespace"])

        def turn() -> contextlib.AbstractAsyncContextManager[None]:
            return self._pages.turn(namespace)

        def received(size: int) -> None:
            self.received.add(namespace, size)

        with contextlib.suppress(ClusterError):
            if manifest["kind"] == SWEEP:
                return await events_of_object(cluster, namespace, metadata["uid"], turn, received)
            return await events_of_job(cluster, metadata, turn, received)
        return None

    def _lost(self, text: ObjectText, reason: str) -> None:
        self._metrics.lost.labels(_word(text.kind)).inc()
        logger.error("%s %s is not archived: %s", _word(text.kind), _folder(text), reason)


def _folder(text: ObjectText) -> str:
    return folder_of({"metadata": text.metadata})


def _word(kind: str) -> str:
    """Return `job` or `sweep`, for metrics and messages."""
    return _WORDS.get(kind, "job")


def _state(text: ObjectText, status: Manifest) -> _State:
    phase = str(status.get("phase") or "")
    number = _ended_trials(status) if text.kind == SWEEP else _attempt(status)
    version = str(text.metadata.get("resourceVersion") or "") if phase in FINISHED else ""
    return _State(phase, number, version)


def _attempt(status: Manifest) -> int:
    attempt = status.get("attempt")
    return attempt if isinstance(attempt, int) else 0


def _ended_trials(status: Manifest) -> int:
    trials = status.get("trials")
    trials = trials if isinstance(trials, list) else []
    return sum(isinstance(trial, dict) and trial.get("phase") in ENDED for trial in trials)
