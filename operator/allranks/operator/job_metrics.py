"""Metrics of the jobs at the time of a scrape, by namespace: phases, what they wait for, their GPUs.

No label has the name of a job, and each label has a bounded number of values: authors choose namespaces, pools and
reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily

from allranks.api.status import FINISHED
from allranks.core.facts import limits, pod_template, pool_template
from allranks.core.facts.model import Manifest, Observed
from allranks.kube import compact_jobs
from allranks.operator.cache import JobKey

MAX_NAMESPACES, MAX_REASONS = 1000, 50
OTHER = "(other)"
"""Label value of everything beyond these limits."""
_WAITS = frozenset({"Queued", "Pending", "Restarting"})


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
    pool: str = ""
    gpus: int = 0
    """GPUs of all pods of the attempt."""
    running_gpus: int = 0
    """GPUs of those pods that run."""


class Families:
    """Builds the metrics from samples."""

    def __init__(self, namespaces: BoundedLabel | None = None) -> None:
        self._namespace, self._reason = namespaces or BoundedLabel(MAX_NAMESPACES), BoundedLabel(MAX_REASONS)

    def of(self, samples: Iterable[JobSample]) -> Iterator[GaugeMetricFamily]:
        phases, pending, gpus = Counter[tuple[str, ...]](), Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        longest: dict[tuple[str, ...], float] = {}
        for job in samples:
            namespace = self._namespace(job.namespace)
            phases[namespace, job.framework, job.phase] += 1
            if job.phase in _WAITS:
                waits = namespace, self._reason(job.reason or "PodsPending")
                pending[waits] += 1
                longest[waits] = max(longest.get(waits, 0.0), job.attempt_seconds)
            if job.gpus:
                gpus[namespace, job.pool, "requested"] += job.gpus
                gpus[namespace, job.pool, "running"] += job.running_gpus
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
    """What the numbers depend on."""
    pool: str
    per_pod: Mapping[str, int]
    """Role -> GPUs of one pod."""


class GpuCounts:
    """GPUs per pod of each job that is not finished, from its last reconcile: the spec is decoded only then."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _Gpus] = {}

    def note(self, key: JobKey, observed: Observed) -> None:
        """Note that a job was observed. Costs as much as the pod templates only if the spec or the pool changed."""
        platform, metadata = observed.platform, observed.job.metadata
        if observed.persisted.phase in FINISHED or observed.persisted.start_time is None:
            self._jobs.pop(key, None)
            return
        basis = metadata.uid, metadata.generation, platform.pool, platform.policy
        before = self._jobs.get(key)
        if before is not None and before.basis == basis:
            return
        job = limits.with_defaults(observed.job, platform.policy)
        if pool_template.unavailable(job, platform):
            self._jobs.pop(key, None)
            return
        templates = pod_template.role_templates(job, platform)
        per_pod = {role: pod_template.gpus(job, template, platform) for role, template in templates.items()}
        self._jobs[key] = _Gpus(basis, job.spec.pool or "", {role: count for role, count in per_pod.items() if count})

    def forget(self, key: JobKey) -> None:
        self._jobs.pop(key, None)

    def samples(
        self, jobs: Iterable[JobKey], read: Callable[[JobKey], Manifest | None], now: datetime
    ) -> Iterator[JobSample]:
        """Yield a sample of each job; `read` returns its manifest."""
        for key in jobs:
            manifest = read(key) or {}
            status = _dict(manifest, "status")
            phase = str(status.get("phase") or "Pending")
            gpus = self._jobs.get(key) if phase in (*_WAITS, "Running") else None
            roles = _dict(status, "roles")
            since = status.get("attemptTime") or _dict(manifest, "metadata").get("creationTimestamp")
            yield JobSample(
                key[0],
                compact_jobs.spec_of(manifest).framework,
                phase,
                _reason(status),
                _seconds_since(since, now) if phase in _WAITS else 0.0,
                gpus.pool if gpus else "",
                sum(_number(roles, role, "desired") * count for role, count in gpus.per_pod.items()) if gpus else 0,
                sum(_running(roles, role) * count for role, count in gpus.per_pod.items()) if gpus else 0,
            )


# No schema has validated the status of a job in the cache.


def _dict(value: Any, name: str) -> Manifest:
    part = value.get(name) if isinstance(value, dict) else None
    return part if isinstance(part, dict) else {}


def _reason(status: Manifest) -> str:
    conditions = status.get("conditions")
    entries = conditions if isinstance(conditions, list) else []
    return next((str(c.get("reason") or "") for c in entries if isinstance(c, dict) and c.get("type") == "Running"), "")


def _number(roles: Manifest, role: str, name: str) -> int:
    number = _dict(roles, role).get(name)
    return number if isinstance(number, int) else 0


def _running(roles: Manifest, role: str) -> int:
    """`ready` includes pods that have succeeded, whose GPUs are free again."""
    return max(0, _number(roles, role, "ready") - _number(roles, role, "succeeded"))


def _seconds_since(moment: Any, now: datetime) -> float:
    try:
        return max(0.0, (now - datetime.fromisoformat(str(moment))).total_seconds())
    except (ValueError, TypeError):
        return 0.0
