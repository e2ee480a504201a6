"""Collects what a decision depends on: the decoded job and status, its pods and the reports of its ranks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from allranks.api.job import Job
from allranks.api.pool import PoolSpec
from allranks.api.status import FINISHED, WITHOUT_PODS, Status
from allranks.core.facts import attempt, limits
from allranks.core.facts.data_store import CacheUse
from allranks.core.facts.model import Manifest, Observed, Platform, RejectedCreate, RejectedDelete
from allranks.core.facts.optional_kinds import OptionalObjects
from allranks.core.facts.policy import Policy
from allranks.core.facts.rank_reports import Reports
from allranks.kube import compact_jobs, job_codec
from allranks.operator.cache import JobKey, PodCache
from allranks.operator.metrics import GpuCounts
from allranks.operator.notifier import Notifier
from allranks.operator.other_jobs import Contenders, ResumeSources, fetches
from allranks.operator.timing import Clock
from allranks.telemetry.processes import ProcessStore
from allranks.telemetry.store import ReportStore

MOST_DECODED_BYTES = 2**20
"""JSON text of the large specs that stay decoded, all together: as objects they take up to sixty times as much. A large
spec of a job that does not run is decoded for each reconcile."""


_DECODED = ("uid", "generation", "deletionTimestamp", "labels", "annotations", "ownerReferences")
"""Metadata on which the decoded job depends. The generation counts changes of the spec only."""


def _parts(raw: Manifest) -> tuple[Any, ...]:
    return (*(raw["metadata"].get(name) for name in _DECODED),)


@dataclass
class Decoded:
    """The last decoded job and status: decoding costs more than deciding. Nothing is kept of a job that is finished or
    suspended."""

    job: tuple[Any, Job] | None = field(default=None, repr=False)
    """(parts of the manifest that it depends on, job)"""
    complete: tuple[Job, Policy, Job] | None = field(default=None, repr=False)
    """(job, policy, the job with the policy's defaults)"""
    processes: tuple[Job, Mapping[str, PoolSpec], Mapping[str, int] | None] | None = None
    """(job, pools, role -> the number of processes that may report in each of its pods)"""
    status: tuple[str, Status] | None = field(default=None, repr=False)
    """(resourceVersion, status)"""

    def forget_job(self) -> None:
        self.job = self.complete = self.processes = None


class LargeJobs:
    """The jobs with large specs that stay decoded: the last ones that were used."""

    def __init__(self) -> None:
        self._kept: OrderedDict[JobKey, tuple[Decoded, int]] = OrderedDict()
        self._bytes = 0

    def keep(self, key: JobKey, decoded: Decoded, size: int) -> None:
        """Note that a job is used. `size` is 0 if it was decoded before."""
        size = size or self._kept.get(key, (decoded, 0))[1]
        self.forget(key)
        self._kept[key] = decoded, size
        self._bytes += size
        while self._bytes > MOST_DECODED_BYTES:
            oldest = next(iter(self._kept))
            self._kept[oldest][0].forget_job()
            self.forget(oldest)

    def forget(self, key: JobKey) -> None:
        if kept := self._kept.pop(key, None):
            self._bytes -= kept[1]


@dataclass(frozen=True, slots=True)
class Observer:
    """`platform` returns the facts about where a job runs, after `read_namespace(namespace, new_job)` has read what it
    needs. Without `reports` no rank is listened to."""

    pods: PodCache
    platform: Callable[[Job], Platform]
    clock: Clock
    reports: ReportStore | None = None
    processes: ProcessStore | None = None
    """Without it no program restarts in its pod."""
    read_namespace: Callable[[str, bool], Awaitable[None]] | None = None

    confirm_namespace: Callable[[str], Awaitable[None]] | None = None
    """Raises NamespaceTerminating if the namespace is being deleted."""
    gpus: GpuCounts | None = None
    optional: Callable[[str], OptionalObjects] = lambda uid: OptionalObjects()
    """Objects of optional kinds for the job with this UID."""
    contenders: Contenders | None = None
    sources: ResumeSources | None = None
    """Jobs that others name in `resumeFrom`."""
    outbox: Notifier | None = None
    node_problems: Callable[[], Mapping[str, str]] = dict
    """As in `Observed`."""
    cache_use: Callable[[str], CacheUse | None] = lambda namespace: None
    """The keys that the jobs of a namespace use in the cache of inputs."""
    large: LargeJobs = field(default_factory=LargeJobs)

    def needs_spec(self, raw: Manifest, decoded: Decoded) -> bool:
        """Return whether `observe` needs the spec, and the cache has not kept it because it is large."""
        decoded_before = decoded.job is not None and decoded.job[0] == _parts(raw)
        return compact_jobs.spec_of(raw).left_out and not decoded_before

    async def prepare(self, raw: Manifest) -> None:
        """Read what `observe` needs and does not have. Raises NamespaceNotUsable, ApiError."""
        if self.read_namespace:
            status, namespace = raw.get("status"), raw["metadata"].get("namespace", "")
            await self.read_namespace(namespace, not (isinstance(status, dict) and status.get("startTime")))
        if self.sources:
            await self.sources.read(raw)

    async def confirm(self, observed: Observed) -> None:
        """Check the namespace before a decision about an attempt that ran: the deletion of a namespace deletes pods
        before their job, so it looks like a failure. Raises NamespaceTerminating, ApiError."""
        if self.confirm_namespace and observed.persisted.launched:
            await self.confirm_namespace(observed.job.namespace)

    def observe(
        self,
        key: JobKey,
        raw: Manifest,
        decoded: Decoded,
        rejected: tuple[RejectedCreate, ...],
        rejected_deletions: tuple[RejectedDelete, ...] = (),
        check_companions: bool = False,
    ) -> Observed:
        """Raises DecodeError."""
        metadata, spec, parts = raw["metadata"], compact_jobs.spec_of(raw), _parts(raw)
        if decoded.job is None or decoded.job[0] != parts:
            decoded.job = (parts, job_codec.job(compact_jobs.expanded(raw)))
        if decoded.status is None or decoded.status[0] != metadata["resourceVersion"]:
            decoded.status = (metadata["resourceVersion"], job_codec.status(raw))
        job, status = decoded.job[1], decoded.status[1]
        platform = self.platform(job)
        if decoded.complete is None or decoded.complete[0] is not job or decoded.complete[1] is not platform.policy:
            decoded.complete = job, platform.policy, limits.with_defaults(job, platform.policy)
        job = decoded.complete[2]
        resting = status.phase in FINISHED | WITHOUT_PODS
        large = spec.left_out or compact_jobs.is_large(raw)
        if resting or (status.phase != "Running" and large):
            decoded.forget_job()
            self.large.forget(key)
        elif large:
            self.large.keep(key, decoded, 0 if spec.left_out else len(spec.json))
        if resting:
            decoded.status = None
        observed = Observed(
            job=job,
            persisted=status,
            pods=self.pods.for_job(key, metadata["uid"]),
            now=self.clock.now(),
            platform=platform,
            removed=self.pods.removed(metadata["uid"]),
            refused=rejected,
            refused_deletions=rejected_deletions,
            check_companions=check_companions,
            optional=self.optional(metadata["uid"]),
            resume_source=self.sources.get(raw) if self.sources else None,
            cache_use=self.cache_use(job.namespace) if fetches(status) else None,
            node_problems=self.node_problems(),
        )
        observed = replace(observed, reports=self._read_reports(key, observed, decoded))
        if self.processes:
            pods = {pod.uid for pod in observed.pods}
            observed = replace(observed, processes=self.processes.snapshot(key, metadata["uid"], pods))
        if self.gpus:
            self.gpus.note(key, observed)
        if self.outbox:
            observed = replace(observed, notified=self.outbox.exchange(key, observed))
        return replace(observed, contention=self.contenders.observe(key, observed)) if self.contenders else observed

    def forget(self, key: JobKey) -> None:
        """Forget a job that was deleted."""
        self.large.forget(key)
        for part in (self.reports, self.processes, self.gpus, self.contenders):
            if part:
                part.forget(key)

    def _read_reports(self, key: JobKey, observed: Observed, decoded: Decoded) -> Reports | None:
        if self.reports is None:
            return None
        job, status = observed.job, observed.persisted
        if status.phase in FINISHED:
            self.reports.forget(key)
            return None
        self.reports.bound(key, job.metadata.uid, _processes(observed, decoded))
        return self.reports.snapshot(key, job.metadata.uid, status.attempt)


def _processes(observed: Observed, decoded: Decoded) -> Mapping[str, int] | None:
    """Return how many processes may report in each pod, by role; None before there are pods."""
    job, pools = observed.job, observed.platform.pools
    if not observed.pods:
        return None
    if decoded.processes is None or decoded.processes[0] is not job or decoded.processes[1] != pools:
        decoded.processes = job, pools, attempt.most_processes(job, observed.persisted, observed.platform)
    return decoded.processes[2]
