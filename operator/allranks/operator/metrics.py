"""Prometheus metrics of the operator: what happened (`Metrics`), and the jobs at the time of a scrape (`Sampled`).

No label has the name of a job, and each label has a bounded number of values: authors choose namespaces, pools and
reasons.

Each operator has its own registry, because tests run several operators in one process.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import nlargest
from typing import Any, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from allranks.api.cost import CostStatus, GpuTime, RoleCost
from allranks.api.job import Job
from allranks.api.status import FINISHED, Status, Times
from allranks.core.accounting import cost
from allranks.core.diagnosis import hang_detection
from allranks.core.diagnosis.stragglers import newly_slow
from allranks.core.facts import limits, pod_template, pool_template
from allranks.core.facts.model import Manifest, Observed
from allranks.core.facts.processes import Action
from allranks.frameworks import FRAMEWORKS
from allranks.kube import compact_jobs
from allranks.operator.cache import JobKey
from allranks.version import __version__

MAX_NAMESPACES, MAX_REASONS = 1000, 50
OTHER = "(other)"
"""Label value of everything beyond these limits."""
_WAITS = frozenset({"Queued", "Pending", "Restarting"})
_NOT_COUNTED = FINISHED | {"Suspended"}
"""Phases of jobs whose GPUs no metric has."""


class BoundedLabel:
    """The first `limit` values keep their name; all later ones share `OTHER`. For as long as the process lives."""

    def __init__(self, limit: int) -> None:
        self._limit, self._values = limit, set[str]()

    def __call__(self, value: str) -> str:
        if value not in self._values:
            if len(self._values) >= self._limit:
                return OTHER
            self._values.add(value)
        return value


@dataclass(frozen=True, slots=True)
class JobSample:
    """One job at the time of a scrape."""

    namespace: str
    framework: str
    phase: str
    reason: str = ""
    """Reason of the condition Running."""
    attempt_seconds: float = 0.0
    """Time since the current attempt was created."""
    gpus: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Pool -> GPUs of all pods of the attempt, and of those pods that run."""


class Families:
    """Builds the metrics from samples."""

    def __init__(self, namespaces: BoundedLabel | None = None) -> None:
        self._namespace, self._reason = namespaces or BoundedLabel(MAX_NAMESPACES), BoundedLabel(MAX_REASONS)

    def build(self, samples: Iterable[JobSample]) -> Iterator[GaugeMetricFamily]:
        phases = collections.Counter[tuple[str, ...]]()
        pending = collections.Counter[tuple[str, ...]]()
        gpus = collections.Counter[tuple[str, ...]]()
        longest: dict[tuple[str, ...], float] = {}
        for job in samples:
            namespace = self._namespace(job.namespace)
            phases[namespace, job.framework, job.phase] += 1
            if job.phase in _WAITS:
                waits = namespace, self._reason(job.reason or "PodsPending")
                pending[waits] += 1
                longest[waits] = max(longest.get(waits, 0.0), job.attempt_seconds)
            for pool, (requested, running) in job.gpus.items():
                gpus[namespace, pool, "requested"] += requested
                gpus[namespace, pool, "running"] += running
        yield _family("allranks_jobs", "Jobs by namespace, framework and phase.", "framework phase", phases)
        yield _family("allranks_pending_jobs", "Jobs that wait for pods, by what they wait for.", "reason", pending)
        text = "Longest time that one of these jobs has waited in its current attempt."
        yield _family("allranks_pending_seconds", text, "reason", longest)
        text = "GPUs of jobs that are neither finished nor suspended: requested by their pods, and of running pods."
        yield _family("allranks_gpus", text, "pool state", gpus)


def _family(name: str, text: str, labels: str, values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["job_namespace", *labels.split()])
    for key, number in sorted(values.items()):
        family.add_metric(list(key), number)
    return family


@dataclass(frozen=True, slots=True)
class _Gpus:
    basis: tuple[Any, ...]
    """The values on which the numbers depend."""
    per_pod: Mapping[str, tuple[str, int]]
    """Role -> its pool, and the GPUs of one pod."""


