"""The operator in the test's own process: in a thread, with a clock that the test sets, killable at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from allranks.api.job import KIND
from allranks.api.pool import PoolSpec
from allranks.core.facts.optional_kinds import LOCAL_QUEUE, WORKLOAD, OptionalKind
from allranks.core.facts.rank_reports import Windows
from allranks.kube import pod_codec, raw_pod
from allranks.kube.auth import Connection
from allranks.operator import timing
from allranks.operator.app import Operator
from allranks.operator.session import Session
from allranks.operator.settings import Settings
from allranks.operator.timing import Timing
from allranks.telemetry.messages import Answer
from allranks.telemetry.store import ReportSource, ReportStore

from .mortal_transport import MortalTransport

T = TypeVar("T")
PATIENCE_SECONDS = 600.0
"""For an answer of the operator's thread, on a machine that may be slow."""


class Clock(timing.Clock):
    """`now` stands still until the test sets it, so that no deadline passes because the machine is slow. Timers run in
    real time.

    The API server has its own clock, so each of its timestamps is replaced by the value of this clock when the
    timestamp was first observed.
    """

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._first: dict[tuple[str, str], datetime] = {}
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return self._now

    def set(self, moment: datetime) -> None:
        self._now = moment

    def observe(self, metadata: dict[str, Any]) -> None:
        """Records when the timestamps of this object were first observed."""
        self.created(metadata["uid"])
        if "deletionTimestamp" in metadata:
            self.deletion_requested(metadata["uid"])

    def created(self, uid: str) -> datetime:
        return self._first_observed(uid, "created")

    def placed(self, uid: str) -> datetime:
        """When the pod was scheduled."""
        return self._first_observed(uid, "placed")

    def deletion_requested(self, uid: str) -> datetime:
        """When the deletion was requested, without the grace period."""
        return self._first_observed(uid, "deleted")

    def decode_pod(self, raw: raw_pod.Raw) -> pod_codec.CachedPod:
        """Decodes pods like the operator, with the timestamps of this clock."""
        metadata = raw.metadata
        for condition in raw.status.conditions:
            # The API server sets this condition before the test's kubelet does.
            if condition.type == "PodScheduled" and condition.status == "True":
                condition.last_transition_time = self.placed(metadata.uid)
        metadata.creation_timestamp = self.created(metadata.uid)
        if metadata.deletion_timestamp:
            grace = timedelta(seconds=metadata.deletion_grace_period_seconds or 0)
            metadata.deletion_timestamp = self.deletion_requested(metadata.uid) + grace
        return pod_codec.to_cached_pod(raw)

    def _first_observed(self, uid: str, what: str) -> datetime:
        with self._lock:
            return self._first.setdefault((uid, what), self._now)


_COMPARED = (WORKLOAD.id, LOCAL_QUEUE.id)


def cached_versions(session: Session | None) -> dict[tuple[str, str, str], str]:
    """(kind, namespace, name) -> resourceVersion in the caches of the operator."""
    if session is None:
        return {}
    pods = {("Pod", cached.namespace, cached.pod.name): str(cached.version) for cached in session.pods}
    jobs = {(KIND, *key): session.jobs.get(key) or {} for key in session.jobs}
    others = {
        (key[0].partition(".")[0], *key[1:]): each for key, each in session.optional.objects() if key[0] in _COMPARED
    }
    pods |= {key: str(each["metadata"]["resourceVersion"]) for key, each in others.items()}
    return pods | {key: str(job["metadata"]["resourceVersion"]) for key, job in jobs.items()}


