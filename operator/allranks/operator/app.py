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
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from allranks.api.status import FINISHED
from allranks.core.diagnosis import checkpoint_overdue, hardware, report_loss
from allranks.kube import pod_codec, raw_pod
from allranks.kube.auth import Connection, own_namespace
from allranks.kube.client import Client, Transport
from allranks.kube.errors import ApiError
from allranks.operator.leader_election import Lease
from allranks.operator.metrics import HardwareSample, JobSample, Metrics, Sampled, dict_field
from allranks.operator.ports.http_servers import HttpServers, Ports
from allranks.operator.ports.local_backend import LocalBackend
from allranks.operator.ports.metrics_auth import MetricsGate
from allranks.operator.ports.socket_server import SocketServer
from allranks.operator.session import Dependencies, Session, stop_on_signals
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
        decode_pod: Callable[[raw_pod.Raw], pod_codec.CachedPod] = pod_codec.to_cached_pod,
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
        checks = {"healthz": self.unhealthy, "readyz": self.unready}
        backend = LocalBackend(lambda: self.session, checks, self.metrics, self._gate)
        self._http = None if settings.socket else HttpServers(_ports(settings), backend)
        self.server = self._http.metrics if self._http else None
        self.probes = self._http.probes if self._http else None
        self.reports = self._http.reports if self._http else None
        self._sockets = [SocketServer(path, backend) for path in (settings.socket, settings.check_socket) if path]
        self.metrics.registry.register(
            Sampled(
                self._jobs,
                lambda: self.depth,
                self._ages,
                lambda: self.session.reports.reporting if self.session else 0,
                self._reports_lost,
                lambda: self.session.processes.connected if self.session else 0,
                lambda: len(self.session.unreadable) if self.session else 0,
                self.metrics.namespaces,
                lambda: self.session.shares if self.session else {},
                self._hardware,
                self._overdue,
            )
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set or SIGTERM or SIGINT arrives. Raises OSError when a port is in use, SocketError when
        a socket cannot be created."""
        stop_on_signals(stop)
        stopping = asyncio.create_task(stop.wait(), name="stop")
        servers: list[SocketServer | HttpServers] = [*self._sockets, *([self._http] if self._http else [])]
        try:
            for server in servers:
                await server.start()
            await self._sessions(stop, stopping)
        finally:
            stopping.cancel()
            for server in reversed(servers):
                await server.stop()
            if self._gate:
                await self._gate.close()
        logger.info("stopped")

    def _review_client(self) -> Client:
        """Return a client for reviews alone: a standby serves metrics too, and the slots of a session are for its
        jobs."""
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
        """Hold the Lease when leader election is enabled, and release it at the end."""
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
        """Return the number of jobs that are queued or reconciled."""
        return len(self.session.queue) if self.session else 0

    @property
    def idle(self) -> bool:
        """Return whether everything observed has been handled, including statuses and Events."""
        return self.session is not None and self.session.idle

    def unhealthy(self) -> str:
        """Return the problem that the liveness probe reports; empty without one."""
        limit = self.settings.watch_timeout + self._using.timing.watch_margin
        silent = [f"{name} ({age:.0f} s)" for name, age in self._ages() if age > limit]
        return f"no activity of the watch of {', '.join(silent)}" if silent else ""

    def unready(self) -> str:
        """Return the problem that the readiness probe reports; empty without one."""
        if self._lease and not self._lease.held:
            return ""  # A standby is ready.
        return "" if self.session and self.session.synced else "caches are not synced yet"

    def _jobs(self) -> Iterator[JobSample]:
        if session := self.session:
            yield from session.gpus.samples(session.jobs, session.jobs.get, self._using.clock.now())

    def _reports_lost(self) -> int:
        return sum(self._by_namespace(report_loss.CONDITION).values())

    def _overdue(self) -> Counter[str]:
        return self._by_namespace(checkpoint_overdue.CONDITION)

    def _by_namespace(self, condition: str) -> Counter[str]:
        """Return namespace -> the number of jobs whose condition is True."""
        count = Counter[str]()
        for key in self.session.jobs if self.session else ():
            status = dict_field(self.session.jobs.get(key) or {}, "status") if self.session else {}
            if _is_true(status.get("conditions"), condition):
                count[key[0]] += 1
        return count

    def _hardware(self) -> HardwareSample:
        if not self.session:
            return HardwareSample(0, 0, {})
        jobs, avoiding = 0, Counter[str]()
        for key in self.session.jobs:
            status = dict_field(self.session.jobs.get(key) or {}, "status")
            jobs += _is_true(status.get("conditions"), hardware.CONDITION)
            nodes = status.get("avoidedNodes") if status.get("phase") not in FINISHED else None
            avoiding.update(node for node in (nodes if isinstance(nodes, list) else []) if isinstance(node, str))
        return HardwareSample(len(self.session.nodes.by_node), jobs, avoiding)

    def _ages(self) -> Iterable[tuple[str, float]]:
        return self.session.ages() if self.session else ()


def _ports(settings: Settings) -> Ports:
    reports = settings.report_port if settings.report_url else None
    return Ports(settings.address, settings.port, settings.probe_port, reports)


def _is_true(conditions: Any, kind: str) -> bool:
    """Return whether the condition of this type is True. No schema has validated the list."""
    entries = conditions if isinstance(conditions, list) else []
    return any(isinstance(c, dict) and c.get("type") == kind and c.get("status") == "True" for c in entries)
