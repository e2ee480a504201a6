"""The gang of an attempt: its pods, its PodGroup, and mistakes of a job that names a backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import naming, queue, topology
from allranks.core.facts.contenders import timeout_seconds
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.optional_kinds import Object, OptionalObjects, kind_of
from allranks.core.objects.gangs.backends import BACKENDS, requested
from allranks.core.objects.gangs.base import Backend, Gang, PodPart


def group_name(job: Job, attempt: int) -> str:
    """Return the name of an attempt's PodGroup.

    Each attempt has its own: the pods of the previous one may still terminate, and must not count.
    """
    return f"{job.name}-{attempt}"


def belongs(job: Job, role: str) -> bool:
    """Return whether pods of this role belong to the gang, because the other ranks cannot run without them."""
    return topology.framework_of(job).roles[role].required_by_peers


def min_by_role(job: Job, status: Status) -> dict[str, int]:
    """Return role -> pods that must be placed: all of them, and `minReplicas` of elastic workers."""
    out = {role: size for role, size in topology.sizes(job, status).items() if belongs(job, role)}
    if topology.elasticity(job) and job.spec.elastic and topology.ELASTIC_ROLE in out:
        least = min(job.spec.elastic.min_replicas, out[topology.ELASTIC_ROLE])
        out[topology.ELASTIC_ROLE] = least
    return out


def gang_of(job: Job, status: Status, templates: Mapping[str, Manifest], platform: Platform) -> Gang:
    """Return the gang of the current attempt. `templates`: the result of `pod_template.role_templates`."""
    least, scheduling = min_by_role(job, status), job.spec.scheduling
    return Gang(
        name=group_name(job, status.pod_attempt),
        min_by_role=least,
        templates=templates,
        all_or_nothing=job.spec.elastic is None and all(topology.scope(job, role, 0) == "Group" for role in least),
        topology=scheduling.topology,
        timeout_seconds=timeout_seconds(job),
        scheduler_name=platform.coscheduling_scheduler,
    )


def own_gang(template: Mapping[str, Any]) -> str:
    """Return the label, annotation or field by which the author makes the pods members of a group; empty if none
    does."""
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    if spec.get("schedulingGroup"):
        return "spec.schedulingGroup"
    for part, keys in _MEMBERSHIP.items():
        for key in metadata.get(part) or {}:
            if key in keys:
                return f"metadata.{part}[{key}]"
    return ""


_MEMBERSHIP = {
    "labels": frozenset({"scheduling.x-k8s.io/pod-group", "kueue.x-k8s.io/pod-group-name"}),
    "annotations": frozenset({"scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"}),
}


def without_membership(pod: Manifest) -> Manifest:
    """Return the manifest as a pod outside of any gang, such as a placeholder."""
    metadata = dict(pod["metadata"])
    for part, keys in _MEMBERSHIP.items():
        if part in metadata:
            metadata[part] = {key: value for key, value in metadata[part].items() if key not in keys}
    spec = {name: value for name, value in pod["spec"].items() if name != "schedulingGroup"}
    return {**pod, "metadata": metadata, "spec": spec}


def backend_of(status: Status) -> Backend | None:
    """Return the backend of the current attempt."""
    return BACKENDS[status.gang.backend] if status.gang else None


def gang_part(job: Job, status: Status, role: str, templates: Mapping[str, Manifest], platform: Platform) -> PodPart:
    """Return the fields of a pod of this role that make it a member of the attempt's gang; empty if it is none."""
    backend = backend_of(status)
    if backend is None or not belongs(job, role):
        return PodPart()
    return backend.pod_part(gang_of(job, status, templates, platform), role)


def observed_group(status: Status, optional: OptionalObjects, name: str) -> Object | None:
    """Return the attempt's PodGroup as it was read back."""
    backend = backend_of(status)
    groups = optional.owned(backend.kind) if backend else ()
    return next((group for group in groups if group["metadata"]["name"] == name), None)


def superseded_groups(job: Job, status: Status, optional: OptionalObjects, *, over: bool) -> tuple[Manifest, ...]:
    """Return the PodGroups to delete: the groups of past attempts, and the current one if the attempt is `over`.

    Volcano counts a group in its queue until it is deleted.
    """
    kinds = {backend.kind.id for backend in BACKENDS.values() if backend.kind.kind == "PodGroup"}
    current = group_name(job, status.pod_attempt)
    return tuple(
        group
        for group in optional.of_job
        if kind_of(group) in kinds
        and (over or group["metadata"]["name"] != current)
        and "deletionTimestamp" not in group["metadata"]
    )


def problems(job: Job) -> list[tuple[str, str]]:
    """Return (field path, message) of mistakes in the job's `scheduling` that its schema cannot find."""
    backend = requested(job)
    if backend is None:
        return []
    out = []
    if backend.name == "Kueue" and not queue.queue_of(job):
        out.append(("spec.scheduling.gang", "Kueue admits the jobs of a queue: set spec.scheduling.queue as well"))
    parts = [
        ("spec", job.spec.template),
        *((f"spec.roles.{role}", spec.template) for role, spec in job.spec.roles.items()),
    ]
    for place, template in parts:
        if field := own_gang(template or {}):
            message = (
                f"is set by allranks with scheduling.gang: {backend.name}: remove it, or set scheduling.gang: None"
            )
            out.append((f"{place}.template.{field}", message))
    return out


def pod_group(job: Job, status: Status, templates: Mapping[str, Manifest], platform: Platform) -> Manifest | None:
    """Return the PodGroup of the attempt; None if its backend needs none.

    `templates`: the result of `pod_template.role_templates`.
    """
    backend = backend_of(status)
    if backend is None or status.gang is None or not status.gang.api_version:
        return None
    gang = gang_of(job, status, templates, platform)
    spec = backend.pod_group_spec(gang, status.gang.api_version.rpartition("/")[2])
    if spec is None:
        return None
    metadata = naming.object_metadata(job, gang.name, {})
    return {"apiVersion": status.gang.api_version, "kind": backend.kind.kind, "metadata": metadata, "spec": spec}
