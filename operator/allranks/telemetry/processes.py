"""Keeps what the supervisor in each pod reported last, and gives it its orders (long poll). No I/O.

The identity of a sender is authenticated, its message is untrusted: it changes only the state of its own pod. Nothing
is persisted: a supervisor repeats its whole state with each message, so an operator that was restarted knows everything
as soon as all supervisors are connected again.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from allranks.control_sequences import clean_text
from allranks.core.facts.processes import Order, PodProcess, Processes, ProcessExit, ProcessState
from allranks.shares import Share
from allranks.telemetry.messages import Answer, ReportSource, Seconds
from allranks.telemetry.rate_limit import Bucket, Job

MESSAGE_BYTES = 2048
"""Of the last lines of a program, as a kubelet keeps of a container's log."""
_Attempt = Annotated[int, Meta(ge=0, lt=2**31)]


class Last(msgspec.Struct, frozen=True):
    """How the program ended last."""

    attempt: _Attempt
    code: Annotated[int, Meta(ge=0, le=255)]
    signal: Annotated[int, Meta(ge=1, le=64)] | None = None
    ago: Seconds = 0.0
    message: str = ""


class Message(msgspec.Struct, frozen=True):
    """The state of the program in a pod. Durations are measured by the sender's own clock."""

    attempt: _Attempt
    state: ProcessState
    started: Seconds | None = None
    last: Last | None = None
    number: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    """Grows with each state: two of them, on two connections, may arrive in any order."""
    code: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")] | None = None
    """SHA-256 of the job's code in the pod; None if the supervisor cannot replace it."""
    restart: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    """Restarts of the program alone in this pod in `attempt`; None if the supervisor cannot do that."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Seconds, rates and numbers."""

    pods: int = 5_000
    """Of all jobs together. Namespaces share them. Further supervisors get 503, and Exit when their program has ended:
    their jobs restart with new pods, and their programs start without waiting for the other pods."""
    hold_seconds: float = 25.0
    """Longest time until a poll is answered."""
    hold_ended_seconds: float = 5.0
    """The same without a running program: its supervisor ends after 20 s without an answer."""
    connected_seconds: float = 5.0
    """A supervisor without a poll is connected for this long after its last message."""
    silent_seconds: float = 60.0
    """When there is no room, a supervisor that is silent for longer is forgotten."""
    burst: float = 20.0
    rate: float = 1.0
    """Messages per second of a pod. One that carries out an order sends one in two seconds."""
    urgent_seconds: float = 1.0
    """A change is urgent if no other one of its job came in this time before it."""


@dataclass(slots=True)
class _Pod:
    job: Job
    bucket: Bucket
    process: PodProcess
    number: int = 0
    heard_at: float = 0.0
    waiter: asyncio.Future[Answer] | None = None
    """The poll that waits for an order."""
    ordered: tuple[str, int, int] | None = None
    """Action, attempt and restart of the last order that it was given."""


@dataclass(slots=True)
class _Job:
    uid: str
    pods: dict[str, _Pod] = field(default_factory=dict)
    """By UID."""
    changed_at: float = float("-inf")