class GpuCounts:
    """GPUs per pod of each job that is neither finished nor suspended, from its last reconcile.

    The spec is decoded only then.
    """

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _Gpus] = {}

    def note(self, key: JobKey, observed: Observed) -> None:
        """Note that a job was observed. Costs as much as the pod templates only if the spec or the pool changed."""
        platform, metadata = observed.platform, observed.job.metadata
        if observed.persisted.phase in _NOT_COUNTED or observed.persisted.start_time is None:
            self._jobs.pop(key, None)
            return
        basis = metadata.uid, metadata.generation, platform.pools, platform.policy
        before = self._jobs.get(key)
        if before is not None and before.basis == basis:
            return
        job = limits.with_defaults(observed.job, platform.policy)
        if pool_template.unavailable(job, platform):
            self._jobs.pop(key, None)
            return
        templates = pod_template.role_templates(job, platform)
        per_pod = {role: pod_template.gpus(job, role, template, platform) for role, template in templates.items()}
        with_gpus = {role: (job.spec.pool_of(role) or "", count) for role, count in per_pod.items() if count}
        self._jobs[key] = _Gpus(basis, with_gpus)

    def forget(self, key: JobKey) -> None:
        self._jobs.pop(key, None)

    def samples(
        self, jobs: Iterable[JobKey], read: Callable[[JobKey], Manifest | None], now: datetime
    ) -> Iterator[JobSample]:
        """Yield a sample of each job; `read` returns its manifest."""
        for key in jobs:
            manifest = read(key) or {}
            status = dict_field(manifest, "status")
            phase = str(status.get("phase") or "Pending")
            gpus = self._jobs.get(key) if phase in (*_WAITS, "Running") else None
            roles = dict_field(status, "roles")
            by_pool: dict[str, tuple[int, int]] = {}
            for role, (pool, count) in gpus.per_pod.items() if gpus else ():
                requested, running = by_pool.get(pool, (0, 0))
                more = _number(roles, role, "desired") * count, _running(roles, role) * count
                by_pool[pool] = requested + more[0], running + more[1]
            since = status.get("attemptTime") or dict_field(manifest, "metadata").get("creationTimestamp")
            yield JobSample(
                key[0],
                compact_jobs.spec_of(manifest).framework,
                phase,
                _reason(status),
                _seconds_since(since, now) if phase in _WAITS else 0.0,
                {pool: numbers for pool, numbers in by_pool.items() if numbers[0]},
            )


def dict_field(value: Any, name: str) -> Manifest:
    """Return a field that no schema has validated; empty if it is not an object."""
    part = value.get(name) if isinstance(value, dict) else None
    return part if isinstance(part, dict) else {}


def _reason(status: Manifest) -> str:
    conditions = status.get("conditions")
    entries = conditions if isinstance(conditions, list) else []
    return next((str(c.get("reason") or "") for c in entries if isinstance(c, dict) and c.get("type") == "Running"), "")


def _number(roles: Manifest, role: str, name: str) -> int:
    number = dict_field(roles, role).get(name)
    return number if isinstance(number, int) else 0


def _running(roles: Manifest, role: str) -> int:
    """Return the number of running pods. `ready` includes pods that have succeeded, whose GPUs are free again."""
    return max(0, _number(roles, role, "ready") - _number(roles, role, "succeeded"))


def _seconds_since(moment: Any, now: datetime) -> float:
    try:
        return max(0.0, (now - datetime.fromisoformat(str(moment))).total_seconds())
    except (ValueError, TypeError):
        return 0.0


