"""Reconciles jobs: observe (caches), decide (pure core), apply, write the status once.

Each job is reconciled by one worker at a time, and any number of requests before that are one reconcile. Nothing kept
here is needed for correctness: after a crash, the status and the pods suffice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from typing import Any, Protocol

from allranks.api.job import Job
from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.core.facts.model import Event, Manifest, Observed, Plan, PodRef
from allranks.core.reconcile import reconcile
from allranks.core.sync.plans import DELETION_REFUSED
from allranks.kube import job_codec
from allranks.kube.errors import ApiError, Fenced, Refused, Unavailable
from allranks.operator.apply import Executor
from allranks.operator.cache import JobCache, JobKey
from allranks.operator.event_recorder import Recorder
from allranks.operator.job_queue import JobQueue
from allranks.operator.job_state import JobState
from allranks.operator.namespace_cache import NamespaceNotUsable
from allranks.operator.observer import Observer
from allranks.operator.status_writer import FieldDropped, StatusWriter
from allranks.operator.timing import Clock, Timing
from allranks.operator.workqueue import ShutDown

_YIELD_EVERY = 50
"""Yield to the event loop after this many jobs at start-up, so that lease renewal and probes do not starve."""

logger = logging.getLogger("allranks.jobs")


class Meter(Protocol):
    """Metrics of the controller."""

    def reconciled(self, seconds: float) -> None: ...
    def wrote(self, job: Job, before: Status, after: Status) -> None: ...
    def field_dropped(self) -> None: ...


class Controller:
    """Runs a worker for each job in the queue."""

    def __init__(
        self,
        queue: JobQueue,
        jobs: JobCache,
        observer: Observer,
        executor: Executor,
        recorder: Recorder,
        meter: Meter,
        *,
        timing: Timing,
        clock: Clock,
        decide: Callable[[Observed], Plan] = reconcile,
    ) -> None:
        self.queue, self.jobs = queue, jobs
        self._observer, self._executor, self._recorder, self._meter = observer, executor, recorder, meter
        self._decide, self._timing, self._clock = decide, timing, clock
        self._writer = StatusWriter(executor, jobs, timing, clock)
        self._states: dict[JobKey, JobState] = {}
        self._dropped: set[str] = set()
        """Dropped fields that were logged."""
        self._workers: set[asyncio.Task[None]] = set()
        self.listed_in: set[str | None] = set()
        """Namespaces (None: all of them) whose jobs have been listed."""

    @property
    def idle(self) -> bool:
        return self.queue.idle and all(state.writes.due is None for state in self._states.values())

    def start(self, namespace: str | None = None) -> None:
        """The pods of the namespace are listed. Without them every job would seem to have lost its pods."""
        self.queue.open(namespace)
        self.enqueue_all()

    def enqueue_all(self) -> None:
        for key in self.jobs:
            self.queue.enqueue(key)

    def on_job_event(self, job: Manifest, deleted: bool) -> None:
        """Handles an event of the job watch."""
        if self.jobs.upsert(job, deleted):
            self.queue.enqueue((job["metadata"].get("namespace", ""), job["metadata"]["name"]))

    def on_job_list(self, present: Set[JobKey], version: int, namespace: str | None) -> None:
        """A complete list. The watch does not report jobs that were deleted before it."""
        self.listed_in.add(namespace)
        for job in self.jobs.missing_from_list(present, version, namespace):
            self.on_job_event(job, deleted=True)

    async def run(self) -> None:
        """Starts a worker for each key until the queue is shut down. The client bounds the requests of all workers."""
        started = 0
        while True:
            try:
                key = await self.queue.get()
            except ShutDown:
                return
            worker = asyncio.create_task(self._worker(key), name=f"job {'/'.join(key)}")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
            started += 1
            if started % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def close(self) -> None:
        self.queue.shut_down()
        for worker in self._workers:
            worker.cancel()

    async def _worker(self, key: JobKey) -> None:
        state = self._states.setdefault(key, JobState())
        state.begin(self._clock.monotonic(), changed=self.queue.begin(key))
        try:
            if not await self._reconcile_once(key, state):
                self._retry(key, state)
            elif state.create_blocked != "interrupted":  # a pod changed during the backoff: the retry is still due
                self.queue.forget(key)
                state.end()
        except Fenced:
            # Either the session ends, or the Lease was renewed too late: then no other replica takes care of this job.
            self._retry(key, state)
        except Unavailable as error:
            logger.warning("%s", error, extra=_log_fields(key, state))
            self._retry(key, state, self._timing.unavailable_retry_max)
        except FieldDropped as error:
            self._meter.field_dropped()
            level = logging.DEBUG if str(error) in self._dropped else logging.ERROR
            self._dropped.add(str(error))
            logger.log(level, "%s: apply crds/ of this version", error, extra=_log_fields(key, state))
            self._retry(key, state)
        except ApiError as error:
            logger.error("API request rejected: %s", error, extra=_log_fields(key, state))
            self._retry(key, state)
        except Exception:
            logger.exception("reconcile failed", extra=_log_fields(key, state))
            self._retry(key, state)
        finally:
            self.queue.done(key)
            if self.jobs.get(key) is None:
                self._forget(key)
            else:
                self._schedule(key, state)

    async def _reconcile_once(self, key: JobKey, state: JobState) -> bool:
        """False: the core raised, or a change of the job or of another object met a conflict or was rejected, so the
        job is tried again with a backoff."""
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
        observed: Observed | None = None
        began = time.perf_counter()
        try:
            rejected = (*state.rejections.by_object.values(), *state.rejections.changes.values())
            deletions = tuple(state.rejections.deletions.values())
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
            if plan.stack_dump_id:
                reports.stack_dump_id(key, plan.stack_dump_id)
        state.set_companions_due(observed, plan, self._clock, self._timing)
        if plan.write_ahead:
            state.create_blocked = ""
        elif await self._sync_objects(key, raw, state, observed, plan):
            self.queue.add(key)  # One status write then covers the new objects as well.
            return True
        if plan.next is not None and not self._writer.postpone(state.writes, observed, plan):
            await self._write_status(key, raw, state, observed, plan)
        if plan.delete_job and not plan.write_ahead and not await self._executor.delete_job(raw):
            return False
        if plan.suspend_job and not await self._suspend(key, raw, state, observed):
            return False
        return not (state.rejections.changes or state.rejections.conflicts)

    async def _suspend(self, key: JobKey, raw: Manifest, state: JobState, observed: Observed) -> bool:
        """Sets `spec.suspend`. The watch brings the changed job. False: a conflict or a rejection."""
        try:
            suspended = await self._executor.suspend_job(raw)
        except Refused as error:
            if state.suspend_rejected != str(error):
                state.suspend_rejected = str(error)
                event = Event("SuspendRefused", f"the job cannot be suspended: {error}", warning=True)
                self._emit_events(key, raw, observed.persisted, [event])
            return False
        state.suspend_rejected = ""
        return suspended

    def _timed(self, key: JobKey, observed: Observed, began: float) -> Plan:
        """`began`: before the job was decoded."""
        decides = time.perf_counter()
        plan = self._decide(observed)
        ended = time.perf_counter()
        self.queue.set_cost(key, ended - began)
        self._meter.reconciled(ended - decides)
        return plan

    async def _sync_objects(self, key: JobKey, raw: Manifest, state: JobState, observed: Observed, plan: Plan) -> bool:
        """Deletes and creates. Whether there were creates and all of them succeeded."""
        rejections = state.rejections
        may_create = await self._delete_pods(key, raw, state, observed, plan.delete)
        before_changes = rejections.changes
        if plan.remove or plan.patch or before_changes:
            await self._executor.change(plan.remove, plan.patch, rejections)
        if rejections.changes != before_changes:
            self.queue.add(key)  # the status says so
        if plan.restore:
            events = await self._executor.restore(raw, plan.restore)
            self._emit_events(key, raw, observed.persisted, events)
        if not plan.create:
            rejections.clear_creates()
            state.create_blocked = ""
            return False
        if state.create_blocked or not may_create:
            return False
        before = dict(rejections.by_object)
        state.create_blocked = "interrupted"  # An exception leaves it set until the retry.
        await self._executor.create(raw, plan.create, rejections, plan.superseded)
        state.created(self._clock, self._timing)
        if rejections.by_object != before:
            self.queue.add(key)
        return bool(plan.create) and not rejections.by_object

    async def _delete_pods(
        self, key: JobKey, raw: Manifest, state: JobState, observed: Observed, pods: Sequence[PodRef]
    ) -> bool:
        """Deletes pods; rejected deletions are retried with a backoff. False: there are new rejections, and the core
        decides first whether new pods wait for them."""
        rejections = state.rejections
        pods = rejections.due_deletions(pods, self._clock.monotonic())
        before = set(rejections.deletions)
        if pods:
            await self._executor.delete(raw["metadata"]["namespace"], pods, rejections)
        rejections.delay_deletions(pods, self._clock.monotonic(), self._timing.deletion_retry_max)
        new = rejections.deletions.keys() - before
        if new and not before:
            rejected = rejections.deletions[min(new)]
            message = f"the deletion of pod {rejected.name} was rejected: {rejected.message}"
            self._emit_events(key, raw, observed.persisted, [Event(DELETION_REFUSED, message, warning=True)])
        if rejections.deletions.keys() != before:
            self.queue.add(key)
        return not new

    async def _write_status(self, key: JobKey, raw: Manifest, state: JobState, observed: Observed, plan: Plan) -> None:
        assert plan.next is not None
        try:
            written = await self._writer.write(key, raw, state.writes, plan.next)
        except FieldDropped as error:
            if error.stored:
                self._emit_events(key, raw, plan.next, plan.events)
            raise
        except Refused as error:
            # An Event is the only way left to say so.
            if state.status_rejected != str(error):
                state.status_rejected = str(error)
                event = Event("StatusRefused", f"the status cannot be written: {error}", warning=True)
                self._emit_events(key, raw, observed.persisted, [event])
            raise
        state.status_rejected = ""
        if written:
            self._meter.wrote(observed.job, observed.persisted, plan.next)
            self._emit_events(key, raw, plan.next, plan.events)
        self.queue.add(key)

    def _emit_events(self, key: JobKey, raw: Manifest, status: Status, events: Iterable[Event]) -> None:
        for event in events:
            self._recorder.record(raw, event, self._clock.now(), status.attempt)
            level = logging.WARNING if event.warning else logging.INFO
            fields = {"job": "/".join(key), "attempt": status.attempt, "event": event.reason}
            logger.log(level, "%s", event.message, extra=fields)

    async def _report_raised(
        self, key: JobKey, raw: Manifest, state: JobState, observed: Observed | None, error: Exception
    ) -> None:
        """A rule or a codec raised. Marks the job, or names its pool."""
        what = f"{type(error).__name__}: {error}"
        reason = "InvalidSpec"
        message = f"the operator cannot evaluate this job ({what}): correct its spec, or report a bug of the operator"
        if observed and self._pool_raised(observed):
            reason = "InvalidPool"
            message = f'TrainingPool "{observed.pool_name}" cannot be used until it is corrected ({what})'
        await self._report_invalid(key, raw, state, reason, message, error)

    def _pool_raised(self, observed: Observed) -> bool:
        """Whether the same decision with an empty pool succeeds."""
        if observed.platform.pool is None:
            return False
        try:
            self._decide(replace(observed, platform=replace(observed.platform, pool=PoolSpec())))
        except Exception:  # the job is invalid by itself
            return False
        return True

    async def _report_invalid(
        self, key: JobKey, raw: Manifest, state: JobState, reason: str, message: str, error: Exception | None = None
    ) -> None:
        """Marks a job that cannot be decoded or evaluated. Other jobs are not affected."""
        message = job_codec.shortened(message)
        change = job_codec.invalid_spec_patch(raw, message, self._clock.now(), reason)
        if change is None and (reason, message) in job_codec.marks(raw):
            return
        if state.invalid != message:
            # The Event comes first: the API server may reject every status of such an object.
            logger.error("the job is invalid: %s", message, exc_info=error, extra=_log_fields(key, state))
            self._recorder.record(raw, Event(reason, message, warning=True), self._clock.now(), 0)
        state.invalid = message
        if change is None:
            return
        written = await self._executor.patch_status(raw["metadata"], change)
        if written is not None:
            self.jobs.upsert(written)
        else:
            await self._writer.read_again(key, raw)
            self.queue.add(key)

    def _retry(self, key: JobKey, state: JobState, longest: float = float("inf")) -> None:
        state.retry_at = self._clock.monotonic() + self.queue.add_rate_limited(key, longest)

    def _schedule(self, key: JobKey, state: JobState) -> None:
        if (deadline := state.deadline) is not None:
            self.queue.add_after(key, deadline - self._clock.monotonic())

    def _forget(self, key: JobKey) -> None:
        self._states.pop(key, None)
        self.queue.remove(key)
        self._observer.forget(key)


def _log_fields(key: JobKey, state: JobState) -> dict[str, Any]:
    attempt = state.decoded.status[1].attempt if state.decoded.status else 0
    return {"job": "/".join(key), "attempt": attempt}
