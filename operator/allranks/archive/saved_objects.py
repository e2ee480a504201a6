"""Writes jobs and sweeps to the archive: a job when an attempt begins or ends, a sweep when a trial ends, both when
they have finished, and when they are deleted."""

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
from allranks.archive.pod_secrets import SecretValues, references
from allranks.archive.store import ArchiveError
from allranks.archive.writer import Writer, folder_of
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster
from allranks.kube.paths import core_path

Manifest = dict[str, Any]
logger = logging.getLogger("allranks.archiver")

SETTLE_SECONDS = 1.0
"""Changes of an object within this time are written once."""
MOST_WAITING = 10_000
"""Objects that wait to be written. Beyond that, the oldest is given up."""
WRITERS = 4
EVENTS_OF_PODS = 5000
"""Events of pods of a namespace that are read to find those of a job."""
_WORDS = {JOB: "job", SWEEP: "sweep"}


class _State(NamedTuple):
    """What decides whether an object is written."""

    phase: str
    number: int
    """The attempt of a job, the number of trials of a sweep that have ended."""
    version: str
    """The resourceVersion of a finished object: each change is written, for example the outcome of its pods."""


class SavedObjects:
    """`listed` and `changed` take what the watches of jobs and of sweeps show, `run` writes."""

    def __init__(
        self,
        cluster_of: Callable[[str], Cluster],
        access: Access,
        writer: Writer,
        metrics: Metrics,
        secrets: SecretValues,
    ) -> None:
        self._cluster_of, self._access, self._writer, self._metrics = cluster_of, access, writer, metrics
        self._secrets = secrets
        self._states: dict[str, _State] = {}
        self._unfinished: dict[str, Manifest] = {}
        """The last state of objects that have not finished: it is written, if the object is deleted unnoticed."""
        self._folders: dict[str, tuple[str, str]] = {}
        """UID -> kind, folder."""
        self._waiting: OrderedDict[str, Manifest] = OrderedDict()
        self._news = asyncio.Event()
        self._busy: set[str] = set()
        """Objects that are being written: an older state must not replace a newer one."""

    @property
    def live(self) -> set[str]:
        """The folders of objects that exist, or wait to be written."""
        return {*(folder for _, folder in self._folders.values()), *map(folder_of, self._waiting.values())}

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._busy

    def listed(self, objects: Sequence[Manifest], namespace: str | None, kind: str = JOB) -> None:
        """All objects of that kind of a namespace, or of all of them."""
        for one in objects:
            self.changed(one, False, kind)
        there = {one["metadata"]["uid"] for one in objects}
        prefix = f"{namespace}/"
        for uid, (of, folder) in list(self._folders.items()):
            if of == kind and uid not in there and (namespace is None or folder.startswith(prefix)):
                if last := self._unfinished.get(uid):
                    self._wait(uid, last)
                self._forget(uid)

    def changed(self, one: Manifest, deleted: bool, kind: str = JOB) -> None:
        uid = one["metadata"]["uid"]
        one.setdefault("kind", kind)
        one["metadata"].pop("managedFields", None)
        if deleted:
            self._wait(uid, one)
            self._forget(uid)
            return
        state = _state(one)
        if self._states.get(uid) != state and state.phase:
            self._wait(uid, one)
        self._states[uid], self._folders[uid] = state, (kind, folder_of(one))
        if state.phase in FINISHED:
            self._unfinished.pop(uid, None)
        else:
            self._unfinished[uid] = one

    def _forget(self, uid: str) -> None:
        self._states.pop(uid, None)
        self._unfinished.pop(uid, None)
        self._folders.pop(uid, None)

    def _wait(self, uid: str, one: Manifest) -> None:
        self._waiting[uid] = one
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
                one = self._waiting.pop(uid)
                self._busy.add(uid)
                try:
                    await self._save(one)
                except ArchiveError as error:
                    self._lost(one, str(error))
                except Exception:
                    logger.exception("%s %s is not archived", _word(one), uid)
                    self._lost(one, "internal error")
                finally:
                    self._busy.discard(uid)
                    self._metrics.waiting.set(len(self._waiting))
            self._news.clear()

    async def _save(self, one: Manifest) -> None:
        """Raises ArchiveError."""
        events = await self._events(one)
        values = await self._secrets.of(one["metadata"]["namespace"], set(references(one)))
        if await self._access.persistent(_word(one), lambda: self._writer.save(one, events, values)):
            self._metrics.written.labels(_word(one)).inc()

    async def _events(self, one: Manifest) -> list[Manifest] | None:
        """Those of the object, and of the pods of a job. None: they cannot be read."""
        metadata = one["metadata"]
        path = core_path(metadata["namespace"], "events")
        cluster = self._cluster_of(metadata["namespace"])
        with contextlib.suppress(ClusterError):
            own = await cluster.get(path, {"fieldSelector": f"involvedObject.uid={metadata['uid']}"})
            if one["kind"] == SWEEP:
                return list(own["items"])
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

    def _lost(self, one: Manifest, why: str) -> None:
        self._metrics.lost.labels(_word(one)).inc()
        logger.error("%s %s is not archived: %s", _word(one), folder_of(one), why)


def _word(one: Manifest) -> str:
    """For metrics and messages."""
    return _WORDS.get(one["kind"], "job")


def _state(one: Manifest) -> _State:
    status = one.get("status")
    status = status if isinstance(status, dict) else {}
    phase = str(status.get("phase") or "")
    number = _ended_trials(status) if one["kind"] == SWEEP else status.get("attempt")
    version = str(one["metadata"].get("resourceVersion") or "") if phase in FINISHED else ""
    return _State(phase, number if isinstance(number, int) else 0, version)


def _ended_trials(status: Manifest) -> int:
    trials = status.get("trials")
    found = trials if isinstance(trials, list) else []
    return sum(isinstance(trial, dict) and trial.get("phase") in ENDED for trial in found)
