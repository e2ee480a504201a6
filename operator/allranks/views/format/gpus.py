"""The GPUs of a job, for `describe` and `top`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allranks.api.status import Status
from allranks.core.facts import gpu_count, pod_template, topology
from allranks.core.facts.model import ANY_PLATFORM
from allranks.core.facts.naming import TRAINER
from allranks.kube.job_codec import job_of, pods_of


def per_pod(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]] = ()) -> dict[str, int]:
    """Role -> GPUs of each of its pods, without roles that have none. From the `pods` of the job where there are some,
    because a TrainingPool can add GPUs to those of the manifest."""
    parsed = job_of(dict(job))
    if parsed is None:
        return {}
    templates = pod_template.role_templates(parsed, ANY_PLATFORM)
    found = {role: pod_template.gpus(parsed, template, ANY_PLATFORM) for role, template in templates.items()}
    manifests = {pod["metadata"]["uid"]: dict(pod) for pod in pods}
    for pod in pods_of(dict(job), manifests.values()) if manifests else ():
        containers = manifests[pod.uid]["spec"]["containers"]
        found[pod.role] = sum(gpu_count.gpus(one.get("resources")) for one in containers if one["name"] == TRAINER)
    return {role: count for role, count in found.items() if count}


def total(job: Mapping[str, Any], status: Status, pods: Sequence[Mapping[str, Any]] = ()) -> int:
    """GPUs of all pods of the current attempt."""
    parsed = job_of(dict(job))
    sizes = topology.sizes(parsed, status) if parsed else {}
    return sum(sizes.get(role, 0) * count for role, count in per_pod(job, pods).items())


def text(job: Mapping[str, Any], status: Status, pods: Sequence[Mapping[str, Any]]) -> str:
    """`16 (8 in each worker)`; empty without GPUs."""
    each = ", ".join(f"{count} in each {role}" for role, count in per_pod(job, pods).items())
    return f"{total(job, status, pods)} ({each})" if each else ""
