"""What an admission means for pods: node selectors and tolerations of flavors, and what admission checks add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.api.job import Job
from allranks.api.status import PodSetAdmission, Status
from allranks.core.manifests.pool_template import union
from allranks.core.model import Manifest, Observed
from allranks.core.optional_kinds import RESOURCE_FLAVOR
from allranks.core.queueing import workload as workloads

PODSET_LABEL = "kueue.x-k8s.io/podset"
WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"
UNCONSTRAINED = "kueue.x-k8s.io/podset-unconstrained-topology"
TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
"""Scheduling gate that Kueue removes from a pod when it has given it a node."""


def missing_flavors(observed: Observed, workload: Manifest) -> list[str]:
    """Assigned flavors that the operator does not know, or not yet."""
    names = {flavor for each in workloads.assignments(workload).values() for flavor in _flavors(each)}
    return sorted(name for name in names if observed.optional.find(RESOURCE_FLAVOR, name) is None)


def read(observed: Observed, workload: Manifest) -> dict[str, PodSetAdmission]:
    """Role -> its admission. All flavors are known."""
    requested = workloads.counts(workload)
    out = {}
    for role, assigned in workloads.assignments(workload).items():
        parts: dict[str, Any] = {"node_selector": {}, "tolerations": [], "labels": {}, "annotations": {}}
        for name in _flavors(assigned):
            spec = (observed.optional.find(RESOURCE_FLAVOR, name) or {}).get("spec") or {}
            parts["node_selector"] |= spec.get("nodeLabels") or {}
            parts["tolerations"] = union(parts["tolerations"], spec.get("tolerations"))
        for check in workloads.admission_checks(workload):
            for update in check.get("podSetUpdates") or ():
                if update.get("name") == role:
                    parts["node_selector"] |= update.get("nodeSelector") or {}
                    parts["tolerations"] = union(parts["tolerations"], update.get("tolerations"))
                    parts["labels"] |= update.get("labels") or {}
                    parts["annotations"] |= update.get("annotations") or {}
        count = assigned.get("count")
        out[role] = PodSetAdmission(
            count=requested.get(role, 0) if count is None else int(count),
            requested=requested.get(role, 0),
            topology=bool(assigned.get("topologyAssignment") or assigned.get("delayedTopologyRequest")),
            **parts,
        )
    return out


def _flavors(assigned: Mapping[str, Any]) -> list[str]:
    """The flavors of a pod set, one for each resource, without duplicates."""
    return list(dict.fromkeys((assigned.get("flavors") or {}).values()))


def applied(job: Job, status: Status, templates: dict[str, Manifest]) -> dict[str, Manifest]:
    """The pod templates of an admitted job."""
    queue = status.queue
    if queue is None or not queue.pod_sets:
        return templates
    out = dict(templates)
    for role, of in queue.pod_sets.items():
        if role in out:
            out[role] = _with_admission(out[role], role, of, queue.workload or "")
    return out


def _with_admission(template: Manifest, role: str, of: PodSetAdmission, workload: str) -> Manifest:
    metadata, spec = dict(template["metadata"]), dict(template["spec"])
    metadata["labels"] = {**(metadata.get("labels") or {}), **of.labels, PODSET_LABEL: role}
    annotations = {**(metadata.get("annotations") or {}), **of.annotations, WORKLOAD_ANNOTATION: workload}
    if of.topology:
        annotations.setdefault(UNCONSTRAINED, "true")
        spec["schedulingGates"] = union(spec.get("schedulingGates"), [{"name": TOPOLOGY_GATE}])
    metadata["annotations"] = annotations
    if of.node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **of.node_selector}
    if of.tolerations:
        spec["tolerations"] = union(spec.get("tolerations"), of.tolerations)
    return {**template, "metadata": metadata, "spec": spec}
