"""Selects the backend that places an attempt's pods together. The choice is persisted with the attempt."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from allranks.api.job import Job
from allranks.api.scheduling import GangStatus
from allranks.api.status import FINISHED, Status
from allranks.core.facts import pod_template, pool_template
from allranks.core.facts.model import Manifest, Plan, Platform
from allranks.core.facts.optional_kinds import GANGS, OptionalObjects
from allranks.core.objects.gangs import members
from allranks.core.objects.gangs.backends import BACKENDS, DEFAULT_SCHEDULER, requested
from allranks.core.objects.gangs.base import Backend
from allranks.core.snapshot import Snapshot
from allranks.text import joined

NOT_SERVED = "GangBackendNotServed"
"""Reason of the condition of a job that waits for its backend."""


def choose(job: Job, status: Status, platform: Platform, optional: OptionalObjects) -> GangStatus | None:
    """Return the backend of a new attempt, whose sizes are in `status`; None if pods are placed one by one, or wait."""
    if platform.local or job.spec.scheduling.gang == "None":
        return None
    if backend := requested(job):
        return _status(backend, job, status, optional) if optional.api_version(backend.kind) else None
    if not optional.versions or sum(members.min_by_role(job, status).values()) < 2:
        return None
    templates = list(pod_template.role_templates(job, platform).values())
    if any(members.own_gang(template) for template in templates):
        return None  # the author takes care of it
    suitable = backends_of(scheduler_names(templates), platform)
    backend = next((backend for backend in suitable if optional.api_version(backend.kind)), None)
    return _status(backend, job, status, optional) if backend else None


def scheduler_names(templates: Iterable[Manifest]) -> set[str]:
    """Return the names of the schedulers of pods; empty text for the default one."""
    return {template["spec"].get("schedulerName") or "" for template in templates}


def backends_of(schedulers: set[str], platform: Platform) -> list[Backend]:
    """Return the backends that `Auto` may select for pods of these schedulers, the first choice first."""

    def suits(backend: Backend) -> bool:
        names = (platform.coscheduling_scheduler,) if backend.name == "Coscheduling" else backend.scheduler_names
        return schedulers <= set(names)

    return [
        backend for backend in (BACKENDS["Volcano"], BACKENDS["Coscheduling"], BACKENDS["Native"]) if suits(backend)
    ]


def mismatch(templates: Collection[Manifest], platform: Platform) -> str:
    """Return why no backend suits the schedulers that the pods name; empty if one does."""
    names = scheduler_names(templates)
    if backends_of(names, platform):
        return ""
    if len(names) > 1:
        listed = joined(sorted(name or DEFAULT_SCHEDULER for name in names), "and")
        return f"the roles have different schedulers ({listed}), so no gang scheduler places all pods together"
    setting = "the chart's value gangs.coschedulingScheduler"
    return f"pods of scheduler {names.pop()} are placed one by one, unless {setting} names it"


def without_gang(job: Job, status: Status, platform: Platform, optional: OptionalObjects) -> str:
    """Return why `Auto` uses no gang scheduler of the cluster for the schedulers that the pods name; empty if they are
    not the reason."""
    if platform.local or job.spec.scheduling.gang not in (None, "Auto"):
        return ""
    if not any(map(optional.api_version, GANGS)) or sum(members.min_by_role(job, status).values()) < 2:
        return ""
    if pool_template.unavailable(job, platform):
        return ""
    templates = pod_template.role_templates(job, platform).values()
    return "" if any(map(members.own_gang, templates)) else mismatch(templates, platform)


def _status(backend: Backend, job: Job, status: Status, optional: OptionalObjects) -> GangStatus:
    makes_group = backend.name != "Kueue"
    return GangStatus(
        backend=backend.name,
        api_version=optional.api_version(backend.kind) if makes_group else None,
        min_count=sum(members.min_by_role(job, status).values()),
    )


def unavailable(job: Job, status: Status, platform: Platform, optional: OptionalObjects) -> tuple[str, str] | None:
    """Return (reason, message) if the job's pods wait for a backend that is not there, else None."""
    backend = requested(job)
    if platform.local or backend is None or status.gang or optional.api_version(backend.kind):
        return None
    problem = optional.problems.get(backend.kind.id)
    if problem is None:
        return NOT_SERVED, f"scheduling.gang is {backend.name}, and this operator does not use it (setting `gangs`)"
    missing = "does not serve" in problem and "operator" not in problem
    cure = f": {backend.cure}, or make a new job without it" if missing else ""
    return NOT_SERVED, f"scheduling.gang is {backend.name}, but {problem}{cure}"


def with_backend(snapshot: Snapshot, plan: Plan) -> Plan:
    """Add the backend that places the pods together to a decision that begins an attempt."""
    o, status = snapshot.observed, plan.next
    if not plan.write_ahead or status is None or status.phase in FINISHED:
        return plan
    if status.attempt_time in (None, snapshot.current.attempt_time) or status.pods_of_attempt is not None:
        return plan
    chosen = choose(o.job, status, o.platform, o.optional)
    return replace(plan, next=replace(status, gang=chosen)) if chosen else plan
