"""What an attempt's pods need for its gang, and the PodGroups that exist."""

from __future__ import annotations

from collections.abc import Mapping

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.optional_kinds import Object, OptionalObjects, kind_of
from allranks.core.objects.gangs import members
from allranks.core.objects.gangs.base import Backend, PodPart
from allranks.core.objects.gangs.registry import BACKENDS


def backend_of(status: Status) -> Backend | None:
    """The backend of the current attempt."""
    return BACKENDS[status.gang.backend] if status.gang else None


def pod_part(job: Job, status: Status, role: str, templates: Mapping[str, Manifest], platform: Platform) -> PodPart:
    """What a pod of this role needs to belong to the attempt's gang; empty if it does not."""
    backend = backend_of(status)
    if backend is None or not members.belongs(job, role):
        return PodPart()
    return backend.pod_part(members.gang_of(job, status, templates, platform), role)


def observed(status: Status, optional: OptionalObjects, name: str) -> Object | None:
    """The attempt's PodGroup as it was read back."""
    backend = backend_of(status)
    found = optional.owned(backend.kind) if backend else ()
    return next((each for each in found if each["metadata"]["name"] == name), None)


def superseded(job: Job, status: Status, optional: OptionalObjects, *, over: bool) -> tuple[Manifest, ...]:
    """PodGroups to delete: those of past attempts, and that of the current one if it is `over`. Volcano counts a group
    in its queue as long as it exists."""
    kinds = {backend.kind.id for backend in BACKENDS.values() if backend.kind.kind == "PodGroup"}
    current = members.group_name(job, status.attempt)
    return tuple(
        found
        for found in optional.of_job
        if kind_of(found) in kinds
        and (over or found["metadata"]["name"] != current)
        and "deletionTimestamp" not in found["metadata"]
    )
