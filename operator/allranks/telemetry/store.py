"""Keeps the newest report of each rank of each job within limits, and requests reconciles. No I/O.

The identity of a sender is authenticated, its message is untrusted: it changes only the data of its own replica and
takes no more memory than the limits allow. A restart of the operator loses the reports for one `interval`, because
every message is complete.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from allranks.api.status import MetricRecord, StoredCheckpoint
from allranks.control_sequences import clean_text
from allranks.core.diagnosis.report_loss import SILENCE
from allranks.core.facts.rank_reports import (
    WINDOWS,
    CheckpointDue,
    Collectives,
    MetricValues,
    Position,
    RankReport,
    Reports,
)
from allranks.shares import Share
from allranks.telemetry import messages, trainer_status
from allranks.telemetry.messages import Answer, ReportSource
from allranks.telemetry.rate_limit import CHECKPOINT_INTERVAL, JOB_INTERVAL, Bucket, Job, Notifier


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Seconds, rates and numbers."""

    interval_min: float = 5.0
    interval_max: float = 30.0
    """Seconds between two messages of a rank, which the response contains: short enough to detect a hang and to request
    stack dumps."""
    job_interval: float = JOB_INTERVAL
    """Minimum seconds between two reconciles of a job because of reports."""
    target_rate: float = 1000.0
    """Desired messages per second of all ranks together: beyond 5,000 ranks the interval grows with their number."""
    max_rate: float = 1500.0
    """Accepted messages per second in the long run. Each rank has its share, at most one per second."""
    burst: int = 5
    """Messages that a pod may send in a row, per rank."""
    jobs: int = 20_000
    """Namespaces share them."""
    ranks_per_job: int = 16_384
    ranks: int = 65_536
    """Of all jobs together, about 1 KB each. Namespaces share them. When the store is full, silent jobs are dropped. If
    there are none, new ranks get 503, and present ranks are not affected."""
    silent_seconds: float = 600.0
    metric_names_per_job: int = 64
    """Metrics with further names are dropped."""
    metric_values_per_job: int = 16_384
    """Of all ranks together. Further ranks are kept without metrics."""


_WINDOW_SECONDS = 60.0


@dataclass(slots=True)
class _Replica:
    """The newest pod of a replica."""

    restart: int
    pod_uid: str
    bucket: Bucket
    ranks: dict[int, RankReport] = field(default_factory=dict)
    """By local rank, and the status of a trainer as `trainer_status.KEY`."""


@dataclass(slots=True)
class _Job:
    """Reports of one attempt: the newest that a pod or the controller has named."""

    name: Job
    uid: str
    attempt: int
    replicas: dict[tuple[str, int], _Replica] = field(default_factory=dict)
    ranks: int = 0
    values: int = 0
    names: dict[str, str] = field(default_factory=dict)
    """Interned metric names, shared by all ranks."""
    stepped: bool = False
    stacks: str = ""
    checkpoint: int = 0
    """Number of the requested checkpoint: the time of the request in milliseconds."""
    due: CheckpointDue | None = None
    heard_at: float = 0.0
    message_at: datetime | None = None
    """The same on the clock of reports."""
    since: datetime | None = None
    """End of the last silence."""
    collectives: Collectives | None = None
    checkpoints: tuple[StoredCheckpoint, ...] | None = None
    damage_elsewhere: frozenset[str] = frozenset()
    recorder: tuple[Any, ...] = ()
    """Sorts the rank whose metrics are recorded before all others that report metrics; empty if there is none."""
    metrics: dict[str, MetricRecord] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return self.name[0]


