"""The effect of an admission on pods: node selectors and tolerations of flavors, and additions of admission checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.api.scheduling import PodPlacement, PodSetAdmission, Toleration
from allranks.api.status import Status
from allranks.core.facts import workload as workloads
from allranks.core.facts.model import Manifest, Observed
from allranks.core.facts.optional_kinds import RESOURCE_FLAVOR
from allranks.core.facts.pool_template import union
from allranks.fields import encode, validated

PODSET_LABEL = "kueue.x-k8s.io/podset"
WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"
UNCONSTRAINED = "kueue.x-k8s.io/podset-unconstrained-topology"
TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
"""Scheduling gate that Kueue removes from a pod when it has given it a node."""


def missing_flavors(observed: Observed, workload: Manifest) -> list[str]:
    """Return the assigned flavors that the operator has not read yet."""
    names = {flavor for assignment in workloads.assignments(workload).values() for flavor in _flavors(assignment)}
    return sorted(name for name in names if observed.optional.find(RESOURCE_FLAVOR, name) is None)


def read(observed: Observed, workload: Manifest) -> tuple[dict[str, PodSetAdmission], list[PodPlacement]]:
    """Return (role -> its admission, the placements to which these refer). All flavors have been read."""
    requested = workloads.counts(workload)
    admitted: dict[str, PodSetAdmission] = {}
    placements: list[PodPlacement] = []
    for role, assigned in workloads.assignments(workload).items():
        placement = _placement(observed, workload, role, assigned)
        if placement not in placements:
            placements.append(placement)
        count = assigned.get("count")
        admitted[role] = validated(
            PodSetAdmission(
                count=requested.get(role, 0) if count is None else int(count),
                requested=requested.get(role, 0),
                placement=placements.index(placement),
                topology=bool(assigned.get("topologyAssignment") or assigned.get("delayedTopologyRequest")),
            )
        )
    return admitted, placements


def _placement(observed: Observed, workload: Manifest, role: str, assigned: Manifest) -> PodPlacement:
    selector: dict[str, str] = {}
    tolerations: list[Manifest] = []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for name in _flavors(assigned):
        spec = (observed.optional.find(RESOURCE_FLAVOR, name) or {}).get("spec") or {}
        selector |= spec.get("nodeLabels") or {}
        tolerations = union(tolerations, spec.get("tolerations"))
    for check in workloads.admission_checks(workload):
        for update in check.get("podSetUpdates") or ():
            if update.get("name") == role:
                selector |= update.get("nodeSelector") or {}
                tolerations = union(tolerations, update.get("tolerations"))
                labels |= update.get("labels") or {}
                annotations |= update.get("annotations") or {}
    return validated(
        PodPlacement(
            node_selector=selector,
            tolerations=[_toleration(toleration) for toleration in tolerations],
            labels=labels,
            annotations=annotations,
        )
    )


def _toleration(toleration: Manifest) -> Toleration:
    fields = ("key", "operator", "value", "effect")
    return validated(
        Toleration(
            **{key: toleration.get(key) for key in fields}, toleration_seconds=toleration.get("tolerationSeconds")
        )
    )


def _flavors(assigned: Mapping[str, Any]) -> list[str]:
    """Return the flavors of a pod set, one for each resource, without duplicates."""
    return list(dict.fromkeys((assigned.get("flavors") or {}).values()))


def applied(status: Status, templates: dict[str, Manifest]) -> dict[str, Manifest]:
    """Return the pod templates of an admitted job."""
    queue = status.queue
    if queue is None or not queue.pod_sets:
        return templates
    out = dict(templates)
    for role, pod_set in queue.pod_sets.items():
        if role in out:
            out[role] = _with_admission(
                out[role], role, pod_set, queue.placements[pod_set.placement], queue.workload or ""
            )
    return out


def _with_admission(
    template: Manifest, role: str, pod_set: PodSetAdmission, placement: PodPlacement, workload: str
) -> Manifest:
    metadata, spec = dict(template["metadata"]), dict(template["spec"])
    metadata["labels"] = {**(metadata.get("labels") or {}), **placement.labels, PODSET_LABEL: role}
    annotations = {**(metadata.get("annotations") or {}), **placement.annotations, WORKLOAD_ANNOTATION: workload}
    if pod_set.topology:
        annotations.setdefault(UNCONSTRAINED, "true")
        spec["schedulingGates"] = union(spec.get("schedulingGates"), [{"name": TOPOLOGY_GATE}])
    metadata["annotations"] = annotations
    if placement.node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **placement.node_selector}
    if placement.tolerations:
        tolerations = [encode(toleration) for toleration in placement.tolerations]
        spec["tolerations"] = union(spec.get("tolerations"), tolerations)
    return {**template, "metadata": metadata, "spec": spec}
