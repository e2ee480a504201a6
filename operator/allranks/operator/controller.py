"""From a wake-up to what is done: observe (cache), reconcile (pure), execute, write the status once. One job at a time
is looked at by one task; any number of wake-ups before that are one look.

Nothing here is remembered that matters: after a crash, what status and the pods say is enough.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from allranks.api.job import Job
from allranks.api.status import FINISHED, Status
from allranks.core.model import Event, Manifest, Observed, Plan, Platform, Reports
from allranks.core.reconcile import reconcile
from allranks.kube import job_codec
from allranks.kube.errors import ApiError, Fenced, Unavailable
from allranks.kube.merge_patch import diff
from allranks.operator.apply import Executor, Refusals, kept_out
from allranks.operator.cache import JobCache, JobKey, PodCache
from allranks.operator.event_recorder import Recorder
from allranks.operator.status_writer import kind_of_time, may_wait, told

URGENT_SECONDS = 0.2
COUNTS_SECONDS = 2.0
PROGRESS_SECONDS = 5.0
"""So far apart are two writes of a job's status that only tell what is seen; of mere counts, and of progress, even
less often."""
GATHER_SECONDS = 0.5
"""Counts wait so long for more of them: pods start and end in bursts."""
BURST_SECONDS = 0.02
"""A pod's change that is no trouble waits so long for more of its job's, which are then one look."""
LOOKS_SHARE = 0.05
"""A large job's changes wait longer, so that looks at it take no more than this of the time..."""
LONGEST_BURST_SECONDS = 0.25
"""...but no longer than this."""
LAST_RETRY_SECONDS = 300.0
AWAY_RETRY_SECONDS = 30.0
"""However long the API server was away, so soon after its return what was left undone is done."""
_BREATH = 50
"""After so many first looks the Lease is renewed and probes are answered: ten thousand of them take seconds."""

logger = logging.getLogger("allranks.jobs")


class Meter(Protocol):
    """What is counted."""

    def reconciled(self, seconds: float) -> None: ...
    def wrote(self, job: Job, before: Status, after: Status) -> None: ...


class Listener(Protocol):
    """Who keeps what the ranks report."""

    def of(self, job: JobKey, uid: str, attempt: int) -> Reports: ...
    def stack_dump_id(self, job: JobKey, question: str) -> None: ...
    def forget(self, job: JobKey) -> None: ...


@dataclass
class _Memory:
    """What is kept of a job between two looks; losing it costs a little work."""

    refusals: Refusals = field(default_factory=Refusals)
    refused: bool = False
    """Since the last wake-up: it is told, and not asked for again because that was told."""
    wrote_at: float = float("-inf")
    errors: int = 0
    complained: str = ""
    """What was told of a job that cannot be read."""
    timer: asyncio.TimerHandle | None = None
    retry: asyncio.TimerHandle | None = None
    postponed: asyncio.TimerHandle | None = None
    gathering: asyncio.TimerHandle | None = None
    took: float = 0.0
    """The last decision, in seconds."""
    counts_since: float | None = None
    """Since when counts of pods have been waiting to be written."""
    job: tuple[Any, Job] | None = None
    status: tuple[str, Status] | None = None

    def forget(self) -> None:
        for handle in (self.timer, self.retry, self.postponed, self.gathering):
            if handle:
                handle.cancel()