class ProcessStore:
    """Calls `reconcile(job, urgent)` at once when a state changes; a change that is not urgent may be debounced. Calls
    `count(action)` for each order that a supervisor is given."""

    def __init__(
        self,
        now: Callable[[], datetime],
        reconcile: Callable[[Job, bool], None],
        *,
        count: Callable[[str], None] = lambda action: None,
        limits: ProcessLimits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], Any] | None = None,
    ) -> None:
        self._now, self._reconcile, self._count, self._monotonic = now, reconcile, count, monotonic
        self._limits, self._later = limits or ProcessLimits(), later or _call_later
        self._jobs: dict[Job, _Job] = {}
        self._heard: OrderedDict[str, _Pod] = OrderedDict()
        """All pods by UID, ordered by the time of their last message."""
        self._orders: dict[Job, dict[str, Order]] = {}
        self._share = Share(self._limits.pods)
        self._closed = False
        self.since = now()
        """When this store started to listen."""

    @property
    def connected(self) -> int:
        """Return the number of supervisors that wait for an order, or reported a moment ago."""
        moment = self._monotonic()
        return sum(self._is_connected(pod, moment) for pod in self._heard.values())

    @property
    def large(self) -> dict[str, float]:
        """Return `Share.large` of the supervisors."""
        return self._share.large

    async def poll(self, sender: ReportSource, body: bytes) -> Answer:
        """Store a state. Return the next order: at once if there is one, else when there is, or after some time."""
        pod = self._take(sender, body)
        if isinstance(pod, Answer):
            return pod
        limits = self._limits
        waiter: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        pod.waiter = waiter
        running = pod.process.state == "Running"
        timer = self._later(limits.hold_seconds if running else limits.hold_ended_seconds, lambda: _end(waiter))
        try:
            return await waiter
        finally:
            timer.cancel()
            if pod.waiter is waiter:
                pod.waiter, pod.heard_at = None, self._monotonic()

    def snapshot(self, job: Job, uid: str, pods: Collection[str]) -> Processes:
        """Return the states of the processes of a job. Forgets pods that are not among `pods` (UIDs)."""
        kept, moment = self._jobs.get(job), self._monotonic()
        if kept is None or kept.uid != uid:
            return Processes(self.since)
        by_pod = {}
        for pod_uid, pod in list(kept.pods.items()):
            if pod_uid not in pods:
                self._drop(pod_uid)
                continue
            if pod.process.connected != (connected := self._is_connected(pod, moment)):
                pod.process = replace(pod.process, connected=connected)
            by_pod[pod_uid] = pod.process
        return Processes(self.since, by_pod)

    def order(self, job: Job, orders: Iterable[Order]) -> None:
        """Replace the orders of a job. Each is repeated until the pod reports that it is carried out."""
        by_pod = {order.pod_uid: order for order in orders}
        if by_pod:
            self._orders[job] = by_pod
        else:
            self._orders.pop(job, None)
        kept = self._jobs.get(job)
        for pod_uid, order in by_pod.items() if kept else ():
            assert kept
            pod = kept.pods.get(pod_uid)
            if pod is not None and pod.waiter is not None and _is_due(order, pod.process):
                _end(pod.waiter, self._answer(pod, order))

    def forget(self, job: Job) -> None:
        """Forget a job that is deleted."""
        self._orders.pop(job, None)
        self._drop_job(job)

    def close(self) -> None:
        """Answer all polls: this replica is not the leader any more."""
        self._closed = True
        for pod in self._heard.values():
            if pod.waiter is not None:
                _end(pod.waiter, _CLOSED)

    def _take(self, sender: ReportSource, body: bytes) -> _Pod | Answer:
        """Return the pod if its poll has to wait, else the answer."""
        moment = self._monotonic()
        if self._closed:
            return _CLOSED
        kept = self._jobs.get(sender.job)
        if kept is not None and kept.uid != sender.job_uid:
            # A former job had the same name. Authentication only accepts pods of existing jobs.
            self._drop_job(sender.job)
            kept = None
        pod = kept.pods.get(sender.pod_uid) if kept else None
        if pod is not None and not pod.bucket.take(moment, self._limits.burst, self._limits.rate):
            return Answer(429, {"error": "too many messages"}, 1.0)
        try:
            message = _decode(body)
        except (ValueError, RecursionError) as error:
            return Answer(400, {"error": str(error)[:200]})
        if pod is None:
            if not self._has_room(sender.job[0], moment):
                return _EXIT if message.last and message.state != "Running" else _NO_ROOM
            pod = self._add(sender, message, moment)
            changed = True
        elif message.number < pod.number:
            return _NOTHING  # the next state has arrived before this one
        else:
            changed = self._keep(pod, message)
        pod.number = message.number
        if pod.waiter is not None:
            _end(pod.waiter)
            pod.waiter = None
        pod.heard_at = moment
        self._heard.move_to_end(sender.pod_uid)
        if changed:
            job = self._jobs[sender.job]
            urgent = moment - job.changed_at >= self._limits.urgent_seconds
            job.changed_at = moment
            self._reconcile(sender.job, urgent)
        order = self._orders.get(sender.job, {}).get(sender.pod_uid)
        return self._answer(pod, order) if order is not None and _is_due(order, pod.process) else pod

    def _has_room(self, namespace: str, moment: float) -> bool:
        """Return whether another pod fits; for that, forget supervisors that are silent."""
        while not self._share.fits(namespace):
            uid, pod = next(iter(self._heard.items()), ("", None))
            silent = pod is not None and pod.waiter is None and moment - pod.heard_at > self._limits.silent_seconds
            if not silent:
                return False
            self._drop(uid)
        return True

    def _add(self, sender: ReportSource, message: Message, moment: float) -> _Pod:
        self._share.take(sender.job[0])
        process = _process(message, self._now())
        pod = _Pod(sender.job, Bucket(self._limits.burst - 1, moment), process)
        job = self._jobs.setdefault(sender.job, _Job(sender.job_uid))
        job.pods[sender.pod_uid] = self._heard[sender.pod_uid] = pod
        return pod

    def _keep(self, pod: _Pod, message: Message) -> bool:
        """Store a message. Return whether it says something new: times that are computed again do not count."""
        process, before = _process(message, self._now()), pod.process
        if _said(process) == _said(before):
            return False
        if _said_last(process) == _said_last(before):
            process = replace(process, last_exit=before.last_exit)
        if (process.number, process.started_at is None) == (before.number, before.started_at is None):
            process = replace(process, started_at=before.started_at)
        pod.process = process
        return True

    def _drop_job(self, job: Job) -> None:
        if kept := self._jobs.get(job):
            for pod_uid in list(kept.pods):
                self._drop(pod_uid)

    def _drop(self, pod_uid: str) -> None:
        pod = self._heard.pop(pod_uid)
        self._share.give(pod.job[0])
        kept = self._jobs[pod.job]
        del kept.pods[pod_uid]
        if not kept.pods:
            del self._jobs[pod.job]
        if pod.waiter is not None:
            _end(pod.waiter)

    def _is_connected(self, pod: _Pod, moment: float) -> bool:
        return pod.waiter is not None or moment - pod.heard_at < self._limits.connected_seconds

    def _answer(self, pod: _Pod, order: Order) -> Answer:
        if pod.ordered != (order.action, order.attempt, order.restart):
            pod.ordered = order.action, order.attempt, order.restart
            self._count(order.action)
        body: dict[str, Any] = {"order": order.action}
        if order.action != "Exit":
            body["attempt"] = order.attempt
            if order.restart:
                body["restart"] = order.restart
        if order.action == "Stop":
            body["grace"] = order.grace_seconds
        if order.action == "Start":
            body["env"] = dict(order.env)
            if order.code:
                body["code"] = order.code
        return Answer(200, body)


