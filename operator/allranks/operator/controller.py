"""Reconciles jobs: observe (caches), decide (pure core), apply, write the status once.

After a crash, the status and the pods suffice.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any

from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.core.facts.model import Event, Manifest, Observed, Plan
from allranks.core.reconcile import reconcile
from allranks.core.sync.plans import DELETION_REFUSED
from allranks.kube import compact_jobs, job_codec
from allranks.kube.errors import Refused
from allranks.operator.apply import Executor
from allranks.operator.cache import JobCache, JobKey
from allranks.operator.event_recorder import Recorder
from allranks.operator.job_state import Creates, JobState
from allranks.operator.metrics import Metrics
from allranks.operator.observer import Observer
from allranks.operator.platform_cache import NamespaceNotUsable
from allranks.operator.reconciler import Reconciler, Result
from allranks.operator.status_writer import FieldDropped, StatusWriter
from allranks.operator.timing import Clock, Timing
from allranks.operator.workqueue import JobQueue
from allranks.shares import PART_OF_LARGE, Pace, Turns
from allranks.text import joined

logger = logging.getLogger("allranks.jobs")

_FOREIGN_WRITES = 3
"""One can be a write of ours whose answer was lost, or an edit by hand."""


@dataclass(frozen=True, slots=True)
class Reconcile:
    """One reconcile of a job: what was observed, and the plan."""

    key: JobKey
    raw: Manifest
    state: JobState
    observed: Observed
    plan: Plan


LARGE_AT_ONCE = 8
"""Jobs with a large spec that are read and reconciled at the same time: each is decoded meanwhile."""


class Controller(Reconciler[JobState]):
    """Reconciles the jobs in the queue."""

    kind, logger = "job", logger
    queue: JobQueue

    def __init__(
        self,
        queue: JobQueue,
        jobs: JobCache,
        observer: Observer,
        executor: Executor,
        recorder: Recorder,
        metrics: Metrics,
        *,
        timing: Timing,
        clock: Clock,
        decide: Callable[[Observed], Plan] = reconcile,
    ) -> None:
        super().__init__(queue, recorder, JobState, timing=timing, clock=clock)
        self.jobs, self._observer, self._executor, self._metrics, self._decide = (
            jobs,
            observer,
            executor,
            metrics,
            decide,
        )
        self._writer = StatusWriter(executor, jobs, timing, clock)
        self._large, self._pace = Turns(LARGE_AT_ONCE), Pace(PART_OF_LARGE)
        self._dropped: set[str] = set()
        """Dropped fields that were logged."""
        self._shared: set[str] = set()
        """Namespaces in which someone else writes statuses, and for which that was logged."""
        self.listed_in: set[str | None] = set()
        """Namespaces whose jobs have been listed; None stands for all of them."""

    @property
    def idle(self) -> bool:
        return self.queue.idle and all(state.writes.due is None for state in self._states.values())

    def start(self, namespace: str | None = None) -> None:
        """Begin, as the pods of the namespace are listed: without them every job would seem to have lost its pods."""
        self.queue.open(namespace)
        for key in self.jobs:
            if namespace in (None, key[0]):
                self.queue.enqueue(key)

    def enqueue_all(self) -> None:
        for key in self.jobs:
            self.queue.enqueue(key)

    def on_job_event(self, job: Manifest, deleted: bool) -> None:
        """Handle an event of the job watch."""
        if self.jobs.upsert(job, deleted):
            self.queue.enqueue((job["metadata"].get("namespace", ""), job["metadata"]["name"]))

    def on_job_list(self, present: Set[JobKey], version: int, namespace: str | None) -> None:
        """Take a complete list. The watch does not report jobs that were deleted before it."""
        self.listed_in.add(namespace)
        for job in self.jobs.missing_from_list(present, version, namespace):
            self.on_job_event(job, deleted=True)

    async def _reconcile(self, key: JobKey, state: JobState) -> Result:
        state.begin(self._clock.monotonic(), changed=self.queue.begin(key))
        try:
            succeeded = await self._reconcile_once(key, state)
        except FieldDropped as error:
            self._metrics.field_dropped()
            level = logging.DEBUG if str(error) in self._dropped else logging.ERROR
            self._dropped.add(str(error))
            logger.log(level, "%s: apply crds/ of this version", error, extra=self._log_fields(key, state))
            return Result.RETRY
        if not succeeded:
            return Result.RETRY
        if state.creates is Creates.INTERRUPTED:  # a pod changed during the backoff: the retry is still due
            return Result.WAIT
        state.end()
        return Result.DONE

    async def _reconcile_once(self, key: JobKey, state: JobState) -> bool:
        """Return False if the core raised, or a change of the job or of another object met a conflict or was rejected:
        the job is tried again with a backoff."""
        raw = self.jobs.get(key)
        if raw is None:
            return True
        try:
            await self._observer.prepare(raw)
        except NamespaceNotUsable as error:
            await self._report_invalid(key, raw, state, "NamespacePolicyInvalid", str(error))
            return False
        if (raw := self.jobs.get(key)) is None:
            return True
        if not self._observer.needs_spec(raw, state.decoded):
            return await self._decide_and_apply(key, raw, state)
        async with self._large.turn(key[0]):
            complete = await self._executor.read(*key)
            if complete is None:
                self.jobs.forget(key)
                return True
            self.jobs.upsert(complete)
            await self._pace.wait(key[0])
            return await self._decide_and_apply(key, complete, state)

    async def _decide_and_apply(self, key: JobKey, raw: Manifest, state: JobState) -> bool:
        observed: Observed | None = None
        began = time.perf_counter()
        try:
            rejected = (*state.rejections.by_object.values(), *state.rejections.changes.values())
            deletions = tuple(state.rejections.deletions.values())
            with self._pace.piece() if compact_jobs.is_large(raw) else contextlib.nullcontext():
                observed = self._observer.observe(key, raw, state.decoded, rejected, deletions, state.check_companions)
                plan = self._timed(key, observed, began)
        except job_codec.DecodeError as error:
            await self._report_invalid(key, raw, state, "InvalidSpec", str(error))
            return True
        except MemoryError:
            raise
        except Exception as error:
            await self._report_raised(key, raw, state, observed, error)
            return False
        state.invalid = ""
        state.set_wake_at(plan.wake_at, self._clock)
        if reports := self._observer.reports:
            reports.request_checkpoint(key, plan.checkpoint_request)
            reports.schedule_checkpoint(key, plan.checkpoint_due)
            if plan.stack_dump_id:
                reports.stack_dump_id(key, plan.stack_dump_id)
        if processes := self._observer.processes:
            processes.order(key, plan.orders)
        state.set_companions_due(observed, plan, self._clock, self._timing)
        job = Reconcile(key, raw, state, observed, plan)
        if plan.write_ahead:
            await self._observer.confirm(observed)
            state.creates = Creates.ALLOWED
        elif await self._sync_objects(job):
            self.queue.add(key)  # One status write then covers the new objects as well.
            return True
        if plan.next is None:
            self._emit(raw, plan.events, observed.persisted.attempt)
        elif not self._writer.postpone(state.writes, observed, plan):
            await self._write_status(job, plan.next)
        if plan.delete_job and not plan.write_ahead and not await self._executor.delete_job(raw):
            return False
        if plan.suspend_job and not await self._suspend(job):
            return False
        return not (state.rejections.changes or state.rejections.conflicts)

    async def _suspend(self, job: Reconcile) -> bool:
        """Set `spec.suspend`; the watch brings the changed job. Return False after a conflict or a rejection."""
        try:
            suspended = await self._executor.suspend_job(job.raw)
        except Refused as error:
            if job.state.suspend_rejected != str(error):
                job.state.suspend_rejected = str(error)
                self._warn(job, "SuspendRefused", f"the job cannot be suspended: {error}")
            return False
        job.state.suspend_rejected = ""
        return suspended

    def _timed(self, key: JobKey, observed: Observed, began: float) -> Plan:
        """Decide, and note how long it took. `began` is the time before the job was decoded."""
        decides = time.perf_counter()
        plan = self._decide(observed)
        ended = time.perf_counter()
        self.queue.set_cost(key, ended - began)
        self._metrics.reconciled(ended - decides)
        return plan

    async def _sync_objects(self, job: Reconcile) -> bool:
        """Delete and create. Return whether there were creates and all of them succeeded."""
        state, plan, rejections = job.state, job.plan, job.state.rejections
        may_create = await self._delete_pods(job)
        before_changes = rejections.changes
        if plan.remove or plan.patch or before_changes:
            await self._executor.change(plan.remove, plan.patch, rejections)
        if rejections.changes != before_changes:
            self.queue.add(job.key)  # the status says so
        if plan.restore:
            events = await self._executor.restore(job.raw, plan.restore)
            self._emit(job.raw, events, job.observed.persisted.attempt)
        if not plan.create:
            rejections.clear_creates()
            state.creates = Creates.ALLOWED
            return False
        if state.creates is not Creates.ALLOWED or not may_create:
            return False
        before = dict(rejections.by_object)
        state.creates = Creates.INTERRUPTED  # An exception leaves it so until the retry.
        await self._executor.create(job.raw, plan.create, rejections, plan.superseded)
        state.created(self._clock, self._timing)
        if rejections.by_object != before:
            self.queue.add(job.key)
        return bool(plan.create) and not rejections.by_object

    async def _delete_pods(self, job: Reconcile) -> bool:
        """Delete pods; rejected deletions are retried with a backoff. Return False after new rejections: the core
        decides first whether new pods wait for them."""
        rejections = job.state.rejections
        pods = rejections.due_deletions(job.plan.delete, self._clock.monotonic())
        before = set(rejections.deletions)
        if pods:
            await self._executor.delete(job.raw["metadata"]["namespace"], pods, rejections)
        rejections.delay_deletions(pods, self._clock.monotonic(), self._timing.deletion_retry_max)
        new = rejections.deletions.keys() - before
        if new and not before:
            rejected = rejections.deletions[min(new)]
            self._warn(job, DELETION_REFUSED, f"the deletion of pod {rejected.name} was rejected: {rejected.message}")
        if rejections.deletions.keys() != before:
            self.queue.add(job.key)
        return not new

    async def _write_status(self, job: Reconcile, status: Status) -> None:
        raw, state, before, events = job.raw, job.state, job.observed.persisted, job.plan.events
        try:
            written = await self._writer.write(job.key, raw, state.writes, status)
        except FieldDropped as error:
            if error.stored:
                self._emit(raw, events, status.attempt)
            raise
        except Refused as error:
            # An Event is the only way left to say so.
            if state.status_rejected != str(error):
                state.status_rejected = str(error)
                self._warn(job, "StatusRefused", f"the status cannot be written: {error}")
            raise
        state.status_rejected = ""
        if state.writes.foreign == _FOREIGN_WRITES:
            state.writes.foreign += 1  # said once for each job
            self._report_second_operator(job)
        if written:
            self._metrics.wrote(job.observed.job, before, status)
            self._emit(raw, events, status.attempt)
        self.queue.add(job.key)

    def _report_second_operator(self, job: Reconcile) -> None:
        """Say that someone else writes the status of the job. No write of either is lost: each names the version on
        which it is based."""
        namespace = job.key[0]
        message = "someone else changes the status of this job: is there a second operator for its namespace?"
        self._warn(job, "StatusContested", f"{message} Its administrators have to remove one of the two.")
        self._metrics.contested(namespace)
        if namespace not in self._shared:
            self._shared.add(namespace)
            text = "someone else writes the status of jobs in namespace %s: two operators must not serve a namespace"
            logger.error(text, namespace)

    def _warn(self, job: Reconcile, reason: str, message: str) -> None:
        self._emit(job.raw, [Event(reason, message, warning=True)], job.observed.persisted.attempt)

    async def _report_raised(
        self, key: JobKey, raw: Manifest, state: JobState, observed: Observed | None, error: Exception
    ) -> None:
        """Mark a job on which a rule or a codec raised, or name its pools."""
        exception = f"{type(error).__name__}: {error}"
        reason = "InvalidSpec"
        message = (
            f"the operator cannot evaluate this job ({exception}): correct its spec, or report a bug of the operator"
        )
        if observed and self._pools_raised(observed):
            reason = "InvalidPool"
            names = joined([f'"{name}"' for name in sorted(observed.platform.pools)], "or")
            message = f"TrainingPool {names} cannot be used until it is corrected ({exception})"
        await self._report_invalid(key, raw, state, reason, message, error)

    def _pools_raised(self, observed: Observed) -> bool:
        """Return whether the same decision with empty pools succeeds."""
        empty = {name: PoolSpec() for name in observed.platform.pools}
        if not empty:
            return False
        try:
            self._decide(replace(observed, platform=replace(observed.platform, pools=empty)))
        except Exception:  # the job is invalid by itself
            return False
        return True

    def _invalid_patch(self, raw: Manifest, reason: str, message: str) -> Manifest | None:
        return job_codec.invalid_spec_patch(raw, message, self._clock.now(), reason)

    async def _patch_status(self, key: JobKey, raw: Manifest, change: Manifest) -> bool:
        written = await self._executor.patch_status(raw["metadata"], change)
        if written is None:
            await self._writer.read_again(key, raw)
            return False
        self.jobs.upsert(written)
        return True

    def _exists(self, key: JobKey) -> bool:
        return self.jobs.get(key) is not None

    def _schedule(self, key: JobKey, state: JobState) -> None:
        if (deadline := state.deadline) is not None:
            self.queue.add_after(key, deadline - self._clock.monotonic())

    def _forget(self, key: JobKey) -> None:
        self.queue.remove(key)
        self._observer.forget(key)

    def _log_fields(self, key: JobKey, state: JobState) -> dict[str, Any]:
        attempt = state.decoded.status[1].attempt if state.decoded.status else 0
        return {"job": "/".join(key), "attempt": attempt}