class Controller:
    """`platform` gives the facts about where a job runs."""

    def __init__(
        self,
        executor: Executor,
        recorder: Recorder,
        pods: PodCache,
        platform: Callable[[Job], Platform],
        meter: Meter,
        now: Callable[[], datetime],
        reports: Listener | None = None,
    ) -> None:
        self.jobs = JobCache(pods.late)
        self._executor, self._recorder, self._pods = executor, recorder, pods
        self._platform, self._meter, self._now, self._reports = platform, meter, now, reports
        self._memory: dict[JobKey, _Memory] = {}
        self._busy: dict[JobKey, asyncio.Task[None]] = {}
        self._again: set[JobKey] = set()
        self._started: set[str | None] = set()
        self.listed_in: set[str | None] = set()
        """Namespaces (None: all of them) whose jobs have been listed."""

    @property
    def depth(self) -> int:
        """Jobs that are looked at, or will be."""
        return len(self._busy)

    @property
    def idle(self) -> bool:
        waiting = (memory.postponed or memory.gathering or memory.errors for memory in self._memory.values())
        return not self._busy and not any(waiting)

    async def start(self, namespace: str | None = None) -> None:
        """Pods are known now (of that namespace): without them every job would seem to have lost its own."""
        self._started.add(namespace)
        for number, key in enumerate(self.jobs):
            self.wake(key)
            if number % _BREATH == 0:
                await asyncio.sleep(0)

    def wake_all(self) -> None:
        for key in self.jobs:
            self.wake(key)

    def wake(self, key: JobKey, trouble: bool = True) -> None:
        """Something happened, or its time has come: what was refused may be granted now."""
        memory = self._memory.get(key)
        if memory:
            memory.refused = False
        if trouble or memory is None:
            self._look_at(key)
        elif memory.gathering is None:
            wait = max(BURST_SECONDS, min(LONGEST_BURST_SECONDS, memory.took / LOOKS_SHARE))
            self._later(key, memory, "gathering", wait)

    def reported(self, key: JobKey) -> None:
        """Its ranks have news; what was refused is still refused."""
        self._look_at(key)

    def _look_at(self, key: JobKey) -> None:
        if None not in self._started and key[0] not in self._started:
            return
        if key in self._busy:
            self._again.add(key)
        elif self.jobs.get(key) is not None or key in self._memory:
            self._busy[key] = asyncio.get_running_loop().create_task(self._work(key), name=f"job {'/'.join(key)}")

    def seen(self, job: Manifest, deleted: bool) -> None:
        """From the job watch."""
        if self.jobs.show(job, deleted):
            self.wake((job["metadata"].get("namespace", ""), job["metadata"]["name"]))

    def listed(self, present: Set[JobKey], version: int, namespace: str | None) -> None:
        """All jobs there are (in that namespace): of those deleted before that, the watch does not tell."""
        self.listed_in.add(namespace)
        for job in self.jobs.gone(present, version, namespace):
            self.seen(job, deleted=True)

    async def _work(self, key: JobKey) -> None:
        memory = self._memory.setdefault(key, _Memory())
        try:
            while True:
                self._again.discard(key)
                if memory.gathering:
                    memory.gathering.cancel()
                    memory.gathering = None
                try:
                    await self._look(key, memory)
                    memory.errors = 0
                except Fenced:
                    # The session ends; or the Lease was renewed too late, and then nobody else would look at this job.
                    self._retry_later(key, memory)
                except Unavailable as error:
                    logger.warning("%s", error, extra=_about(key, memory))
                    self._retry_later(key, memory, AWAY_RETRY_SECONDS)
                except ApiError as error:
                    logger.error("the API server refuses: %s", error, extra=_about(key, memory))
                    self._retry_later(key, memory)
                except Exception:
                    logger.exception("this job could not be looked at", extra=_about(key, memory))
                    self._retry_later(key, memory)
                if key not in self._again:
                    return
        finally:
            del self._busy[key]
            if self.jobs.get(key) is None:
                self._memory.pop(key, _Memory()).forget()
                if self._reports:
                    self._reports.forget(key)

    async def _look(self, key: JobKey, memory: _Memory) -> None:
        raw = self.jobs.get(key)
        if raw is None:
            return
        try:
            observed = self._observe(key, raw, memory)
        except job_codec.DecodeError as error:
            await self._mark(key, raw, memory, str(error))
            return
        began = time.perf_counter()
        plan = reconcile(observed)
        memory.took = time.perf_counter() - began
        self._meter.reconciled(memory.took)
        self._wake_at(key, memory, plan.wake_at)
        if self._reports and plan.stack_dump_id:
            self._reports.stack_dump_id(key, plan.stack_dump_id)
        if plan.write_ahead:
            memory.refused = False
            if not (may_wait(observed, plan) and self._postpone(key, memory, observed, plan)):
                await self._write(key, raw, memory, observed, plan)
            return
        if await self._objects(key, raw, memory, plan):
            self._again.add(key)  # and then one status tells of them as well
            return
        if plan.status is not None and not self._postpone(key, memory, observed, plan):
            await self._write(key, raw, memory, observed, plan)
        if plan.delete_job:
            await self._executor.delete_job(raw)

    def _observe(self, key: JobKey, raw: Manifest, memory: _Memory) -> Observed:
        """Raises DecodeError."""
        metadata = raw["metadata"]
        same = (*(metadata.get(name) for name in ("uid", "generation", "deletionTimestamp", "labels", "annotations")),)
        if memory.job is None or memory.job[0] != same:
            memory.job = (same, job_codec.job(raw))
        if memory.status is None or memory.status[0] != metadata["resourceVersion"]:
            memory.status = (metadata["resourceVersion"], job_codec.status(raw))
        job, status = memory.job[1], memory.status[1]
        return Observed(
            job=job,
            status=status,
            pods=self._pods.of(key, metadata["uid"]),
            now=self._now(),
            platform=self._platform(job),
            refused=tuple(memory.refusals.by_object.values()),
            reports=self._heard(key, metadata["uid"], status),
        )

    def _heard(self, key: JobKey, uid: str, status: Status) -> Reports | None:
        if self._reports is None:
            return None
        if status.phase in FINISHED:
            self._reports.forget(key)
            return None
        return self._reports.of(key, uid, status.attempt)

    async def _objects(self, key: JobKey, raw: Manifest, memory: _Memory, plan: Plan) -> bool:
        """Whether it made new ones, all that it was to make."""
        refusals = memory.refusals
        if not plan.create and not plan.delete:
            refusals.by_object.clear()
            refusals.tries = 0
            return False
        if memory.refused:
            await self._executor.objects(raw, replace(plan, create=()), Refusals())
            return False
        before = dict(refusals.by_object)
        memory.refused = True  # unless something happens meanwhile
        await self._executor.objects(raw, plan, refusals)
        if not refusals.by_object:
            refusals.tries = 0
        else:
            refusals.tries += 1
            wait = min(LAST_RETRY_SECONDS, 2.0 ** (refusals.tries - 1))
            self._later(key, memory, "retry", wait)
        memory.refused = memory.refused and bool(refusals.by_object)
        if refusals.by_object != before:
            self._again.add(key)
        return bool(plan.create) and not refusals.by_object

    def _postpone(self, key: JobKey, memory: _Memory, observed: Observed, plan: Plan) -> bool:
        """Whether this status can wait for more of its kind."""
        assert plan.status is not None
        if memory.postponed:
            memory.postponed.cancel()
            memory.postponed = None
        now = time.monotonic()
        due_at = memory.wrote_at + URGENT_SECONDS
        if not plan.write_ahead and kind_of_time(observed.status) == kind_of_time(plan.status):
            due_at = memory.wrote_at + PROGRESS_SECONDS
        elif plan.write_ahead or told(observed.status) == told(plan.status):
            memory.counts_since = memory.counts_since or now
            due_at = max(memory.wrote_at + COUNTS_SECONDS, memory.counts_since + GATHER_SECONDS)
        wait = due_at - now
        if wait <= 0:
            return False

        def due() -> None:
            memory.postponed = None
            self._look_at(key)

        memory.postponed = asyncio.get_running_loop().call_later(wait, due)
        return True

    async def _write(self, key: JobKey, raw: Manifest, memory: _Memory, observed: Observed, plan: Plan) -> None:
        assert plan.status is not None
        wanted = job_codec.encode(plan.status)
        written = await self._executor.status(raw, wanted)
        if written is None:
            written = await self._read_again(key, raw)
            if written is None or diff(written.get("status") or {}, wanted):
                self._again.add(key)
                return
            # Our own write had come through, only its answer was lost.
        elif pruned := kept_out(diff(written.get("status") or {}, wanted)):
            older = "the CustomResourceDefinitions are older than the operator"
            raise ApiError(f"it does not keep status.{pruned}: {older}")
        memory.wrote_at, memory.counts_since = time.monotonic(), None
        self.jobs.show(written)
        self._again.add(key)
        self._meter.wrote(observed.job, observed.status, plan.status)
        self._tell(key, raw, plan.status, plan.events)

    async def _read_again(self, key: JobKey, raw: Manifest) -> Manifest | None:
        """After a conflict: the job as it is now, None when this one is no more."""
        found = await self._executor.read(*key)
        if found is None:
            self.jobs.forget(key)
            return None
        self.jobs.show(found)
        return found if found["metadata"]["uid"] == raw["metadata"]["uid"] else None

    def _tell(self, key: JobKey, raw: Manifest, status: Status, events: Iterable[Event]) -> None:
        for event in events:
            self._recorder.tell(raw, event, self._now(), status.attempt)
            level = logging.WARNING if event.warning else logging.INFO
            about = {"job": "/".join(key), "attempt": status.attempt, "event": event.reason}
            logger.log(level, "%s", event.message, extra=about)

    async def _mark(self, key: JobKey, raw: Manifest, memory: _Memory, why: str) -> None:
        """This job alone cannot be read: it says so itself."""
        change = job_codec.invalid_spec_patch(raw, why, self._now())
        if change is None:
            return
        if memory.complained != why:
            # First the Event: of some such objects the API server refuses every status.
            memory.complained = why
            logger.error("cannot be read: %s", why, extra=_about(key, memory))
            self._recorder.tell(raw, Event("InvalidSpec", why, warning=True), self._now(), 0)
        written = await self._executor.patch_status(raw["metadata"], change)
        if written is None:
            await self._read_again(key, raw)
            self._again.add(key)
            return
        self.jobs.show(written)

    def _wake_at(self, key: JobKey, memory: _Memory, moment: datetime | None) -> None:
        if memory.timer:
            memory.timer.cancel()
            memory.timer = None
        if moment:
            self._later(key, memory, "timer", max(0.0, (moment - self._now()).total_seconds()))

    def _retry_later(self, key: JobKey, memory: _Memory, last: float = LAST_RETRY_SECONDS) -> None:
        memory.errors += 1
        wait = min(last if memory.errors > 8 else AWAY_RETRY_SECONDS, 0.5 * 2.0 ** min(memory.errors, 10))
        self._later(key, memory, "retry", random.uniform(0.5, 1.0) * wait)

    def _later(self, key: JobKey, memory: _Memory, name: str, seconds: float) -> None:
        handle: asyncio.TimerHandle | None = getattr(memory, name)
        if handle:
            handle.cancel()
        setattr(memory, name, asyncio.get_running_loop().call_later(seconds, self.wake, key))

    def close(self) -> None:
        self._started.clear()
        for memory in self._memory.values():
            memory.forget()
        for task in self._busy.values():
            task.cancel()


def _about(key: JobKey, memory: _Memory) -> dict[str, Any]:
    attempt = memory.status[1].attempt if memory.status else 0
    return {"job": "/".join(key), "attempt": attempt}