_NOTHING = Answer(200, {"order": None})
_EXIT = Answer(200, {"order": "Exit"})
_NO_ROOM = Answer(503, {"error": "too many supervisors are connected"}, 30.0)
_CLOSED = Answer(503, {"error": "this replica is shutting down"}, 1.0)
_decode = msgspec.json.Decoder(Message).decode


def _end(waiter: asyncio.Future[Answer], answer: Answer = _NOTHING) -> None:
    if not waiter.done():
        waiter.set_result(answer)


def _is_due(order: Order, process: PodProcess) -> bool:
    """Return whether the pod has not carried out an order. One that is older than its process is not for it."""
    if order.action == "Exit":
        return True
    number = order.attempt, order.restart
    return process.number < number or (order.action == "Start" and process.number == number and process.state == "Down")


def _process(message: Message, now: datetime) -> PodProcess:
    """Convert ages to times."""
    last, started = message.last, message.started
    return PodProcess(
        attempt=message.attempt,
        state=message.state,
        connected=True,
        started_at=None if started is None or message.state == "Down" else now - timedelta(seconds=started),
        last_attempt=last.attempt if last else 0,
        last_exit=ProcessExit(
            code=last.code,
            finished_at=now - timedelta(seconds=last.ago),
            signal=last.signal,
            message=_cut(clean_text(last.message, colour=False)),
        )
        if last
        else None,
        code=message.code,
        restart=message.restart,
    )


def _cut(text: str) -> str:
    return text.encode(errors="replace")[-MESSAGE_BYTES:].decode(errors="ignore")


def _said(process: PodProcess) -> tuple[Any, ...]:
    """Return what a message says, without times."""
    return process.number, process.state, process.code, process.started_at is None, _said_last(process)


def _said_last(process: PodProcess) -> tuple[Any, ...] | None:
    last = process.last_exit
    return None if last is None else (process.last_attempt, last.code, last.signal, last.message)


def _call_later(seconds: float, call: Callable[[], None]) -> Any:
    return asyncio.get_running_loop().call_later(seconds, call)