class ReportStore:
    """Calls `reconcile(job)` when there are new reports: rate-limited, but immediately at the first step of an
    attempt."""

    def __init__(
        self,
        now: Callable[[], datetime],
        reconcile: Callable[[Job], None],
        *,
        limits: StoreLimits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], Any] | None = None,
        recorded: Callable[[int, list[MetricValues]], None] | None = None,
    ) -> None:
        """`recorded` is called with an attempt and the values of its metrics since the last call."""
        self._recorded = recorded
        self._now, self._monotonic = now, monotonic
        self._limits = limits or StoreLimits()
        self._notifier = Notifier(reconcile, monotonic, later or _call_later, self._limits.job_interval)
        self._jobs: OrderedDict[Job, _Job] = OrderedDict()
        """Ordered by the time of the last message."""
        self._processes: dict[Job, tuple[str, Mapping[str, int]]] = {}
        """Job -> (UID, role -> the most ranks of a pod)"""
        self._share, self._job_share = Share(self._limits.ranks), Share(self._limits.jobs)
        self.since = now()
        """When this store started to listen."""
        self._window = (now(), 0, 0)
        """(start, ranks that reported since then, ranks that reported in the minute before)"""
        self._heard: OrderedDict[str, datetime] = OrderedDict()
        """Namespace -> time of its last message, in the order of these times."""

    @property
    def reporting(self) -> int:
        """Return the number of ranks that reported in the last one or two minutes."""
        since, count, last = self._window
        passed = (self._now() - since).total_seconds()
        if 0 <= passed < _WINDOW_SECONDS:
            return max(count, last)
        return count if 0 <= passed < 2 * _WINDOW_SECONDS else 0

    @property
    def large(self) -> dict[str, dict[str, float]]:
        """Return `Share.large` of the ranks and of the jobs that report."""
        return {"report_ranks": self._share.large, "report_jobs": self._job_share.large}

    @property
    def interval(self) -> float:
        """Return the seconds that a rank waits before its next message."""
        return self._interval_for(self.reporting)

    def _interval_for(self, reporting: int) -> float:
        limits = self._limits
        return round(min(limits.interval_max, max(limits.interval_min, reporting / limits.target_rate)), 1)

    def ingest(self, sender: ReportSource, body: bytes) -> Answer:
        """Store a message and return the response."""
        limits, moment, reporting = self._limits, self._monotonic(), self.reporting
        interval = self._interval_for(reporting)
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
        rate = ranks * min(1.0, limits.max_rate / max(1, reporting))
        if not replica.bucket.take(moment, limits.burst * ranks, rate):
            return Answer(429, {"error": "too many messages", "interval": interval}, interval)
        try:
            message = messages.message(body)
        except messages.BadMessage as bad:
            return Answer(400, {"error": str(bad)})
        if message.attempt is not None and message.attempt != sender.attempt:
            late = message.attempt < sender.attempt  # its process is dead: another attempt runs in its pod
            return _OVER if late else Answer(400, {"error": "this attempt has not begun"})
        if message.nccl is not None:
            self._hear(job.namespace)
            job.collectives = _collectives(message.nccl, job.collectives, self._now())
            self._notifier.notify(sender.job)
            return Answer(200, {"interval": interval, "stacks": "", "checkpoint": 0})
        if message.checkpoints is not None:
            self._hear(job.namespace)
            job.checkpoints = _checkpoints(message.checkpoints, job.checkpoints or (), self._now())
            if message.damage_elsewhere:
                job.damage_elsewhere |= {sender.pod}
            self._notifier.notify(sender.job)
            return Answer(200, {"interval": interval, "stacks": "", "checkpoint": 0})
        key = message.local_rank if message.trainer_status is None else trainer_status.KEY
        if not self._is_declared(job, replica, sender.role, key):
            error = f"the job declares {self._most(job, sender.role)} processes for this pod, and this is a further one"
            return Answer(400, {"error": error})
        if not self._has_room(job, replica, key, moment):
            return Answer(503, {"error": "too many ranks report"}, interval)
        before = replica.ranks.get(key)
        kept = self._keep(job, replica, sender, key, message)
        if kept.step is not None and not job.stepped:
            job.stepped = True
            self._notifier.notify_now(sender.job)
        elif _has_handled(kept, job.checkpoint) and not (before and _has_handled(before, job.checkpoint)):
            self._notifier.notify(sender.job, CHECKPOINT_INTERVAL)
        else:
            self._notifier.notify(sender.job)
        answer = {"interval": interval, "stacks": job.stacks, "checkpoint": job.checkpoint}
        if (message.metrics or message.not_finite) and self._record(job, sender, message) == bool(message.rank):
            answer["record"] = bool(message.rank)  # without this word, rank 0 sends the record
        if job.due:
            answer["due"] = {"step": job.due.step, "agreed": job.due.agreed}
        return Answer(200, answer)

    def snapshot(self, job: Job, uid: str, attempt: int) -> Reports:
        """Return the reports of this attempt. From now on, senders of older attempts get 409."""
        kept, heard = self._jobs.get(job), self._heard.get(job[0])
        if kept is None or kept.uid != uid:
            return Reports(self.since, any_job_at=heard)
        if attempt > kept.attempt:
            self._begin(kept, attempt)
        since = kept.since or self.since
        if attempt != kept.attempt:
            return Reports(since, any_job_at=heard)
        ranks = tuple(rank for replica in kept.replicas.values() for rank in trainer_status.effective(replica.ranks))
        elsewhere = kept.damage_elsewhere
        return Reports(
            since, ranks, heard, kept.collectives, kept.checkpoints, elsewhere, self.interval, dict(kept.metrics)
        )

    def bound(self, job: Job, uid: str, processes: Mapping[str, int] | None) -> None:
        """Set role -> the number of ranks that each of its pods may report. None changes nothing.

        Until it is set, LOCAL_RANKS is the bound. Ranks beyond it are dropped.
        """
        if processes is None or self._processes.get(job) == (uid, processes):
            return
        self._processes[job] = uid, processes
        kept = self._jobs.get(job)
        if kept is None:
            return
        for (role, _), replica in kept.replicas.items():
            beyond = sorted(key for key in replica.ranks if key != trainer_status.KEY)[self._most(kept, role) :]
            for key in beyond:
                kept.values -= len(replica.ranks.pop(key).metrics)
            kept.ranks -= len(beyond)
            self._share.give(kept.namespace, len(beyond))

    def _most(self, job: _Job, role: str) -> int:
        uid, processes = self._processes.get(job.name, ("", {}))
        return min(messages.LOCAL_RANKS, processes.get(role, 1)) if uid == job.uid else messages.LOCAL_RANKS

    def stack_dump_id(self, job: Job, question: str) -> None:
        """Ask each rank of the current attempt to dump the stacks of its threads, once per new `question`."""
        if kept := self._jobs.get(job):
            kept.stacks = question

    def request_checkpoint(self, job: Job, number: int) -> None:
        """Ask the ranks of the current attempt for a checkpoint; 0 withdraws the request."""
        if kept := self._jobs.get(job):
            kept.checkpoint = number

    def schedule_checkpoint(self, job: Job, due: CheckpointDue | None) -> None:
        """Tell the ranks of the current attempt after which step they store a checkpoint."""
        if kept := self._jobs.get(job):
            kept.due = due

    def forget(self, job: Job) -> None:
        """Forget a job that is deleted or finished."""
        self._processes.pop(job, None)
        self._drop(job)

    def _drop(self, job: Job) -> None:
        """Forget the reports of a job."""
        if kept := self._jobs.pop(job, None):
            self._share.give(kept.namespace, kept.ranks)
            self._job_share.give(kept.namespace)
        self._notifier.forget(job)

    def _job(self, sender: ReportSource, moment: float) -> _Job | None:
        job = self._jobs.get(sender.job)
        if job is None or job.uid != sender.job_uid:
            # A former job had the same name. Authentication only accepts pods of existing jobs.
            self._drop(sender.job)
            fits, namespace = self._job_share.fits, sender.job[0]
            if not fits(namespace) and not (self._make_room(moment) and fits(namespace)):
                return None
            self._job_share.take(namespace)
            job = self._jobs[sender.job] = _Job(sender.job, sender.job_uid, sender.attempt)
        now = self._now()
        if job.message_at is not None and now - job.message_at > SILENCE:
            job.since, job.stacks = now, ""
        job.heard_at, job.message_at = moment, now
        self._jobs.move_to_end(sender.job)
        return job

    def _make_room(self, moment: float) -> bool:
        name, job = next(iter(self._jobs.items()), (("", ""), None))
        if job is None or moment - job.heard_at < self._limits.silent_seconds:
            return False
        self._drop(name)
        return True

    def _begin(self, job: _Job, attempt: int) -> None:
        self._share.give(job.namespace, job.ranks)
        job.attempt = attempt
        job.replicas, job.names = {}, {}
        job.ranks = job.values = 0
        job.stepped, job.stacks, job.checkpoint = False, "", 0
        job.collectives = job.checkpoints = job.due = None
        job.damage_elsewhere = frozenset()
        job.recorder, job.metrics = (), {}

    def _replica(self, job: _Job, sender: ReportSource, moment: float) -> _Replica | None:
        """Return the replica of a sender; None if it has been restarted since."""
        key = (sender.role, sender.index)
        kept = job.replicas.get(key)
        if kept is not None:
            if sender.pod_uid == kept.pod_uid and sender.restart <= kept.restart:
                return kept
            if sender.restart < kept.restart:
                return None
            job.ranks -= len(kept.ranks)
            self._share.give(job.namespace, len(kept.ranks))
            job.values -= sum(len(rank.metrics) for rank in kept.ranks.values())
        replica = job.replicas[key] = _Replica(sender.restart, sender.pod_uid, Bucket(self._limits.burst, moment))
        return replica

    def _is_declared(self, job: _Job, replica: _Replica, role: str, key: int) -> bool:
        """Return whether the pod may report this rank: processes beyond those of its job are not believed."""
        others = sum(1 for other in replica.ranks if other not in (key, trainer_status.KEY))
        return key == trainer_status.KEY or others < self._most(job, role)

    def _has_room(self, job: _Job, replica: _Replica, key: int, moment: float) -> bool:
        if key in replica.ranks:
            return True
        limits = self._limits
        if job.ranks >= limits.ranks_per_job:
            return False
        fits = self._share.fits(job.namespace)
        return fits or (self._make_room(moment) and self._share.fits(job.namespace))

    def _hear(self, namespace: str) -> None:
        """Record that messages of this namespace arrive."""
        self._heard[namespace] = self._now()
        self._heard.move_to_end(namespace)
        if len(self._heard) > self._limits.jobs:
            self._heard.popitem(last=False)

    def _keep(
        self, job: _Job, replica: _Replica, sender: ReportSource, key: int, message: messages.Message
    ) -> RankReport:
        before, now = replica.ranks.get(key), self._now()
        if message.trainer_status is not None:
            message = trainer_status.as_message(message.trainer_status, before)
        self._hear(job.namespace)
        if before is None:
            job.ranks += 1
            self._share.take(job.namespace)
            if replica.ranks:  # a new bucket is filled for the first rank
                replica.bucket.add(self._limits.burst)
        self._count(before, now)
        report = _report(sender, message, before, now, self._metrics(job, before, message))
        if key == trainer_status.KEY:
            report = trainer_status.with_step_time(report, before)
        replica.ranks[key] = report
        return report

    def _record(self, job: _Job, sender: ReportSource, message: messages.Message) -> bool:
        """Keep the record of the metrics, if it is of the rank with the lowest number. Return whether it is."""
        rank = message.rank
        order = (rank is None, rank or 0, sender.role, sender.index, message.local_rank)
        if job.recorder and order > job.recorder:
            return False
        if order != job.recorder:
            job.recorder, job.metrics = order, {}
        for name, record in message.record.items():
            if name in job.metrics or len(job.metrics) < messages.METRICS:
                job.metrics[name] = _metric_record(record, message.step or 0)
        if self._recorded and message.record:
            now = self._now()
            self._recorded(job.attempt, [_values(name, record, now) for name, record in message.record.items()])
        return True

    def _metrics(self, job: _Job, before: RankReport | None, message: messages.Message) -> dict[str, float]:
        kept: dict[str, float] = {}
        for name, value in message.metrics.items():
            interned = job.names.get(name)
            if interned is None:
                if len(job.names) >= self._limits.metric_names_per_job:
                    continue
                job.names[name] = interned = name
            kept[interned] = value
        others = job.values - (len(before.metrics) if before else 0)
        if others + len(kept) > self._limits.metric_values_per_job:
            kept = {}
        job.values = others + len(kept)
        return kept

    def _count(self, before: RankReport | None, now: datetime) -> None:
        """Count each rank once per window."""
        since, count, last = self._window
        passed = (now - since).total_seconds()
        if not 0 <= passed < _WINDOW_SECONDS:
            since, count, last = now, 0, count if passed < 2 * _WINDOW_SECONDS else 0
        if before is None or before.received_at < since:
            count += 1
        self._window = (since, count, last)


