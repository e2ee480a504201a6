"""The Workload that asks Kueue for the quota of a job: a pod set for each role."""

from __future__ import annotations

from typing import Any

from allranks.api.job import Job
from allranks.core.facts import naming, pod_template, queue, topology
from allranks.core.facts import workload as workloads
from allranks.core.facts.model import Manifest, Observed
from allranks.core.facts.optional_kinds import PRIORITY_CLASS, WORKLOAD, WORKLOAD_PRIORITY_CLASS
from allranks.core.facts.quantity import pod_requests
from allranks.core.objects.gangs import backends

_LEFT_OUT = ("env", "envFrom", "command", "args", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe")
"""Fields of containers that have no influence on where pods fit. They may be large, or hold passwords."""


def workload(observed: Observed) -> Manifest:
    """Return the job's Workload, in the version that the cluster serves."""
    job = observed.job
    labels = {key: value for key, value in job.metadata.labels.items() if key != queue.QUEUE_LABEL}
    return {
        "apiVersion": observed.optional.api_version(WORKLOAD),
        "kind": WORKLOAD.kind,
        "metadata": naming.object_metadata(job, queue.workload_name(job), labels),
        "spec": {"queueName": queue.queue_of(job), "podSets": pod_sets(observed), **priority(observed)},
    }


def pod_sets(observed: Observed) -> list[Manifest]:
    job = observed.job
    templates = pod_template.role_templates(job, observed.platform)
    sizes = topology.wanted_sizes(job)
    elastic, topology_request = job.spec.elastic, backends.topology_request(job, sizes)
    out = []
    for role, count in sizes.items():
        pod_set: Manifest = {"name": role, "count": count, "template": _template(templates[role])}
        if elastic and role == topology.ELASTIC_ROLE and elastic.min_replicas < count:
            pod_set["minCount"] = elastic.min_replicas
        if topology_request:
            pod_set["topologyRequest"] = topology_request
        out.append(pod_set)
    return out


def lacking(observed: Observed, workload: Manifest) -> str:
    """Return what the Workload asks less of than the pods of the job request, as `role: resource`; empty if nothing.

    Kueue adds to the requests that it is sent, and never reduces them. Authors of jobs may have written the Workload.
    """
    asked = {
        name: pod_requests((pod_set.get("template") or {}).get("spec") or {})
        for name, pod_set in workloads.pod_sets(workload).items()
    }
    for pod_set in pod_sets(observed):
        role = pod_set["name"]
        for resource, amount in pod_requests(pod_set["template"]["spec"]).items():
            if amount > asked.get(role, {}).get(resource, 0.0) * _ROUNDED:
                return f"{role}: {resource}"
    return ""


_ROUNDED = 1 + 1e-9
"""Sums of quantities are floats."""


def _template(template: Manifest) -> Manifest:
    spec = dict(template["spec"])
    for part in ("containers", "initContainers"):
        if part in spec:
            spec[part] = [
                {key: value for key, value in container.items() if key not in _LEFT_OUT} for container in spec[part]
            ]
    metadata = {key: value for key, value in template["metadata"].items() if key in ("labels", "annotations") and value}
    return {"metadata": metadata, "spec": spec}


def priority_class(observed: Observed) -> tuple[str, str, int | None]:
    """Return (kind, name, value) of the class that determines the Workload's priority.

    It is Kueue's own class by the job's label, else the class of the pods, else the cluster's default. The kind is
    empty if there is none, and the value None if the class does not exist.
    """
    job, optional = observed.job, observed.optional
    if name := job.metadata.labels.get(queue.PRIORITY_LABEL):
        return WORKLOAD_PRIORITY_CLASS.kind, name, _value(optional.find(WORKLOAD_PRIORITY_CLASS, name))
    if name := _pods_class(job, observed):
        return PRIORITY_CLASS.kind, name, _value(optional.find(PRIORITY_CLASS, name))
    default = next((item for item in optional.all(PRIORITY_CLASS) if item.get("globalDefault") is True), None)
    if default is None:
        return "", "", 0
    return PRIORITY_CLASS.kind, default["metadata"]["name"], _value(default)


def priority(observed: Observed) -> dict[str, Any]:
    """Return the fields of a Workload's spec for its priority."""
    kind, name, value = priority_class(observed)
    if not kind:
        return {"priority": 0}
    if observed.optional.api_version(WORKLOAD).endswith("/v1beta1"):
        source = "kueue.x-k8s.io/workloadpriorityclass" if kind == WORKLOAD_PRIORITY_CLASS.kind else ""
        source = source or "scheduling.k8s.io/priorityclass"
        return {"priority": value or 0, "priorityClassName": name, "priorityClassSource": source}
    group = WORKLOAD_PRIORITY_CLASS.group if kind == WORKLOAD_PRIORITY_CLASS.kind else PRIORITY_CLASS.group
    return {"priority": value or 0, "priorityClassRef": {"group": group, "kind": kind, "name": name}}


def _pods_class(job: Job, observed: Observed) -> str:
    """Return the priority class of the first role's pods that names one, as Kueue's own integrations choose it."""
    templates = pod_template.role_templates(job, observed.platform)
    names = (template["spec"].get("priorityClassName") for template in templates.values())
    return next((name for name in names if name), "")


def _value(item: Manifest | None) -> int | None:
    return int(item.get("value", 0)) if item else None
