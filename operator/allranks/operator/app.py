"""The operator process: leader election, sessions, probes, metrics and the report server.

It runs in sessions. A session starts with empty caches and lists everything. It ends at shutdown, when the Lease is
lost, or after an unexpected failure; then the next session starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from allranks.core import report_loss
from allranks.kube import pod_codec
from allranks.kube.auth import Connection, own_namespace
from allranks.kube.client import Client
from allranks.kube.errors import ApiError
from allranks.kube.transport import Transport
from allranks.operator.job_metrics import JobSample
from allranks.operator.leader_election import Lease
from allranks.operator.metrics import Metrics, Sampled
from allranks.operator.metrics_auth import MetricsGate
from allranks.operator.probes import METRICS_LIMITS, PROBE_LIMITS, Scrapes, Server, probe
from allranks.operator.report_server import ReportServer
from allranks.operator.session import Dependencies, Session, dict_field, stop_on_signals
from allranks.operator.settings import Settings
from allranks.operator.timing import Clock, Timing

_LONG_SESSION = 60.0
"""After a session that lasted this many seconds, the next one starts without backoff."""

logger = logging.getLogger("allranks.operator")


class Operator:
    """`run` once. The keyword arguments are seams for tests."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        *,
        timing: Timing | None = None,
        clock: Clock | None = None,
        transport: Callable[[Connection], Transport] = Transport,
        decode_pod: Callable[[pod_codec.Raw], pod_codec.CachedPod] = pod_codec.to_cached_pod,
    ) -> None:
        self.settings, self.connection, self.metrics = settings, connection, Metrics()
        self._using = Dependencies(
            settings, connection, self.metrics, timing or Timing(), clock or Clock(), transport, decode_pod
        )
        self.session: Session | None = None
        self._lease: Lease | None = None
        # The same in all sessions: after a session that failed, the Lease that is still ours is not waited for.
        self._identity = f"{os.environ.get('HOSTNAME') or os.uname().nodename}_{uuid.uuid4().hex[:8]}"
        self._gate = MetricsGate(self._review_client, self._using.clock) if settings.metrics_auth else None
        probes = {"/healthz": probe(self.unhealthy), "/readyz": probe(self.unready)}
        routes = {**probes, "/metrics": Scrapes(self.metrics.registry, self._gate).answer}
        self.server = Server(settings.address, settings.port, routes, METRICS_LIMITS)
        self.probes = (
            None if settings.probe_port is None else Server(settings.address, settings.probe_port, probes, PROBE_LIMITS)
        )
        self.reports = (
            ReportServer(settings, lambda: self.session, self.metrics.reported) if settings.report_url else None
        )
        self.metrics.registry.register(
            Sampled(
                self._jobs,
                lambda: self.depth,
                self._ages,
                self._reporting,
                self._reports_lost,
                self._unreadable,
                self.metrics.namespaces,
            )
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set or SIGTERM or SIGINT arrives. Raises OSError when a port is in use."""
        stop_on_signals(stop)
        stopping = asyncio.create_task(stop.wait(), name="stop")
        await self.server.start()
        logger.info("serving /metrics, /healthz and /readyz on port %s", self.server.port)
        try:
            if self.probes:
                await self.probes.start()
                logger.info("serving probes on port %s", self.probes.port)
            if self.reports:
                await self.reports.start()
                logger.info("receiving reports on port %s", self.reports.port)
            await self._sessions(stop, stopping)
        finally:
            stopping.cancel()
            if self.reports:
                await self.reports.stop()
            if self.probes:
                await self.probes.stop()
            await self.server.stop()
            if self._gate:
                await self._gate.close()
        logger.info("stopped")

    def _review_client(self) -> Client:
        """A client of its own: a standby serves metrics too, and the slots of a session are for its jobs."""
        connection = self._using.connection
        return Client(
            connection,
            concurrency=2,
            timeout=5.0,
            retry_timeout=0.0,
            observe=self.metrics.requested,
            transport=self._using.transport(connection),
        )

    async def _sessions(self, stop: asyncio.Event, stopping: asyncio.Task[bool]) -> None:
        clock, backoff = self._using.clock, 0.0
        while not stop.is_set():
            began = clock.monotonic()
            try:
                async with self._elected(stopping) as lease:
                    if stop.is_set():
                        return
                    self.session = Session(self._using, lease)
                    self.metrics.leader.set(1)
                    await self.session.run(stop, stopping)
            except Exception as error:
                expected = isinstance(error, ApiError)
                logger.error("session failed, restarting: %s", error, exc_info=None if expected else error)
            finally:
                self.metrics.leader.set(0)
                self.session = None
                stop_on_signals(stop)  # kopf had installed its own handlers
            if stop.is_set():
                return
            longest = self._using.timing.session_backoff_max
            backoff = 0.0 if clock.monotonic() - began > _LONG_SESSION else min(longest, max(0.5, 2 * backoff))
            await asyncio.wait([stopping], timeout=random.uniform(0.5, 1.0) * backoff)

    @contextlib.asynccontextmanager
    async def _elected(self, stopping: asyncio.Task[bool]) -> AsyncIterator[Lease | None]:
        """Holds the Lease when leader election is enabled, and releases it at the end."""
        if not self.settings.leader_election:
            yield None
            return
        seconds, connection = self.settings.lease_seconds, self._using.connection
        client = Client(
            connection,
            timeout=max(1.0, seconds / 5),
            observe=self.metrics.requested,
            transport=self._using.transport(connection),
        )
        namespace = self.settings.lease_namespace or own_namespace()
        lease = Lease(client, namespace, self.settings.lease_name, self._identity, seconds, self._using.clock)
        self._lease = lease
        acquiring = asyncio.create_task(lease.acquire(), name="lease")
        try:
            await asyncio.wait([acquiring, stopping], return_when=asyncio.FIRST_COMPLETED)
            if acquiring.done():
                acquiring.result()
            yield lease
        finally:
            acquiring.cancel()
            await lease.release()
            await client.close()

    @property
    def depth(self) -> int:
        """Jobs that are queued or reconciled."""
        return len(self.session.queue) if self.session else 0

    @property
    def idle(self) -> bool:
        """Everything observed has been handled, including statuses and Events."""
        return self.session is not None and self.session.idle

    def unhealthy(self) -> str:
        """What is wrong, for the liveness probe."""
        limit = self.settings.watch_timeout + self._using.timing.watch_margin
        silent = [f"{name} ({age:.0f} s)" for name, age in self._ages() if age > limit]
        return f"no activity of the watch of {', '.join(silent)}" if silent else ""

    def unready(self) -> str:
        """What is wrong, for the readiness probe."""
        if self._lease and not self._lease.held:
            return ""  # A standby is ready.
        return "" if self.session and self.session.synced else "caches are not synced yet"

    def _jobs(self) -> Iterator[JobSample]:
        if session := self.session:
            yield from session.gpus.samples(session.jobs, session.jobs.get, self._using.clock.now())

    def _reporting(self) -> int:
        return self.session.reports.reporting if self.session else 0

    def _unreadable(self) -> int:
        return len(self.session.unreadable) if self.session else 0

    def _reports_lost(self) -> int:
        if not self.session:
            return 0
        statuses = (dict_field(self.session.jobs.get(key) or {}, "status") for key in self.session.jobs)
        return sum(_is_true(status.get("conditions"), report_loss.CONDITION) for status in statuses)

    def _ages(self) -> Iterable[tuple[str, float]]:
        return self.session.ages() if self.session else ()


def _is_true(conditions: Any, kind: str) -> bool:
    """Whether the condition of this type is True. No schema has validated the list."""
    entries = conditions if isinstance(conditions, list) else []
    return any(isinstance(c, dict) and c.get("type") == kind and c.get("status") == "True" for c in entries)