_OVER = Answer(409, {"error": "this attempt is over"})


def _call_later(seconds: float, call: Callable[[], None]) -> Any:
    return asyncio.get_running_loop().call_later(seconds, call)


def _has_handled(report: RankReport, number: int) -> bool:
    """Return whether the rank has stored the requested checkpoint, or is done with the request."""
    stored = report.checkpoint_at is not None and report.checkpoint_at.timestamp() * 1000 >= number
    return number > 0 and (stored or report.handled_request >= number)


def _collectives(message: messages.Nccl, before: Collectives | None, now: datetime) -> Collectives:
    moved = before is None or before.launched != message.launched
    return Collectives(
        received_at=now,
        moved_at=now if moved or before is None else before.moved_at,
        launched=message.launched,
        size=message.size,
        operation=message.operation,
        number=message.number,
        behind=tuple(message.behind),
        behind_count=message.behind_count,
        missing=tuple(message.missing),
        missing_count=message.missing_count,
    )


def _metric_record(record: messages.MetricRecord, step: int) -> MetricRecord:
    low, high = record.lowest or (None, None), record.highest or (None, None)
    return MetricRecord(
        first_step=record.first[0],
        first=record.first[1],
        last_step=record.values[-1][0] if record.values else step,
        lowest_step=low[0],
        lowest=low[1],
        highest_step=high[0],
        highest=high[1],
        not_finite_step=record.not_finite,
    )


