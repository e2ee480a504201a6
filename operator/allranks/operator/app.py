"""The operator, put together: watches, cache, controller, kopf, Lease, reports, metrics.

It lives in sessions. A session begins with an empty memory: everything is listed. It ends when the operator is told to
stop, when its Lease is lost, or when something fails that should not; then the next one begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from allranks.api.job import GROUP, KIND, PLURAL, Job
from allranks.core.model import Manifest, Platform
from allranks.core.naming import JOB_LABEL
from allranks.kube import paths, pod_codec
from allranks.kube.auth import Connection, own_namespace
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, NotFound
from allranks.kube.watch import Watch
from allranks.operator import job_watch
from allranks.operator.apply import Executor
from allranks.operator.cache import PodCache
from allranks.operator.controller import Controller
from allranks.operator.event_recorder import Recorder
from allranks.operator.leader_election import Lease
from allranks.operator.metrics import Metrics, Sampled
from allranks.operator.pool_cache import Pools
from allranks.operator.probes import Server
from allranks.operator.report_auth import Reviews
from allranks.operator.report_server import ReportServer
from allranks.operator.settings import Settings
from allranks.telemetry.store import ReportStore

LAST_BACKOFF_SECONDS = 30.0
MARGIN_SECONDS = 120.0
"""A watch is renewed every `watch_timeout`; one that did nothing for so much longer hangs."""

logger = logging.getLogger("allranks.operator")


def utcnow() -> datetime:
    return datetime.now(UTC)


class Operator:
    """`run` once. `now` and `decode_pod` are seams for tests, which have a clock of their own."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        *,
        now: Callable[[], datetime] = utcnow,
        decode_pod: Callable[[pod_codec.Raw], pod_codec.CachedPod] = pod_codec.to_cached_pod,
    ) -> None:
        self.settings, self.connection = settings, connection
        self.metrics = Metrics()
        self._now, self._decode_pod = now, decode_pod
        self.session: Session | None = None
        self._lease: Lease | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._killed = False
        self.server = Server(settings.address, settings.port, self.metrics.registry, self._unhealthy, self._unready)
        self.reports = (
            ReportServer(settings, lambda: self.session, self.metrics.reported) if settings.report_url else None
        )
        self.metrics.registry.register(Sampled(self._jobs, lambda: self.depth, self._ages, self._reporting))

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, or SIGTERM or SIGINT comes. Raises OSError when the port is taken."""
        self._loop = asyncio.get_running_loop()
        _on_signals(stop)
        stopping = asyncio.create_task(stop.wait(), name="stop")
        await self.server.start()
        logger.info("serving /metrics, /healthz and /readyz on port %s", self.server.port)
        try:
            if self.reports:
                await self.reports.start()
                logger.info("taking reports on port %s", self.reports.port)
            await self._sessions(stop, stopping)
        finally:
            stopping.cancel()
            if not self._killed:
                if self.reports:
                    await self.reports.stop()
                await self.server.stop()
        logger.info("stopped")

    async def _sessions(self, stop: asyncio.Event, stopping: asyncio.Task[bool]) -> None:
        backoff = 0.0
        while not stop.is_set():
            began = time.monotonic()
            try:
                async with self._elected(stopping) as lease:
                    if stop.is_set():
                        return
                    self.session = Session(self, lease)
                    self.metrics.leader.set(1)
                    await self.session.run(stop, stopping)
            except Exception as error:
                known = isinstance(error, ApiError)
                logger.error("starting anew: %s", error, exc_info=None if known else error)
            finally:
                self.metrics.leader.set(0)
                if not self._killed:
                    self.session = None
                _on_signals(stop)  # kopf had put its own in their place
            if stop.is_set() or self._killed:
                return
            backoff = 0.0 if time.monotonic() - began > 60 else min(LAST_BACKOFF_SECONDS, max(0.5, 2 * backoff))
            await asyncio.wait([stopping], timeout=random.uniform(0.5, 1.0) * backoff)

    @contextlib.asynccontextmanager
    async def _elected(self, stopping: asyncio.Task[bool]) -> AsyncIterator[Lease | None]:
        """Holds the Lease, where there are several replicas; gives it back in the end."""
        if not self.settings.leader_election:
            yield None
            return
        seconds = self.settings.lease_seconds
        client = Client(self.connection, timeout=max(1.0, seconds / 5), observe=self.metrics.requested)
        identity = f"{os.environ.get('HOSTNAME') or os.uname().nodename}_{uuid.uuid4().hex[:8]}"
        namespace = self.settings.lease_namespace or own_namespace()
        lease = self._lease = Lease(client, namespace, self.settings.lease_name, identity, seconds)
        acquiring = asyncio.create_task(lease.acquire(), name="lease")
        try:
            await asyncio.wait([acquiring, stopping], return_when=asyncio.FIRST_COMPLETED)
            if acquiring.done():
                acquiring.result()
            yield lease
        finally:
            acquiring.cancel()
            if not self._killed:
                await lease.release()
            await client.close()

    # For tests and probes

    @property
    def depth(self) -> int:
        return self.session.controller.depth if self.session else 0

    @property
    def idle(self) -> bool:
        """Everything that was seen has been acted on, and told."""
        return self.session is not None and self.session.idle

    def clock_leapt(self) -> None:
        """Timers were set by a clock that has leapt. From any thread."""
        if self._loop and self.session:
            self._loop.call_soon_threadsafe(self.session.controller.wake_all)

    def kill(self) -> None:
        """As kill -9 would, without taking the process along: nothing leaves any more. From within the loop."""
        self._killed = True
        if self.session:
            self.session.kill()

    def versions(self) -> dict[tuple[str, str, str], str]:
        """(kind, namespace, name) -> resourceVersion of what the cache holds."""
        if self.session is None:
            return {}
        out = {("Pod", *key): str(version) for key, version in self.session.pods.versions()}
        return out | {(KIND, *key): str(version) for key, version in self.session.controller.jobs.versions()}

    def _jobs(self) -> Iterator[tuple[str, str]]:
        if self.session:
            for key in self.session.controller.jobs:
                job = self.session.controller.jobs.get(key) or {}
                spec, status = _part(job, "spec"), _part(job, "status")
                yield str(spec.get("framework", "")), str(status.get("phase") or "Pending")

    def _reporting(self) -> int:
        return self.session.reports.reporting if self.session else 0

    def _ages(self) -> Iterable[tuple[str, float]]:
        return self.session.ages() if self.session else ()

    def _unhealthy(self) -> str:
        limit = self.settings.watch_timeout + MARGIN_SECONDS
        silent = [f"{name} ({age:.0f} s)" for name, age in self._ages() if age > limit]
        return f"no sign of life of the watch of {', '.join(silent)}" if silent else ""

    def _unready(self) -> str:
        if self._lease and not self._lease.held:
            return ""  # standing by is what it is there for
        return "" if self.session and self.session.synced else "not everything has been listed yet"


class Session:
    """From an empty memory to whatever ends it."""

    def __init__(self, operator: Operator, lease: Lease | None) -> None:
        settings, self._operator, self._lease = operator.settings, operator, lease
        self._settings = settings
        self.client = Client(
            operator.connection,
            concurrency=settings.concurrency,
            timeout=settings.request_timeout,
            retry_timeout=2 * settings.request_timeout,
            fence=(lambda: lease.held) if lease else (lambda: True),
            observe=operator.metrics.requested,
        )
        self.recorder = Recorder(self.client)
        late = 4 * settings.request_timeout
        self.pods = PodCache(lambda key, trouble: self.controller.wake(key, trouble), late)
        executor = Executor(self.client, self.pods, operator._decode_pod)
        self.reports = ReportStore(operator._now, lambda key: self.controller.reported(key))
        self.controller = Controller(
            executor,
            self.recorder,
            self.pods,
            self._platform,
            operator.metrics,
            operator._now,
            self.reports if settings.report_url else None,
        )
        self.reviews = Reviews(self.client, self.pods, self.controller.jobs.get, now=utcnow)
        self.pools = Pools(self.client, settings, self._wake_users)
        self._watches = {f"pods{f' in {ns}' if ns else ''}": self._watch(ns) for ns in settings.namespaces or (None,)}
        self._heard_of_jobs: float | None = None
        self._began: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Everything has been listed."""
        jobs = self.controller.listed_in.issuperset(self._settings.namespaces or (None,))
        return jobs and self.pools.synced.is_set() and all(w.synced.is_set() for w in self._watches.values())

    @property
    def listens(self) -> bool:
        """It acts, and knows all pods and jobs."""
        return (self._lease is None or self._lease.held) and self.synced and not self._operator._killed

    @property
    def idle(self) -> bool:
        return self.synced and self.controller.idle and self.recorder.idle

    def ages(self) -> Iterator[tuple[str, float]]:
        if self._began is None:
            return  # while the CRDs are missing nothing is watched
        yield "jobs", time.monotonic() - (self._heard_of_jobs or self._began)
        yield from ((name, watch.age) for name, watch in self._watches.items())
        if self.pools.watch:
            yield "pools", self.pools.watch.age

    async def run(self, stop: asyncio.Event, stopping: asyncio.Task[bool]) -> None:
        """Returns when told to stop or when the Lease is lost. Raises what ended it otherwise."""
        try:
            if self._lease:
                self._tasks.append(asyncio.create_task(self._lease.keep(), name="lease"))
            installed = asyncio.create_task(self._installed())
            await asyncio.wait([installed, *self._tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not installed.done():
                installed.cancel()
                return
            installed.result()
            self._began = time.monotonic()
            runs = [watch.run() for watch in self._watches.values()] + [self.pools.run(), self.recorder.run()]
            namespaces = self._settings.namespaces or (None,)
            runs += [self._begin(ns, watch) for ns, watch in zip(namespaces, self._watches.values(), strict=True)]
            self._tasks += [asyncio.create_task(run) for run in runs]
            ends: list[asyncio.Task[None] | asyncio.Task[bool]] = [*self._tasks, stopping]
            # kopf ends every task that began after it, so it comes last.
            kopfs = asyncio.create_task(
                job_watch.run(
                    self.client,
                    self._settings,
                    self.controller.seen,
                    self.controller.listed,
                    lambda: self._heard(stop),
                    self._stop,
                )
            )
            done, _ = await asyncio.wait([*ends, kopfs], return_when=asyncio.FIRST_COMPLETED)
            if kopfs in done and kopfs.exception() is None:
                stop.set()  # a signal, which kopf received
            self._stop.set()
            self.controller.close()
            if not self._operator._killed:
                await self.recorder.flush(2.0)
            await asyncio.wait([kopfs], timeout=15.0)
            for task in done - {stopping}:
                if error := task.exception():
                    raise error
        finally:
            self._stop.set()
            self.controller.close()
            self.reviews.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if not self._operator._killed:
                await self.client.close()

    def kill(self) -> None:
        self.client.cut()
        self.controller.close()

    async def _installed(self) -> None:
        """Waits until the API server serves our resource and names its group, which comes a moment later: kopf looks
        there once. Of CRDs that were just deleted both may still be said: kopf's look ends the session then."""
        told = False
        while True:
            with contextlib.suppress(NotFound):
                if PLURAL.encode() in await self.client.get(paths.GROUP_VERSION):
                    if f'"{GROUP}"'.encode() in await self.client.get(paths.GROUPS):
                        return
                    await asyncio.sleep(0.5)
                    continue
            if not told:
                logger.error("the CustomResourceDefinitions are not installed (kubectl apply -f crds/): waiting")
                told = True
            await asyncio.sleep(5.0)

    async def _begin(self, namespace: str | None, watch: Watch[pod_codec.Raw]) -> None:
        """Of each namespace by itself: one that may not be read holds up no other."""
        await watch.synced.wait()
        await self.pools.synced.wait()
        await self.controller.start(namespace)
        logger.info("pods%s are listed: deciding begins", f" in {namespace}" if namespace else "")
        await asyncio.Event().wait()

    def _watch(self, namespace: str | None) -> Watch[pod_codec.Raw]:
        def listed(found: Sequence[pod_codec.Raw], version: int) -> None:
            self.pods.relist([self._operator._decode_pod(raw) for raw in found], version, namespace)

        def changed(raw: pod_codec.Raw, deleted: bool) -> None:
            self.pods.show(self._operator._decode_pod(raw), deleted)

        return Watch(
            self.client,
            paths.collection("Pod", namespace),
            pod_codec.Raw,
            listed=listed,
            changed=changed,
            parameters={"labelSelector": JOB_LABEL},
            renewed_after=self._settings.watch_timeout,
        )

    def _platform(self, job: Job) -> Platform:
        ours = self._settings
        return Platform(
            helper_image=ours.helper_image,
            node_lost_seconds=ours.node_lost_seconds,
            report_url=ours.report_url,
            pool=self.pools.get(job.spec.pool) if job.spec.pool else None,
            pool_refused=self.pools.refused if job.spec.pool else "",
        )

    def _wake_users(self, pool: str | None) -> None:
        """Jobs that name this pool, or any."""
        for key in self.controller.jobs:
            named = _part(self.controller.jobs.get(key) or {}, "spec").get("pool")
            if named and pool in (None, named):
                self.controller.wake(key)

    def _heard(self, stop: asyncio.Event) -> None:
        if self._heard_of_jobs is None:
            # kopf has put its own handlers in place of ours; told by them, it takes 5 s to end.
            _on_signals(stop)
        self._heard_of_jobs = time.monotonic()


def _part(job: Manifest, name: str) -> Manifest:
    """Of a job that no schema has checked, too."""
    part = job.get(name)
    return part if isinstance(part, dict) else {}


def _on_signals(stop: asyncio.Event) -> None:
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
