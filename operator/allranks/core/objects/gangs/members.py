"""The gang of an attempt: which of its pods must be placed together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import topology
from allranks.core.facts.contenders import timeout_seconds
from allranks.core.facts.model import Manifest, Platform
from allranks.core.objects.gangs.base import Gang


def group_name(job: Job, attempt: int) -> str:
    """Name of an attempt's PodGroup. Each attempt has its own: the pods of the one before may still terminate, and must
    not count."""
    return f"{job.name}-{attempt}"


def belongs(job: Job, role: str) -> bool:
    """Whether pods of this role belong to the gang: all without which the other ranks do not run. An evaluator does
    not."""
    return topology.framework_of(job).roles[role].required_by_peers


def min_by_role(job: Job, status: Status) -> dict[str, int]:
    """Role -> pods that must be placed: all of them, and of elastic workers `minReplicas`."""
    out = {role: size for role, size in topology.sizes(job, status).items() if belongs(job, role)}
    if topology.elasticity(job) and job.spec.elastic and topology.ELASTIC_ROLE in out:
        least = min(job.spec.elastic.min_replicas, out[topology.ELASTIC_ROLE])
        out[topology.ELASTIC_ROLE] = least
    return out


def gang_of(job: Job, status: Status, templates: Mapping[str, Manifest], platform: Platform) -> Gang:
    """The gang of the current attempt. `templates`: the result of `pod_template.role_templates`."""
    least, scheduling = min_by_role(job, status), job.spec.scheduling
    return Gang(
        name=group_name(job, status.attempt),
        min_by_role=least,
        templates=templates,
        all_or_nothing=job.spec.elastic is None and all(topology.scope(job, role, 0) == "Group" for role in least),
        topology=scheduling.topology,
        timeout_seconds=timeout_seconds(job),
        scheduler_name=platform.coscheduling_scheduler,
    )


def own_gang(template: Mapping[str, Any]) -> str:
    """The label, annotation or field by which the author makes the pods members of a group; empty if none does."""
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
    """The pod's manifest as that of a pod outside of any gang, such as a placeholder."""
    metadata = dict(pod["metadata"])
    for part, keys in _MEMBERSHIP.items():
        if part in metadata:
            metadata[part] = {key: value for key, value in metadata[part].items() if key not in keys}
    spec = {name: value for name, value in pod["spec"].items() if name != "schedulingGroup"}
    return {**pod, "metadata": metadata, "spec": spec}
