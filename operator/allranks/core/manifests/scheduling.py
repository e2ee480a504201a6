"""Where pods may run: what the job asks for, and what it did not think of."""

from __future__ import annotations

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core import naming
from allranks.core.model import Manifest, Platform

_GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
_LOST = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
"""Taints of a node that does not answer. Without a word about them the API server lets pods bear them for 300 s."""


def wanted(job: Job, pod_spec: Manifest) -> Manifest:
    """Parts of a pod's spec for the job's `scheduling`; `pod_spec` is the template's."""
    out: Manifest = {}
    if job.spec.scheduling.priority_class_name:
        out["priorityClassName"] = job.spec.scheduling.priority_class_name
    if job.spec.scheduling.topology_key and "affinity" not in pod_spec:
        term = {
            "topologyKey": job.spec.scheduling.topology_key,
            "labelSelector": {"matchLabels": {naming.JOB_LABEL: job.name}},
        }
        out["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return out


def given(pod_spec: Manifest, status: Status, gpus: bool, platform: Platform) -> Manifest:
    """What replaces parts of a complete pod spec: tolerations and affinity with what everybody gets."""
    out: Manifest = {}
    if tolerations := _tolerations(pod_spec.get("tolerations", []), gpus, platform):
        out["tolerations"] = [*pod_spec.get("tolerations", []), *tolerations]
    if status.avoided_nodes:
        out["affinity"] = _elsewhere(pod_spec.get("affinity") or {}, status.avoided_nodes)
    return out


def _tolerations(own: list[Manifest], gpus: bool, platform: Platform) -> list[Manifest]:
    """Those that the template has not."""
    out: list[Manifest] = [_GPU_TOLERATION] if gpus and _GPU_TOLERATION not in own else []
    if platform.node_lost_seconds is not None:
        spoken_of = {each.get("key") or None for each in own if (each.get("effect") or "NoExecute") == "NoExecute"}
        short: Manifest = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": platform.node_lost_seconds}
        out += [{"key": key, **short} for key in _LOST if not spoken_of & {key, None}]
    return out


def _elsewhere(affinity: Manifest, nodes: list[str]) -> Manifest:
    """Preferred and not required: where there are no other nodes, pods run on these rather than not at all."""
    kind = "preferredDuringSchedulingIgnoredDuringExecution"
    # A field takes one value, unlike a label; the parts of a term are all to hold.
    term = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]}
    of_nodes = affinity.get("nodeAffinity") or {}
    return {
        **affinity,
        "nodeAffinity": {**of_nodes, kind: [*of_nodes.get(kind, []), {"weight": 100, "preference": term}]},
    }
