"""Prometheus metrics of the operator. No label contains the name of a job: a cluster has many.

Each operator has its own registry, because tests run several operators in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from allranks.api.cost import CostStatus, GpuTime
from allranks.api.job import Job
from allranks.api.status import FINISHED, Status, Times
from allranks.core.accounting import cost
from allranks.core.diagnosis import hang_detection
from allranks.core.diagnosis.stragglers import newly_slow
from allranks.frameworks import FRAMEWORKS
from allranks.operator.job_metrics import MAX_NAMESPACES, BoundedLabel, Families, JobSample
from allranks.version import __version__

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
        text = "1 if the CustomResourceDefinitions are older than the operator and do not store all its fields."
        self.crds_outdated = gauge("crds_outdated", text)
        self.leader = gauge("leader", "1 while this replica is the leader.")
        gauge("build_info", "Version of the operator.", "version").labels(__version__).set(1)
        # A series that starts with its first event hides this event from increase() and rate().
        for framework in FRAMEWORKS:
            self.start.labels(framework)
            self.lost.labels(framework)
            self.stragglers.labels(framework)
        for outcome in sorted({*_OUTCOMES.values(), _WRONG}):
            self.reports.labels(outcome)
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

    def reconciled(self, seconds: float) -> None:
        self.reconcile.observe(seconds)

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
            self._charged(namespace, self._pool(job.spec.pool or ""), before.cost or CostStatus(), after.cost)
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

    def _charged(self, namespace: str, pool: str, before: CostStatus, after: CostStatus) -> None:
        currency = self._currency(after.currency or "")
        for kind in cost.KINDS:
            labels = kind, namespace, pool
            self._add(self.gpu_seconds, labels, getattr(after.gpu_seconds, kind) - getattr(before.gpu_seconds, kind))
            if after.spent:
                same = before.spent if before.spent and before.currency == after.currency else GpuTime()
                self._add(self.spent, (*labels, currency), getattr(after.spent, kind) - getattr(same, kind))

    def _add(self, counter: Counter, labels: tuple[str, ...], amount: float) -> None:
        key = (next(iter(counter.describe())).name, *labels)
        amount += self._owed.pop(key, 0.0)
        if amount > 0:
            counter.labels(*labels).inc(amount)
        elif amount < 0:
            self._owed[key] = amount


def _restarts(status: Status) -> int:
    return status.restarts.counted + status.restarts.disruptions


class Sampled(Collector):
    """Metrics that are computed when Prometheus scrapes."""

    def __init__(
        self,
        jobs: Callable[[], Iterable[JobSample]],
        depth: Callable[[], int],
        ages: Callable[[], Iterable[tuple[str, float]]],
        reporting: Callable[[], int] = lambda: 0,
        reports_lost: Callable[[], int] = lambda: 0,
        unreadable: Callable[[], int] = lambda: 0,
        namespaces: BoundedLabel | None = None,
    ) -> None:
        self._families = Families(namespaces)
        self._jobs, self._depth, self._ages = jobs, depth, ages
        self._reporting, self._reports_lost, self._unreadable = reporting, reports_lost, unreadable

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._families.of(self._jobs())
        depth = self._depth()
        yield GaugeMetricFamily("allranks_queue_depth", "Jobs that are queued or being reconciled.", value=depth)
        yield GaugeMetricFamily("allranks_reporting_ranks", "Ranks that report.", value=self._reporting())
        yield GaugeMetricFamily(
            "allranks_unreadable_namespaces",
            "Namespaces that the operator shall serve and cannot read: deleted, or without its Role.",
            value=self._unreadable(),
        )
        lost = self._reports_lost()
        yield GaugeMetricFamily("allranks_jobs_reports_lost", "Jobs whose condition ReportsLost is True.", value=lost)
        ages = GaugeMetricFamily(
            "allranks_watch_age_seconds", "Time since the last activity of a watch.", labels=["resource"]
        )
        for resource, age in self._ages():
            ages.add_metric([resource], age)
        yield ages
