"""Selects the backend that places an attempt's pods together. The choice is persisted with the attempt."""

from __future__ import annotations

from allranks.api.job import Job
from allranks.api.scheduling import GangStatus
from allranks.api.status import Status
from allranks.core.gangs import members
from allranks.core.gangs.base import Backend
from allranks.core.gangs.registry import BACKENDS, requested
from allranks.core.manifests import pod_template
from allranks.core.model import Platform
from allranks.core.optional_kinds import OptionalObjects

NOT_SERVED = "GangBackendNotServed"
"""Reason of the condition of a job that waits for its backend."""


def choose(job: Job, status: Status, platform: Platform, optional: OptionalObjects) -> GangStatus | None:
    """The backend of a new attempt, whose sizes are in `status`. None: the pods are placed one by one, or wait."""
    if platform.local or job.spec.scheduling.gang == "None":
        return None
    if backend := requested(job):
        return _status(backend, job, status, optional) if optional.api_version(backend.kind) else None
    if not optional.versions or sum(members.min_by_role(job, status).values()) < 2:
        return None
    templates = pod_template.role_templates(job, platform).values()
    if any(members.own_gang(template) for template in templates):
        return None  # the author takes care of it
    names = {template["spec"].get("schedulerName") or "" for template in templates}
    for candidate in (BACKENDS["Volcano"], BACKENDS["Coscheduling"], BACKENDS["Native"]):
        suits = {platform.coscheduling_scheduler} if candidate.name == "Coscheduling" else candidate.scheduler_names
        if names <= set(suits) and optional.api_version(candidate.kind):
            return _status(candidate, job, status, optional)
    return None


def _status(backend: Backend, job: Job, status: Status, optional: OptionalObjects) -> GangStatus:
    makes_group = backend.name != "Kueue"
    return GangStatus(
        backend=backend.name,
        api_version=optional.api_version(backend.kind) if makes_group else None,
        min_count=sum(members.min_by_role(job, status).values()),
    )


def unavailable(job: Job, status: Status, platform: Platform, optional: OptionalObjects) -> tuple[str, str] | None:
    """(reason, message) if the job's pods wait for a backend that is not there, else None."""
    backend = requested(job)
    if platform.local or backend is None or status.gang or optional.api_version(backend.kind):
        return None
    why = optional.problems.get(backend.kind.id)
    if why is None:
        return NOT_SERVED, f"scheduling.gang is {backend.name}, and this operator does not use it (setting `gangs`)"
    missing = "does not serve" in why and "operator" not in why
    cure = f": {backend.cure}, or make a new job without it" if missing else ""
    return NOT_SERVED, f"scheduling.gang is {backend.name}, but {why}{cure}"