class RunningOperator:
    """One run of the operator. Its methods are called from the test's thread."""

    def __init__(self, settings: Settings, connection: Connection, timing: Timing, clock: Clock | None = None) -> None:
        self._transports: list[MortalTransport] = []
        how: dict[str, Any] = {"clock": clock, "decode_pod": clock.decode_pod} if clock else {}
        self.operator = Operator(settings, connection, timing=timing, transport=self._transport, **how)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)
        self._thread.start()
        self._work = asyncio.run_coroutine_threadsafe(self.operator.run(asyncio.Event()), self._loop)

    def state(self) -> tuple[bool, dict[tuple[str, str, str], str]]:
        """(whether the operator is idle, versions in its caches), both at the same moment."""
        if self._work.done():
            self._work.result()  # raises the error that ended it
            raise RuntimeError("the operator ended by itself")
        return self._ask(lambda: (self.operator.idle, cached_versions(self.operator.session)))

    def pool(self, name: str) -> PoolSpec | None:
        """The pool in the operator's cache."""
        session = self.operator.session
        return self._ask(lambda: session.pools.get(name)) if session else None

    def has(self, kind: OptionalKind, name: str) -> bool:
        """Whether the operator has observed this object, of a kind without namespaces."""
        session = self.operator.session
        return self._ask(lambda: (kind.id, "", name) in dict(session.optional.objects())) if session else False

    def report(self, sender: ReportSource, body: bytes, windows: Windows | None = None) -> dict[str, Any]:
        """Ingests a rank's message as the server does, and reconciles immediately. Returns the answer.

        `windows`: the step times of the messages that would follow to a new operator. The steps of a scenario stand
        still, those of a real rank go on.
        """

        def ingest() -> dict[str, Any]:
            session = self.operator.session
            if session is None:
                return {}
            answer = session.reports.ingest(sender, body)
            job = session.reports._jobs.get(sender.job)
            if windows and job and (replica := job.replicas.get((sender.role, sender.index))):
                ranks = replica.ranks
                ranks.update({number: replace(rank, windows=windows) for number, rank in ranks.items()})
            session.queue.enqueue_now(sender.job)
            return dict(answer.body)

        return self._ask(ingest)

    def poll(self, session: Session, sender: ReportSource, body: bytes) -> Future[Answer | None]:
        """Begin the poll of a pod's supervisor as the server does, and reconcile immediately. The future has its
        answer; None if this session does not wait for it."""

        async def ask() -> Answer | None:
            work = asyncio.ensure_future(session.processes.poll(sender, body))
            await asyncio.sleep(0)  # the store has the message
            session.queue.enqueue_now(sender.job)
            return await work

        return asyncio.run_coroutine_threadsafe(ask(), self._loop)

    def cut_off(self, job: tuple[str, str], pod_uid: str) -> None:
        """The supervisor of this pod has been silent for longer than the store calls it connected."""

        def end() -> None:
            store = self.operator.session.processes if self.operator.session else None
            kept = store._jobs.get(job) if store else None
            if kept and (pod := kept.pods.get(pod_uid)):
                if pod.waiter:
                    pod.waiter.cancel()
                pod.waiter, pod.heard_at = None, float("-inf")

        self._ask(end)

    def leap(self, set_clock: Callable[[], None], repeat_reports: bool, ranks_report: bool) -> None:
        """Set the clock, and repeat the messages of the ranks, before anything else is decided.

        `ranks_report`: ranks have sent messages, and so within seconds also to a session that has just begun.
        """

        def change() -> None:
            set_clock()
            if self.operator.session and repeat_reports:
                reports = self.operator.session.reports
                _repeat(reports)
                if ranks_report and not reports._jobs:
                    reports.since = reports._now()

        self._ask(change)

    def enqueue_all(self, repeat_reports: bool = False) -> None:
        """After the clock was set: timers were started by the clock before. Returns when the jobs are queued.

        `repeat_reports`: meanwhile ranks sent the same message every few seconds.
        """

        def enqueue() -> None:
            if self.operator.session:
                if repeat_reports:
                    _repeat(self.operator.session.reports)
                self.operator.session.controller.enqueue_all()

        self._ask(enqueue)

    def kill(self) -> None:
        """Like SIGKILL: nothing is sent any more. The cleanup after that is what the OS does for a dead process."""
        asyncio.run_coroutine_threadsafe(self._die(), self._loop).result(PATIENCE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        # Not in a task that cancels the others: kopf cancels all tasks.
        for turn in range(500):
            tasks = asyncio.all_tasks(self._loop)
            if not tasks:
                break
            for task in tasks:
                # A second cancellation would interrupt what a task does after the first one, such as closing a session.
                if turn % 100 == 0 or not task.cancelling():
                    task.cancel()
            self._loop.call_later(0.01, self._loop.stop)
            self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    def _transport(self, connection: Connection) -> MortalTransport:
        transport = MortalTransport(connection)
        self._transports.append(transport)
        return transport

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _die(self) -> None:
        for transport in self._transports:
            await transport.die()

    async def _close(self) -> None:
        for server in (self.operator.reports, self.operator.server, *self.operator._sockets):
            with contextlib.suppress(Exception):
                if server:
                    await server.stop()
        for transport in self._transports:
            await transport.close()
        await self._loop.shutdown_asyncgens()
        await asyncio.sleep(0.01)  # connections end in the next iterations of the loop

    def _ask(self, question: Callable[[], T]) -> T:
        async def answer() -> T:
            return question()

        return _result(answer(), self._loop)


def _result(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_SECONDS)


def _repeat(store: ReportStore) -> None:
    for job in store._jobs.values():
        job.message_at = store._now()
        for replica in job.replicas.values():
            for number, rank in replica.ranks.items():
                if not rank.done:
                    replica.ranks[number] = replace(rank, received_at=store._now())