def _values(name: str, record: messages.MetricRecord, now: datetime) -> MetricValues:
    values = tuple((now - timedelta(seconds=ago), step, value) for step, value, ago in record.values)
    count = sum(value is not None for _, _, value in values)
    return MetricValues(name, values, max(record.count, count), record.mean)


_JITTER = timedelta(seconds=1)


def _checkpoints(
    sent: list[messages.StoredCheckpoint], before: tuple[StoredCheckpoint, ...], now: datetime
) -> tuple[StoredCheckpoint, ...]:
    """Convert ages to times, which stay the same for the same file."""
    recorded = {(checkpoint.step, checkpoint.path): checkpoint.time for checkpoint in before}
    out = []
    for item in sent:
        time = now - timedelta(seconds=item.ago)
        checkpoint = StoredCheckpoint(
            step=item.step,
            time=time,
            path=item.path,
            complete=item.complete,
            verified=item.verified,
            bytes=item.bytes,
        )
        last = recorded.get((checkpoint.step, checkpoint.path))
        out.append(replace(checkpoint, time=last) if last and abs(last - time) <= _JITTER else checkpoint)
    return tuple(sorted(out, key=lambda checkpoint: checkpoint.step))


def _report(
    sender: ReportSource, message: messages.Message, before: RankReport | None, now: datetime, metrics: dict[str, float]
) -> RankReport:
    """Convert durations to timestamps.

    A timestamp keeps its first value while its step or checkpoint is the same: the transfer time of each message would
    move it a little.
    """
    stepped_at = checkpoint_at = first_step_at = None
    stalled = before is not None and before.step == message.step and not message.done
    samples, seconds, busy = message.samples_per_second, message.step_seconds, message.busy_seconds
    load = message.load_seconds
    if message.step is not None:
        stepped_at = now - timedelta(seconds=message.idle or 0.0)
        first_step_at = stepped_at
        if before is not None and before.step is not None:
            first_step_at = before.first_step_at
            if before.step == message.step:
                # No step since the last message: the last measurements still hold.
                stepped_at = before.stepped_at
                samples = before.samples_per_second if samples is None else samples
                seconds = before.step_seconds if seconds is None else seconds
                busy = before.busy_seconds if busy is None else busy
                load = before.load_seconds if load is None else load
    windows = before.windows or () if before is not None else ()
    if seconds is not None and message.step is not None and (before is None or before.step != message.step):
        windows = (*windows, (seconds, busy))[-WINDOWS:]
    checkpoint = message.checkpoint.step if message.checkpoint else None
    if message.checkpoint is not None:
        checkpoint_at = now - timedelta(seconds=message.checkpoint.ago)
        if checkpoint is not None and before is not None and before.checkpoint_step == checkpoint:
            checkpoint_at = before.checkpoint_at
    return RankReport(
        role=sender.role,
        index=sender.index,
        local_rank=message.local_rank,
        rank=message.rank,
        pod=sender.pod,
        node=sender.node,
        step=message.step,
        total_steps=message.total_steps,
        epoch=message.epoch,
        metrics=metrics,
        not_finite=dict(message.not_finite),
        samples_per_second=samples,
        step_seconds=seconds,
        busy_seconds=busy,
        load_seconds=load,
        windows=windows,
        checkpoint_step=checkpoint,
        checkpoint_at=checkpoint_at,
        saves_on_request=message.saves_on_request,
        handled_request=message.handled_request,
        save_seconds=message.checkpoint.seconds if message.checkpoint else None,
        due_step=message.due_step,
        stepped_at=stepped_at,
        first_step_at=first_step_at,
        received_at=now,
        done=message.done,
        waiting=message.waiting,
        position=_position(message.position) or (before.position if stalled and before else None),
    )


def _position(sent: messages.Position | None) -> Position | None:
    if sent is None:
        return None
    return Position(
        where=_clean(sent.where),
        function=_clean(sent.function),
        call=_clean(sent.call),
        collective=sent.collective,
        activity=sent.activity,
        file=_clean(sent.file),
        stuck=sent.stuck,
        callers=tuple(map(_clean, sent.callers)),
        raising=_clean(sent.raising),
    )


def _clean(text: str) -> str:
    return clean_text(text, colour=False)