_START_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_API_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_OUTCOMES = {200: "taken", 401: "denied", 403: "denied", 409: "over", 429: "limited", 500: "failed", 503: "later"}
"""HTTP code -> outcome of a report. over: its attempt has ended; later: the sender retries, maybe with another
replica."""
_WRONG = "wrong"
MAX_POOLS, MAX_CURRENCIES = 100, 10
_RECONCILE_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class Metrics:
    """Counters and histograms. `Sampled` reads the current values (jobs, queue, age of watches) when it is scraped."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, labels: str) -> Counter:
            return Counter(f"allranks_{name}", text, labels.split(), registry=registry)

        def histogram(name: str, text: str, labels: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"allranks_{name}", text, labels.split(), buckets=buckets, registry=registry)

        def gauge(name: str, text: str, labels: str = "") -> Gauge:
            return Gauge(f"allranks_{name}", text, labels.split(), registry=registry)

        text = "Restarts of jobs and of single replicas by the reason of their root cause."
        self.restarts = counter("restarts", text, "framework reason counted")
        text = "Time from the decision to start an attempt until all its pods run."
        self.start = histogram("job_start_seconds", text, "framework", _START_SECONDS)
        self.lost = counter("lost_seconds", "Time from the end of an attempt until the next one runs.", "framework")
        text = "Time of jobs by kind: queued, starting, productive, lost, uploading."
        self.seconds = counter("job_seconds", text, "kind job_namespace framework")
        text = "GPU time of jobs by kind: waiting, starting, productive, lost."
        self.gpu_seconds = counter("gpu_seconds", text, "kind job_namespace pool")
        text = "Price of this GPU time, at the prices of the pools."
        self.spent = counter("gpu_cost", text, "kind job_namespace pool currency")
        self.stragglers = counter("stragglers", "Ranks that were detected as slower than their peers.", "framework")
        text = "Jobs that finished, by phase: Succeeded or Failed."
        self.finished = counter("jobs_finished", text, "job_namespace framework phase")
        self.hangs = counter("hangs", "Hangs that were detected, whatever the action.", "job_namespace framework")
        self.reconcile = histogram("reconcile_seconds", "Time to decide about one job.", "", _RECONCILE_SECONDS)
        self.requests = counter("api_requests", "Requests to the API server by verb and HTTP code.", "verb code")
        text = "Latency of requests to the API server."
        self.latency = histogram("api_request_seconds", text, "verb", _API_SECONDS)
        self.reports = counter("reports", "Reports of ranks by outcome.", "outcome")
        text = "Orders to supervisors in pods, each counted once for each pod: Stop, Start, Exit."
        self.orders = counter("orders", text, "action")
        text = "1 if the CustomResourceDefinitions are older than the operator and do not store all its fields."
        self.crds_outdated = gauge("crds_outdated", text)
        text = "Jobs whose status someone else changed several times, such as a second operator for their namespace."
        self.status_contested = counter("status_contested", text, "job_namespace")
        self.leader = gauge("leader", "1 while this replica is the leader.")
        gauge("build_info", "Version of the operator.", "version").labels(__version__).set(1)
        # A series that starts with its first event hides this event from increase() and rate().
        for framework in FRAMEWORKS:
            self.start.labels(framework)
            self.lost.labels(framework)
            self.stragglers.labels(framework)
        for outcome in sorted({*_OUTCOMES.values(), _WRONG}):
            self.reports.labels(outcome)
        for action in get_args(Action):
            self.orders.labels(action)
        self.namespaces = BoundedLabel(MAX_NAMESPACES)
        self._pool, self._currency = BoundedLabel(MAX_POOLS), BoundedLabel(MAX_CURRENCIES)
        self._owed: dict[tuple[str, ...], float] = {}
        """Seconds that were counted too early, such as work that a restart discarded. Counters never decrease, so later
        increments are reduced."""

    def requested(self, verb: str, code: str, seconds: float) -> None:
        self.requests.labels(verb, code).inc()
        if verb != "WATCH":
            self.latency.labels(verb).observe(seconds)

    def field_dropped(self) -> None:
        """Note that the API server did not store a field of a status."""
        self.crds_outdated.set(1)

    def contested(self, namespace: str) -> None:
        """Note that someone else writes the status of a job."""
        self.status_contested.labels(self.namespaces(namespace)).inc()

    def reconciled(self, seconds: float) -> None:
        self.reconcile.observe(seconds)

    def ordered(self, action: str) -> None:
        """Count an order that the supervisor in a pod was given."""
        self.orders.labels(action).inc()

    def reported(self, code: int, count: int = 1) -> None:
        """Count reports by the HTTP code of their response."""
        self.reports.labels(_OUTCOMES.get(code, _WRONG)).inc(count)

    def wrote(self, job: Job, before: Status, after: Status) -> None:
        """Count the difference between two persisted statuses."""
        framework = job.spec.framework
        counted = after.restarts.counted > before.restarts.counted
        # A corrected root cause is not another restart.
        corrected = _restarts(after) == _restarts(before)
        for reason, count in after.restarts.by_reason.items():
            if (more := count - before.restarts.by_reason.get(reason, 0)) > 0 and not corrected:
                self.restarts.labels(framework, reason, str(counted).lower()).inc(more)
        if after.running_time and before.running_time is None and after.attempt_time:
            seconds = max(0.0, (after.running_time - after.attempt_time).total_seconds())
            self.start.labels(framework).observe(seconds)
            if after.attempt_failure:
                self.lost.labels(framework).inc(seconds)
        if slow := len(newly_slow(before.progress, after.progress)):
            self.stragglers.labels(framework).inc(slow)
        namespace = self.namespaces(job.namespace)
        self._spent(namespace, framework, before.times, after.times)
        if after.cost:
            self._charged(namespace, job, before.cost or CostStatus(), after.cost)
        self._ended(namespace, framework, before, after)

    def _ended(self, namespace: str, framework: str, before: Status, after: Status) -> None:
        hangs = self.hangs.labels(namespace, framework)  # a series exists before its first event, see above
        finished = {phase: self.finished.labels(namespace, framework, phase) for phase in sorted(FINISHED)}
        if after.phase in FINISHED and before.phase not in FINISHED:
            finished[after.phase].inc()
        failure = after.last_failure
        if failure and failure != before.last_failure and failure.reason == hang_detection.REASON:
            hangs.inc()

    def _spent(self, namespace: str, framework: str, before: Times | None, after: Times | None) -> None:
        for kind in ("queued", "starting", "productive", "lost", "uploading") if after else ():
            if (seconds := getattr(after, kind)) is not None:
                earlier = (getattr(before, kind) if before else None) or 0.0
                self._add(self.seconds, (kind, namespace, framework), seconds - earlier)

    def _charged(self, namespace: str, job: Job, before: CostStatus, after: CostStatus) -> None:
        currency, earlier = self._currency(after.currency or ""), cost.parts(before)
        only = next(iter(job.spec.pools.values()), "")
        for name, part in cost.parts(after).items():
            old, pool = earlier.get(name) or RoleCost(), self._pool(part.pool or "" if name else only)
            for kind in cost.KINDS:
                labels = kind, namespace, pool
                self._add(self.gpu_seconds, labels, getattr(part.gpu_seconds, kind) - getattr(old.gpu_seconds, kind))
                if part.spent:
                    same = old.spent if old.spent and before.currency == after.currency else GpuTime()
                    self._add(self.spent, (*labels, currency), getattr(part.spent, kind) - getattr(same, kind))

    def _add(self, counter: Counter, labels: tuple[str, ...], amount: float) -> None:
        key = (next(iter(counter.describe())).name, *labels)
        amount += self._owed.pop(key, 0.0)
        if amount > 0:
            counter.labels(*labels).inc(amount)
        elif amount < 0:
            self._owed[key] = amount


def _restarts(status: Status) -> int:
    return status.restarts.counted + status.restarts.disruptions


Shares = Mapping[str, Mapping[str, float]]
"""Resource that namespaces share -> namespace that uses more than a quarter of it -> the part that it uses."""


def share_gauge(name: str, shares: Shares, label: Callable[[str], str] = str) -> GaugeMetricFamily:
    """Return the gauge that says which namespaces use much of what all share. At most three use more than a quarter."""
    text = "Part of a resource that all namespaces share, of each namespace that uses more than a quarter of it."
    family = GaugeMetricFamily(name, text, labels=["resource", "job_namespace"])
    for resource, namespaces in shares.items():
        for namespace, part in namespaces.items():
            family.add_metric([resource, label(namespace)], part)
    return family


MOST_NODES = 100
"""Number of nodes that have a series: the ones that most jobs avoid."""


class HardwareSample(NamedTuple):
    """What the operator knows about hardware at the moment."""

    unhealthy_nodes: int
    unhealthy_jobs: int
    avoiding_jobs: Mapping[str, int]
    """Node -> unfinished jobs that avoid it."""


def hardware_gauges(sample: HardwareSample) -> Iterator[GaugeMetricFamily]:
    """Yield the metrics of nodes."""
    nodes, jobs = sample.unhealthy_nodes, sample.unhealthy_jobs
    yield GaugeMetricFamily("allranks_unhealthy_nodes", "Nodes that monitors report as unhealthy.", value=nodes)
    text = "Jobs whose condition HardwareUnhealthy is True."
    yield GaugeMetricFamily("allranks_jobs_hardware_unhealthy", text, value=jobs)
    text = f"Unfinished jobs that avoid a node, of the {MOST_NODES} nodes that most jobs avoid."
    avoiding = GaugeMetricFamily("allranks_node_avoiding_jobs", text, labels=["node"])
    for node, count in nlargest(MOST_NODES, sample.avoiding_jobs.items(), key=lambda item: item[1]):
        avoiding.add_metric([node], count)
    yield avoiding


class Sampled(Collector):
    """Metrics that are computed when Prometheus scrapes."""

    def __init__(
        self,
        jobs: Callable[[], Iterable[JobSample]],
        depth: Callable[[], int],
        ages: Callable[[], Iterable[tuple[str, float]]],
        reporting: Callable[[], int] = lambda: 0,
        reports_lost: Callable[[], int] = lambda: 0,
        supervisors: Callable[[], int] = lambda: 0,
        unreadable: Callable[[], int] = lambda: 0,
        namespaces: BoundedLabel | None = None,
        shares: Callable[[], Shares] = dict,
        hardware: Callable[[], HardwareSample] = lambda: HardwareSample(0, 0, {}),
        overdue: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`overdue`: namespace -> jobs whose condition CheckpointOverdue is True."""
        self._families, self._label = Families(namespaces), namespaces or str
        self._shares, self._hardware, self._overdue = shares, hardware, overdue
        self._jobs, self._depth, self._ages = jobs, depth, ages
        self._reporting, self._reports_lost, self._unreadable = reporting, reports_lost, unreadable
        self._supervisors = supervisors

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._families.build(self._jobs())
        depth = self._depth()
        yield GaugeMetricFamily("allranks_queue_depth", "Jobs that are queued or being reconciled.", value=depth)
        yield GaugeMetricFamily("allranks_reporting_ranks", "Ranks that report.", value=self._reporting())
        text = "Pods whose program can restart in them: their supervisor waits for orders."
        yield GaugeMetricFamily("allranks_connected_supervisors", text, value=self._supervisors())
        yield GaugeMetricFamily(
            "allranks_unreadable_namespaces",
            "Namespaces that the operator shall serve and cannot read: deleted, or without its Role.",
            value=self._unreadable(),
        )
        yield share_gauge("allranks_shared_resource_ratio", self._shares(), self._label)
        lost = self._reports_lost()
        yield GaugeMetricFamily("allranks_jobs_reports_lost", "Jobs whose condition ReportsLost is True.", value=lost)
        overdue = collections.Counter[tuple[str, ...]]()
        for namespace, count in self._overdue().items():
            overdue[(self._label(namespace),)] += count
        text = "Jobs whose condition CheckpointOverdue is True."
        yield _family("allranks_jobs_checkpoint_overdue", text, "", overdue)
        yield from hardware_gauges(self._hardware())
        ages = GaugeMetricFamily(
            "allranks_watch_age_seconds", "Time since the last activity of a watch.", labels=["resource"]
        )
        for resource, age in self._ages():
            ages.add_metric([resource], age)
        yield ages
