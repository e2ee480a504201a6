"""One session of the operator: watches, caches, controller and kopf, from an empty memory until something ends them."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field

from allranks.api.job import KIND, Job
from allranks.api.pool import PoolSpec
from allranks.core.facts.data_store import CacheUse
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.naming import controller_of
from allranks.core.facts.optional_kinds import OptionalKind
from allranks.kube import compact_jobs, pod_codec, raw_pod
from allranks.kube.auth import Connection
from allranks.kube.client import Client, Transport
from allranks.kube.watch import Watch
from allranks.operator import crd_check, job_watch
from allranks.operator.apply import Executor
from allranks.operator.cache import JobCache, JobKey, PodCache
from allranks.operator.code_reader import CodeReader
from allranks.operator.controller import Controller
from allranks.operator.event_recorder import Recorder
from allranks.operator.leader_election import Lease
from allranks.operator.metrics import GpuCounts, Metrics, Shares
from allranks.operator.node_watch import NodeProblems
from allranks.operator.notifier import Notifier
from allranks.operator.observer import Observer
from allranks.operator.optional_apis import OptionalApis, optional_kinds
from allranks.operator.other_jobs import Contenders, ResumeSources, cache_use
from allranks.operator.outcome_store import OutcomeStore
from allranks.operator.platform_cache import Namespaces, Pools
from allranks.operator.pod_watch import UnlabelledPods, pod_watch
from allranks.operator.ports.report_auth import Reviews, attempt_of
from allranks.operator.receivers import ReceiversFile
from allranks.operator.settings import Settings
from allranks.operator.sweep_controller import SweepController
from allranks.operator.timing import Clock, Timing
from allranks.operator.workqueue import JobQueue
from allranks.shares import Traffic
from allranks.suggest.process import suggest
from allranks.telemetry.processes import ProcessStore
from allranks.telemetry.store import ReportStore

logger = logging.getLogger("allranks.operator")


@dataclass(frozen=True)
class Dependencies:
    """The parts that all sessions of an operator share. Tests replace the clock, the timing and what sends requests."""

    settings: Settings
    connection: Connection
    metrics: Metrics
    timing: Timing = field(default_factory=Timing)
    clock: Clock = field(default_factory=Clock)
    transport: Callable[[Connection], Transport] = Transport
    decode_pod: Callable[[raw_pod.Raw], pod_codec.CachedPod] = pod_codec.to_cached_pod


class Session:
    """`run` once. Built in the order of the data flow: queue, caches, executor, controller."""

    def __init__(self, using: Dependencies, lease: Lease | None) -> None:
        settings, clock, timing = using.settings, using.clock, using.timing
        self._using, self._settings, self._lease = using, settings, lease
        self.client = Client(
            using.connection,
            concurrency=settings.concurrency,
            timeout=settings.request_timeout,
            retry_timeout=2 * settings.request_timeout,
            fence=(lambda: lease.held) if lease else (lambda: True),
            observe=using.metrics.requested,
            transport=using.transport(using.connection),
        )
        self.queue = JobQueue(timing, clock)
        tombstone_ttl = 4 * settings.request_timeout
        self.jobs = JobCache(tombstone_ttl, clock, self._on_job)
        self.pods = PodCache(self.queue.enqueue_pod_event, tombstone_ttl, clock, self.queue.mark_changed)
        self.pools = Pools(self.client, settings, self.enqueue_users)
        self.nodes = NodeProblems(self.client, settings, self.enqueue_node)
        self.namespaces = Namespaces(self.client, settings, self.enqueue_namespace, timing, clock)
        kinds, unusable = optional_kinds(settings)
        self.optional = OptionalApis(self.client, kinds, settings, self.enqueue_owner, timing, unusable)
        self.reports = ReportStore(clock.now, self.queue.enqueue_now, monotonic=clock.monotonic, later=clock.call_later)
        self.processes = ProcessStore(
            clock.now,
            self.queue.enqueue_pod_event,
            count=using.metrics.ordered,
            monotonic=clock.monotonic,
            later=clock.call_later,
        )
        self.reviews = Reviews(self.client, self.pods, self.jobs.get, timing=timing, clock=clock)
        self.outcomes = OutcomeStore(
            self.client, lambda job: attempt_of(self.jobs.get(job) or {}), monotonic=clock.monotonic
        )
        self.code = CodeReader(self.client, self.jobs.get)
        self.traffic = Traffic(clock.monotonic)
        """Pods and sweeps that the watches brought."""
        self.recorder = Recorder(self.client)
        receivers = ReceiversFile(settings.receivers)
        self._namespaces: tuple[str | None, ...] = settings.namespaces or (None,)
        self.sweeps = (
            SweepController(
                self.client,
                self.jobs,
                self.recorder,
                suggest,
                self.queue.enqueue,
                namespaces=self._namespaces,
                renewed_after=settings.watch_timeout,
                timing=timing,
                clock=clock,
                receivers=receivers,
                pool=self._pool,
                received=self.traffic.add,
            )
            if settings.sweeps
            else None
        )
        self.gpus = GpuCounts()
        self.notifier = Notifier(receivers, self.queue.enqueue)
        executor = Executor(self.client, self.pods, using.decode_pod, self.optional.remember, self.optional.forget)
        self.unlabelled = UnlabelledPods(executor, self.recorder, self.jobs, clock)
        self.controller = Controller(
            self.queue,
            self.jobs,
            Observer(
                pods=self.pods,
                platform=self._platform,
                clock=clock,
                reports=self.reports if settings.report_url else None,
                processes=self.processes if settings.report_url else None,
                read_namespace=self.namespaces.prepare,
                confirm_namespace=self.namespaces.confirm,
                gpus=self.gpus,
                optional=self.optional.observe,
                contenders=Contenders(self.queue.enqueue_now),
                sources=ResumeSources(self.client, self.jobs),
                outbox=self.notifier,
                cache_use=self._cache_use,
                node_problems=lambda: self.nodes.by_node,
            ),
            executor,
            self.recorder,
            using.metrics,
            timing=timing,
            clock=clock,
        )
        self.unreadable: set[str | None] = set()
        """Namespaces whose pods the API server does not let us list."""
        self.watches = {
            f"pods{f' in {namespace}' if namespace else ''}": pod_watch(
                self.client,
                namespace,
                self.pods,
                self.unlabelled,
                self.unreadable,
                decode=using.decode_pod,
                renewed_after=settings.watch_timeout,
                received=self.traffic.add,
            )
            for namespace in self._namespaces
        }
        self._jobs_active_at: float | None = None
        self._began: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Return whether all caches are filled. A namespace that cannot be read, for example because it was deleted,
        does not count unless there is no other."""
        listed = self.controller.listed_in
        synced = {ns for ns, watch in self._by_namespace() if ns in listed and watch.synced.is_set()}
        others = all(part.synced.is_set() for part in (self.pools, self.nodes, self.optional))
        return others and bool(synced) and synced | self.unreadable >= set(self._namespaces)

    def _by_namespace(self) -> Iterable[tuple[str | None, Watch[pod_codec.CachedPod]]]:
        return zip(self._namespaces, self.watches.values(), strict=True)

    @property
    def leading(self) -> bool:
        """Return whether this replica is the leader and its caches are filled."""
        return (self._lease is None or self._lease.held) and self.synced

    @property
    def idle(self) -> bool:
        """Return whether everything observed has been handled, including statuses and Events."""
        return self.synced and self.controller.idle and self.recorder.idle and (not self.sweeps or self.sweeps.idle)

    @property
    def shares(self) -> Shares:
        """Return which namespaces use much of what all namespaces share."""
        out = {**self.reports.large, "results": self.outcomes.large, "notifications": self.notifier.large}
        out |= {"supervisors": self.processes.large, "code": self.code.large}
        out["received"] = self.traffic.large
        return {**out, "sweep_notifications": self.sweeps.notifier.large} if self.sweeps else out

    def ages(self) -> Iterator[tuple[str, float]]:
        """Yield the name of each watch, and the seconds since its last activity."""
        if self._began is None:
            return  # Nothing is watched while the CRDs are missing.
        yield "jobs", self._using.clock.monotonic() - (self._jobs_active_at or self._began)
        yield from ((name, watch.age) for name, watch in self.watches.items())
        if self.pools.watch:
            yield "pools", self.pools.watch.age
        if self.nodes.watch:
            yield "nodes", self.nodes.watch.age
        yield from ((name, watch.age) for name, watch in self.optional.watches())
        if self.sweeps:
            yield from ((name, watch.age) for name, watch in self.sweeps.sweeps.watches.items())

    async def run(self, stop: asyncio.Event, stopping: asyncio.Task[bool]) -> None:
        """Return at shutdown or when the Lease is lost. Raises the error that ended the session otherwise."""
        try:
            if self._lease:
                self._tasks.append(asyncio.create_task(self._lease.keep(), name="lease"))
            if not await self._crds_installed(stopping):
                return
            self._began = self._using.clock.monotonic()
            runs = [watch.run() for watch in self.watches.values()]
            runs += [self.pools.run(), self.nodes.run(), self.optional.run(), self.recorder.run()]
            runs.append(self.controller.run())
            runs += [self._begin(ns, watch) for ns, watch in self._by_namespace()]
            runs.append(self.namespaces.run(lambda: {namespace for namespace, _ in self.jobs}))
            if self.sweeps:
                runs.append(self.sweeps.run())
            if None in self._namespaces:  # Roles in single namespaces cannot have the right to read CRDs
                runs.append(crd_check.run(self.client, self._using.metrics, self._using.timing.crd_check))
            self._tasks += [asyncio.create_task(run) for run in runs]
            ends: list[asyncio.Task[None] | asyncio.Task[bool]] = [*self._tasks, stopping]
            # kopf cancels every task that was started after it, so it starts last.
            kopf = asyncio.create_task(self._watch_jobs(stop))
            done, _ = await asyncio.wait([*ends, kopf], return_when=asyncio.FIRST_COMPLETED)
            if kopf in done and kopf.exception() is None:
                stop.set()  # kopf received a signal
            self._stop.set()
            await self.controller.close()
            await self.recorder.flush(self._using.timing.events_flush)
            await asyncio.wait([kopf], timeout=self._using.timing.kopf_shutdown)
            for task in done - {stopping}:
                if error := task.exception():
                    raise error
        finally:
            self._stop.set()
            await self.controller.close()
            if self.sweeps:
                await self.sweeps.close()
            self.processes.close()
            self.reviews.close()
            self.outcomes.close()
            self.unlabelled.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.notifier.close()
            if self.sweeps:
                await self.sweeps.notifier.close()
            await self.client.close()

    async def _crds_installed(self, stopping: asyncio.Task[bool]) -> bool:
        """Wait for the CRDs. Return False if the session ended before."""
        installed = asyncio.create_task(
            crd_check.wait_for_crds(self.client, self._using.timing.crd_poll), name="wait for the CRDs"
        )
        await asyncio.wait([installed, *self._tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not installed.done():
            installed.cancel()
            return False
        installed.result()
        return True

    async def _begin(self, namespace: str | None, watch: Watch[pod_codec.CachedPod]) -> None:
        """Run per namespace, so that an unreadable namespace does not block the others."""
        await watch.synced.wait()
        await self.pools.synced.wait()
        await self.nodes.synced.wait()
        await self.optional.synced.wait()
        self.controller.start(namespace)
        logger.info("pod cache synced%s; starting reconciliation", f" in {namespace}" if namespace else "")
        await asyncio.Event().wait()

    async def _watch_jobs(self, stop: asyncio.Event) -> None:
        def alive() -> None:
            if self._jobs_active_at is None:
                # kopf has replaced our signal handlers by its own, with which it takes 5 s to end.
                stop_on_signals(stop)
            self._jobs_active_at = self._using.clock.monotonic()

        controller = self.controller

        def listed(present: Set[JobKey], version: int, namespace: str | None) -> None:
            controller.on_job_list(present, version, namespace)
            if self.sweeps:
                self.sweeps.open(namespace)

        await job_watch.run(self.client, self._settings, controller.on_job_event, listed, alive, self._stop)

    def _on_job(self, job: Manifest) -> None:
        if self.sweeps:
            self.sweeps.on_job(job)

    def _platform(self, job: Job) -> Platform:
        settings, policy = self._settings, self.namespaces.policy(job.namespace)
        pools = policy.pools_of(job) - {None}
        return Platform(
            helper_image=settings.helper_image,
            helper_pull_secrets=settings.helper_pull_secrets,
            node_lost_seconds=settings.node_lost_seconds,
            data=settings.data,
            report_url=settings.report_url,
            network_policies=settings.network_policies,
            disruption_budgets=settings.disruption_budgets,
            pools={name: pool for name in pools if name and (pool := self.pools.get(name))},
            pool_refused=self.pools.refused if pools else "",
            notifies=self.notifier.for_all(job.namespace),
            policy=policy,
            coscheduling_scheduler=settings.coscheduling_scheduler,
            namespace_uid=self.namespaces.uid(job.namespace),
            reserved_accounts=settings.reserved_accounts_of(job.namespace),
            namespace_labels=self.namespaces.labels(job.namespace),
            why_restricted=self.namespaces.why_restricted(job.namespace),
        )

    def _cache_use(self, namespace: str) -> CacheUse | None:
        return cache_use((self.jobs.get(key) for key in self.jobs), namespace)

    def _pool(self, namespace: str, named: str | None) -> PoolSpec | None:
        """Return the named pool, or the default of the namespace."""
        pool = named or self.namespaces.policy(namespace).default_pool
        return self.pools.get(pool) if pool else None

    def enqueue_users(self, pool: str | None) -> None:
        """Enqueue the jobs that use this pool; None means any pool."""
        for key in self.jobs:
            spec = compact_jobs.spec_of(self.jobs.get(key) or {})
            used = {spec.pool or self.namespaces.policy(key[0]).default_pool, *spec.role_pools}
            if pool in used or (pool is None and used != {None}):
                self.queue.enqueue(key)

    def enqueue_node(self, node: str) -> None:
        """Enqueue the jobs with pods on a node whose health changed."""
        for cached in self.pods:
            if cached.pod.node == node:
                for name in cached.jobs:
                    self.queue.enqueue((cached.namespace, name))

    def enqueue_owner(self, kind: OptionalKind, manifest: Manifest | None) -> None:
        """Enqueue the job that controls an object of an optional kind, or all jobs if it has no controller."""
        if manifest and (owner := controller_of(manifest)):
            key = (manifest["metadata"].get("namespace", ""), owner.get("name", ""))
            if owner.get("kind") == KIND and self.jobs.get(key):
                self.queue.enqueue(key)
            return
        for key in self.jobs:
            if manifest is None or not kind.namespaced or key[0] == manifest["metadata"].get("namespace"):
                self.queue.enqueue(key)

    def enqueue_namespace(self, namespace: str) -> None:
        """Enqueue the jobs of a namespace whose labels or policy changed."""
        for key in self.jobs:
            if key[0] == namespace:
                self.queue.enqueue(key)


def stop_on_signals(stop: asyncio.Event) -> None:
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
