"""Facts about other jobs on which decisions depend: contention for nodes, checkpoints to resume from, the cache of
inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
from pydantic import ValidationError

from allranks.api.data import RESUME_INPUT
from allranks.api.job import Checkpoint
from allranks.api.status import FINISHED, WITHOUT_PODS, Status
from allranks.cache_key import cache_key, pin_of
from allranks.core.diagnosis import contention
from allranks.core.facts import resume_source
from allranks.core.facts.contenders import Contender, Contention, Place, near
from allranks.core.facts.data_store import CacheUse
from allranks.core.facts.model import Manifest, Observed
from allranks.core.facts.resume_source import ResumeSource
from allranks.core.snapshot import Snapshot
from allranks.kube import compact_jobs, job_codec, paths
from allranks.kube.client import Client
from allranks.kube.errors import NotFound
from allranks.operator.cache import JobCache, JobKey

MOST_KEYS = 1000
"""They are in the manifest of a pod. If jobs use more, nothing is evicted."""
UNKNOWN = "?"
"""Key of the inputs of a job whose list of inputs is too large to keep."""


@dataclass
class Contenders:
    """The jobs that hold nodes for a part of their pods while others find no room, for `core/diagnosis/contention.py`.

    Every reconcile updates it; it is complete once each job was reconciled, soon after the start. Calls `enqueue` for
    the jobs that are placed in part when another one changes.
    """

    enqueue: Callable[[JobKey], None]
    _contenders: dict[JobKey, Contender] = field(default_factory=dict)
    _given_up: dict[JobKey, tuple[datetime, Place]] = field(default_factory=dict)
    """Job -> when it gave its pods up, and its place."""

    def observe(self, key: JobKey, observed: Observed) -> Contention:
        """Note the state of this job, and return the state of the others with which it shares a pool or a
        namespace."""
        current = contention.contender(observed, Snapshot(observed).pods) if contention.may_contend(observed) else None
        place, moment = (key[0], observed.pool_names), contention.given_up_at(observed.persisted)
        self._note(key, place, current, (moment, place) if moment else None)
        if current is None:
            return Contention()
        others = tuple(self._contenders[other] for other in self._near(key, place))
        times = (
            moment
            for other, (moment, other_place) in self._given_up.items()
            if other != key and near(place, other_place)
        )
        return Contention(others, max(times, default=None))

    def forget(self, key: JobKey) -> None:
        """Forget a job that was deleted."""
        before = self._contenders.get(key)
        self._note(key, (key[0], before.pools if before else frozenset({None})), None, None)

    def _note(
        self, key: JobKey, where: Place, contender: Contender | None, given_up: tuple[datetime, Place] | None
    ) -> None:
        before = self._contenders.get(key), self._given_up.get(key)
        if before == (contender, given_up):
            return
        for place, value in ((self._contenders, contender), (self._given_up, given_up)):
            if value is None:
                place.pop(key, None)
            else:
                place[key] = value  # type: ignore[assignment]
        for other in self._near(key, where):
            self.enqueue(other)

    def _near(self, key: JobKey, where: Place) -> list[JobKey]:
        return [
            other
            for other, contender in self._contenders.items()
            if other != key and near(where, (other[0], contender.pools))
        ]


class ResumeSources:
    """The jobs that others name in `resumeFrom`: `read` before `get`. Read only until the other job has a status."""

    def __init__(self, client: Client, jobs: JobCache) -> None:
        self._client, self._jobs = client, jobs

    async def read(self, job: Manifest) -> None:
        """Ask the API server for a source that is not cached: it may only not be watched yet. Raises ApiError."""
        key = _source_of(job)
        if key and self._jobs.get(key) is None:
            try:
                self._jobs.upsert(compact_jobs.job(await self._client.get(paths.job_path(*key))))
            except NotFound:
                return

    def get(self, job: Manifest) -> ResumeSource | None:
        key = _source_of(job)
        source = self._jobs.get(key) if key else None
        if source is None or source["metadata"].get("deletionTimestamp"):
            return None
        phase = (source.get("status") or {}).get("phase", "")
        try:
            if (spec := compact_jobs.spec_of(source)).left_out:
                return ResumeSource(phase, _checkpoint(spec.json))
            return ResumeSource(phase, job_codec.job(compact_jobs.expanded(source)).spec.checkpoint)
        except (job_codec.DecodeError, ValidationError):
            return ResumeSource(phase)


def _checkpoint(spec: bytes) -> Checkpoint | None:
    checkpoint = (msgspec.json.decode(spec) or {}).get("checkpoint")
    return None if checkpoint is None else Checkpoint.model_validate(checkpoint, by_alias=True, by_name=False)


def _source_of(job: Manifest) -> JobKey | None:
    status = job.get("status")
    name = compact_jobs.spec_of(job).resume_from
    if not name or resume_source.is_address(name) or (isinstance(status, dict) and status.get("startTime")):
        return None
    return job["metadata"].get("namespace", ""), resume_source.split(name)[0]


def fetches(status: Status) -> bool:
    """Return whether pods of the job that fetch may be created now."""
    if status.phase in FINISHED or not status.inputs:
        return False
    creates = status.phase not in WITHOUT_PODS and (not status.launched or bool(status.replica_restarts))
    on_nodes = any(input_status.location == "Node" for input_status in status.inputs)
    return (on_nodes and creates) or any(input_status.state != "Ready" for input_status in status.inputs)


def cache_use(jobs: Iterable[Manifest | None], namespace: str) -> CacheUse | None:
    """Return the keys that unfinished jobs of a namespace use in the cache of inputs, so that no fetch evicts them.

    Returns None if there are too many to list, or a job has too many inputs: then nothing may be evicted.
    """
    keys: set[str] = set()
    created: list[str] = []
    for job in jobs:
        if job and job["metadata"].get("namespace") == namespace and (used := set(_keys(job))):
            keys |= used
            created.append(job["metadata"].get("creationTimestamp") or "")
            if UNKNOWN in used:
                return None
    oldest = datetime.fromisoformat(min(created)) if created and all(created) else None
    return CacheUse(tuple(sorted(keys)), oldest) if len(keys) <= MOST_KEYS else None


def _keys(job: Manifest) -> Iterable[str]:
    status = job.get("status")
    inputs = status.get("inputs") if isinstance(status, dict) and status.get("phase") not in FINISHED else None
    revisions = {item.get("name"): item.get("revision") for item in inputs or () if item.get("revision")}
    if not revisions:
        return
    raw = compact_jobs.spec_of(job)
    try:
        spec = msgspec.json.decode(raw.json, type=_Spec)
    except msgspec.DecodeError:
        if raw.left_out:
            yield UNKNOWN
        return
    for item in (*spec.inputs, _Input(RESUME_INPUT, spec.resume_from)):
        if revision := revisions.get(item.name):
            yield cache_key(item.source, pin_of(revision, item.sha256, item.unpack))


class _Input(msgspec.Struct):
    name: str
    source: str = msgspec.field(name="from")
    sha256: str | None = None
    unpack: bool = False


class _Spec(msgspec.Struct, rename="camel"):
    inputs: list[_Input] = []
    resume_from: str = ""
