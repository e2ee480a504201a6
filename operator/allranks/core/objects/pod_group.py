"""The PodGroup of an attempt."""

from __future__ import annotations

from collections.abc import Mapping

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import ownership
from allranks.core.facts.model import Manifest, Platform
from allranks.core.objects.gangs import members, objects


def pod_group(job: Job, status: Status, templates: Mapping[str, Manifest], platform: Platform) -> Manifest | None:
    """None if the attempt's backend needs none. `templates`: the result of `pod_template.role_templates`."""
    backend = objects.backend_of(status)
    if backend is None or status.gang is None or not status.gang.api_version:
        return None
    gang = members.gang_of(job, status, templates, platform)
    spec = backend.pod_group_spec(gang, status.gang.api_version.rpartition("/")[2])
    if spec is None:
        return None
    metadata = ownership.metadata(job, gang.name, {})
    return {"apiVersion": status.gang.api_version, "kind": backend.kind.kind, "metadata": metadata, "spec": spec}
