"""Keeps the newest report of each rank of each job, within bounds, and wakes whoever decides. No I/O.

A sender is trusted to be the pod that it is, and not in anything that it says: its message changes only what is kept of
its own replica, and costs no more memory than the bounds below. Losing all this (the operator starts anew) costs one
`interval`: ranks say everything again with every message.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from allranks.core.model import RankReport, Reports
from allranks.telemetry import schema
from allranks.telemetry.rate_limit import Bucket, Job, Pacer

FIRST_INTERVAL = 5.0
LAST_INTERVAL = 30.0
"""Seconds between two messages of a rank, as it is told; short enough to see a hang, and to ask for stacks."""
MESSAGES_PER_SECOND = 1000.0
"""So many of all ranks together are wanted: with more than 5,000 ranks the interval grows with their number."""
MOST_PER_SECOND = 1500.0
"""So many are taken in the long run, of each rank its part of it, and at most one a second."""
BURST = 5
"""Messages that a pod may send in a row, for each of its ranks."""

JOBS = 20_000
RANKS_OF_JOB = 16_384
RANKS = 65_536
"""Of all jobs together, about 1 KB each. Where that is full, jobs that were silent for long make room; if there are
none, new ranks are told to come later, and those that are known go on."""
SILENT_SECONDS = 600.0
NAMES_OF_JOB = 64
"""Metrics of other names are not kept."""
VALUES_OF_JOB = 16_384
"""Metrics of all ranks of a job together; ranks beyond that are kept without metrics."""

_WINDOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ReportSource:
    """The pod that a token belongs to. All of it is known from elsewhere than its message."""

    job: Job
    """(namespace, name)"""
    job_uid: str
    pod: str
    pod_uid: str
    role: str
    index: int
    attempt: int
    restart: int
    node: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` is HTTP's. Beside 200 they tell what to do: 400 drop it, 409 stop for good, 429 and 503 come later."""

    status: int
    body: Mapping[str, Any]
    retry_after: float = 0.0


@dataclass(slots=True)
class _Replica:
    """The newest pod of one replica."""

    restart: int
    pod_uid: str
    bucket: Bucket
    ranks: dict[int, RankReport] = field(default_factory=dict)


@dataclass(slots=True)
class _Job:
    """Of one attempt: the newest that a pod was seen of, or that was asked for."""

    uid: str
    attempt: int
    replicas: dict[tuple[str, int], _Replica] = field(default_factory=dict)
    ranks: int = 0
    values: int = 0
    names: dict[str, str] = field(default_factory=dict)
    """One string of each name for all ranks."""
    stepped: bool = False
    stacks: str = ""
    heard_at: float = 0.0


