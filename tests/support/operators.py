"""The operator inside a test's own process: in a thread, with a clock that the test moves, killable at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

from allranks.api.pool import PoolSpec
from allranks.kube import pod_codec
from allranks.kube.auth import Connection
from allranks.operator.app import Operator
from allranks.operator.settings import Settings
from allranks.telemetry.store import ReportSource

T = TypeVar("T")


class Clock:
    """Stands still but for `advance`, so that what is due in a second is not due because the machine was slow.

    The API server has its own clock, so its stamps are read as the time that this one showed when they were first seen.
    """

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._seen: dict[tuple[str, str], datetime] = {}
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return self._now

    def set(self, moment: datetime) -> None:
        self._now = moment

    def see(self, metadata: dict[str, Any]) -> None:
        """Keeps when this object's stamps were first seen."""
        self.created(metadata["uid"])
        if "deletionTimestamp" in metadata:
            self.asked_to_go(metadata["uid"])

    def created(self, uid: str) -> datetime:
        return self._first_seen(uid, "created")

    def placed(self, uid: str) -> datetime:
        """When the pod was given a node."""
        return self._first_seen(uid, "placed")

    def asked_to_go(self, uid: str) -> datetime:
        """When somebody asked for the deletion, whatever grace there was."""
        return self._first_seen(uid, "deleted")

    def decode_pod(self, raw: pod_codec.Raw) -> pod_codec.CachedPod:
        """As the operator decodes pods, but with this clock's stamps."""
        metadata = raw.metadata
        for condition in raw.status.conditions:
            # The API server's own stamp is there before the hand's.
            if condition.type == "PodScheduled" and condition.status == "True":
                condition.last_transition_time = self.placed(metadata.uid)
        metadata.creation_timestamp = self.created(metadata.uid)
        if metadata.deletion_timestamp:
            grace = timedelta(seconds=metadata.deletion_grace_period_seconds or 0)
            metadata.deletion_timestamp = self.asked_to_go(metadata.uid) + grace
        return pod_codec.to_cached_pod(raw)

    def _first_seen(self, uid: str, what: str) -> datetime:
        with self._lock:
            return self._seen.setdefault((uid, what), self._now)


class RunningOperator:
    """One life of the operator. Its methods are for the test's thread."""

    def __init__(self, settings: Settings, connection: Connection, clock: Clock) -> None:
        self.operator = Operator(settings, connection, now=clock.now, decode_pod=clock.decode_pod)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="operator", daemon=True)
        self._thread.start()
        self._work = asyncio.run_coroutine_threadsafe(self.operator.run(asyncio.Event()), self._loop)

    def state(self) -> tuple[bool, dict[tuple[str, str, str], str]]:
        """(nothing is left to do, versions of what it has been shown), both as of one moment."""
        if self._work.done():
            self._work.result()  # raises what ended it
            raise RuntimeError("the operator ended by itself")
        return self._ask(lambda: (self.operator.idle, self.operator.versions()))

    def pool(self, name: str) -> PoolSpec | None:
        """As it has been shown."""
        session = self.operator.session
        return self._ask(lambda: session.pools.get(name)) if session else None

    def report(self, sender: ReportSource, body: bytes) -> str:
        """A rank's message as the server hands it on, and looked at at once; the question in the answer."""

        def take() -> str:
            session = self.operator.session
            if session is None:
                return ""
            answer = session.reports.take(sender, body)
            session.controller.reported(sender.job)
            return str(answer.body.get("stacks", ""))

        return self._ask(take)

    def clock_leapt(self) -> None:
        self.operator.clock_leapt()
        self._ask(lambda: None)  # so that it has been told when this returns

    def kill(self) -> None:
        """As kill -9: nothing leaves any more. What the system would do for a dead process is done here."""
        asyncio.run_coroutine_threadsafe(self._die(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        # Not by a task that cancels the others: kopf cancels all there are.
        for _ in range(500):
            tasks = asyncio.all_tasks(self._loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self._loop.call_later(0.01, self._loop.stop)
            self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _die(self) -> None:
        self.operator.kill()
        if self.operator.session:
            # No farewell: connections just break off.
            await self.operator.session.client.transport.close(abort=True)

    async def _close(self) -> None:
        for server in (self.operator.reports, self.operator.server):
            with contextlib.suppress(Exception):
                if server:
                    await server.stop()
        if self.operator.session:
            await self.operator.session.client.close()
        await self._loop.shutdown_asyncgens()
        await asyncio.sleep(0.01)  # connections end in the loop's next turns

    def _ask(self, question: Callable[[], T]) -> T:
        async def answer() -> T:
            return question()

        return _result(answer(), self._loop)


def _result(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    return asyncio.run_coroutine_threadsafe(work, loop).result(10)