class ReportStore:
    """`wake(job)` says that there is news of it: seldom (`pace`), but at once when an attempt does its first step."""

    def __init__(
        self,
        now: Callable[[], datetime],
        wake: Callable[[Job], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], Any] | None = None,
    ) -> None:
        self._now, self._monotonic = now, monotonic
        self._pacer = Pacer(wake, monotonic, later or _call_later)
        self._jobs: OrderedDict[Job, _Job] = OrderedDict()
        """The one that was silent longest comes first."""
        self._ranks = 0
        self.since = now()
        """Since when it listens."""
        self._window = (now(), 0, 0)
        """(since when, ranks heard of since then, ranks heard of in the minute before)"""

    @property
    def reporting(self) -> int:
        """Ranks that were heard of in the last minute or two."""
        since, count, last = self._window
        passed = (self._now() - since).total_seconds()
        if 0 <= passed < _WINDOW_SECONDS:
            return max(count, last)
        return count if 0 <= passed < 2 * _WINDOW_SECONDS else 0

    @property
    def interval(self) -> float:
        """Seconds that a rank waits before its next message."""
        return _interval(self.reporting)

    def take(self, sender: ReportSource, body: bytes) -> Answer:
        """A message; what to answer."""
        moment, reporting = self._monotonic(), self.reporting
        interval = _interval(reporting)
        job = self._job(sender, moment)
        if job is None:
            return Answer(503, {"error": "too many jobs report"}, interval)
        if sender.attempt < job.attempt:
            return _OVER
        if sender.attempt > job.attempt:
            self._begin(job, sender.attempt)
        replica = self._replica(job, sender, moment)
        if replica is None:
            return _OVER
        ranks = max(1, len(replica.ranks))
        rate = ranks * min(1.0, MOST_PER_SECOND / max(1, reporting))
        if not replica.bucket.take(moment, BURST * ranks, rate):
            return Answer(429, {"error": "too many messages", "interval": interval}, interval)
        try:
            message = schema.message(body)
        except schema.BadMessage as bad:
            return Answer(400, {"error": str(bad)})
        if not self._has_room(job, replica, message.local_rank, moment):
            return Answer(503, {"error": "too many ranks report"}, interval)
        self._keep(job, replica, sender, message)
        if message.step is not None and not job.stepped:
            job.stepped = True
            self._pacer.at_once(sender.job)
        else:
            self._pacer.soon(sender.job)
        return Answer(200, {"interval": interval, "stacks": job.stacks})

    def of(self, job: Job, uid: str, attempt: int) -> Reports:
        """What its ranks say, of this attempt. Senders of older ones are told from now on that they are over."""
        known = self._jobs.get(job)
        if known is None or known.uid != uid:
            return Reports(self.since)
        if attempt > known.attempt:
            self._begin(known, attempt)
        if attempt != known.attempt:
            return Reports(self.since)
        return Reports(
            self.since, tuple(rank for replica in known.replicas.values() for rank in replica.ranks.values())
        )

    def stack_dump_id(self, job: Job, question: str) -> None:
        """Every rank of its present attempt prints its threads' stacks once for each new question."""
        if known := self._jobs.get(job):
            known.stacks = question

    def forget(self, job: Job) -> None:
        """It is gone, or over."""
        if known := self._jobs.pop(job, None):
            self._ranks -= known.ranks
        self._pacer.forget(job)

    def _job(self, sender: ReportSource, moment: float) -> _Job | None:
        job = self._jobs.get(sender.job)
        if job is None or job.uid != sender.job_uid:
            # Another job of the same name was there before: whoever says who a sender is knows those that are.
            self.forget(sender.job)
            if len(self._jobs) >= JOBS and not self._make_room(moment):
                return None
            job = self._jobs[sender.job] = _Job(sender.job_uid, sender.attempt)
        job.heard_at = moment
        self._jobs.move_to_end(sender.job)
        return job

    def _make_room(self, moment: float) -> bool:
        name, job = next(iter(self._jobs.items()))
        if moment - job.heard_at < SILENT_SECONDS:
            return False
        self.forget(name)
        return True

    def _begin(self, job: _Job, attempt: int) -> None:
        self._ranks -= job.ranks
        job.attempt = attempt
        job.replicas, job.names = {}, {}
        job.ranks = job.values = 0
        job.stepped, job.stacks = False, ""

    def _replica(self, job: _Job, sender: ReportSource, moment: float) -> _Replica | None:
        """None: this replica was restarted since."""
        key = (sender.role, sender.index)
        known = job.replicas.get(key)
        if known is not None:
            if sender.pod_uid == known.pod_uid:
                return known
            if sender.restart < known.restart:
                return None
            job.ranks -= len(known.ranks)
            self._ranks -= len(known.ranks)
            job.values -= sum(len(rank.metrics) for rank in known.ranks.values())
        replica = job.replicas[key] = _Replica(sender.restart, sender.pod_uid, Bucket(BURST, moment))
        return replica

    def _has_room(self, job: _Job, replica: _Replica, local_rank: int, moment: float) -> bool:
        if local_rank in replica.ranks:
            return True
        return job.ranks < RANKS_OF_JOB and (self._ranks < RANKS or self._make_room(moment))

    def _keep(self, job: _Job, replica: _Replica, sender: ReportSource, message: schema.Message) -> None:
        before, now = replica.ranks.get(message.local_rank), self._now()
        if before is None:
            job.ranks += 1
            self._ranks += 1
            if replica.ranks:  # the first one's are there already
                replica.bucket.add(BURST)
        self._heard(before, now)
        replica.ranks[message.local_rank] = _report(sender, message, before, now, self._metrics(job, before, message))

    def _metrics(self, job: _Job, before: RankReport | None, message: schema.Message) -> dict[str, float]:
        kept: dict[str, float] = {}
        for name, value in message.metrics.items():
            known = job.names.get(name)
            if known is None:
                if len(job.names) >= NAMES_OF_JOB:
                    continue
                job.names[name] = known = name
            kept[known] = value
        others = job.values - (len(before.metrics) if before else 0)
        if others + len(kept) > VALUES_OF_JOB:
            kept = {}
        job.values = others + len(kept)
        return kept

    def _heard(self, before: RankReport | None, now: datetime) -> None:
        """Counts ranks, each once in a window."""
        since, count, last = self._window
        passed = (now - since).total_seconds()
        if not 0 <= passed < _WINDOW_SECONDS:
            since, count, last = now, 0, count if passed < 2 * _WINDOW_SECONDS else 0
        if before is None or before.received_at < since:
            count += 1
        self._window = (since, count, last)


def _interval(reporting: int) -> float:
    return round(min(LAST_INTERVAL, max(FIRST_INTERVAL, reporting / MESSAGES_PER_SECOND)), 1)


_OVER = Answer(409, {"error": "this attempt is over"})


def _call_later(seconds: float, call: Callable[[], None]) -> Any:
    return asyncio.get_running_loop().call_later(seconds, call)


def _report(
    sender: ReportSource, said: schema.Message, before: RankReport | None, now: datetime, metrics: dict[str, float]
) -> RankReport:
    """Durations become moments. A moment that is known stays as it was first said: messages travel for a while, and
    every one would move it a little."""
    stepped_at = checkpoint_at = first_step_at = None
    samples, seconds, busy = said.samples_per_second, said.step_seconds, said.busy_seconds
    if said.step is not None:
        stepped_at = now - timedelta(seconds=said.idle or 0.0)
        first_step_at = stepped_at
        if before is not None and before.step is not None:
            first_step_at = before.first_step_at
            if before.step == said.step:
                # Steps are slow, and this message tells of none: what was measured last still holds.
                stepped_at = before.stepped_at
                samples = before.samples_per_second if samples is None else samples
                seconds = before.step_seconds if seconds is None else seconds
                busy = before.busy_seconds if busy is None else busy
    checkpoint = said.checkpoint.step if said.checkpoint else None
    if said.checkpoint is not None:
        checkpoint_at = now - timedelta(seconds=said.checkpoint.ago)
        if checkpoint is not None and before is not None and before.checkpoint_step == checkpoint:
            checkpoint_at = before.checkpoint_at
    return RankReport(
        role=sender.role,
        index=sender.index,
        local_rank=said.local_rank,
        rank=said.rank,
        pod=sender.pod,
        node=sender.node,
        step=said.step,
        total_steps=said.total_steps,
        epoch=said.epoch,
        metrics=metrics,
        samples_per_second=samples,
        step_seconds=seconds,
        busy_seconds=busy,
        checkpoint_step=checkpoint,
        checkpoint_at=checkpoint_at,
        stepped_at=stepped_at,
        first_step_at=first_step_at,
        received_at=now,
        done=said.done,
        waiting=said.waiting,
    )
