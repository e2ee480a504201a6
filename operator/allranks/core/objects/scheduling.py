"""The tolerations and the affinity that allranks adds to pods."""

from __future__ import annotations

from allranks.api.job import Job
from allranks.api.scheduling import Topology
from allranks.api.status import Status
from allranks.core.facts import bad_nodes, naming
from allranks.core.facts.model import Manifest, Platform
from allranks.core.objects.gangs import members

NODE_LOST_SECONDS = 30
"""Default of the operator's setting `node_lost_seconds`: tolerationSeconds for nodes that do not respond."""

_GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
_NODE_LOST_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
"""Taints of a node that does not respond. The API server adds tolerations of 300 s for them to pods that have none."""


def added(job: Job, pod_spec: Manifest, status: Status, gpus: bool, platform: Platform) -> Manifest:
    """Return the fields to replace in a complete pod spec: its tolerations and affinity with the additions of
    allranks."""
    out: Manifest = {}
    if tolerations := _tolerations(pod_spec.get("tolerations", []), gpus, platform):
        out["tolerations"] = [*pod_spec.get("tolerations", []), *tolerations]
    affinity = given_affinity = pod_spec.get("affinity") or {}
    if (topology := job.spec.scheduling.topology) and not _is_placed_close(status, topology):
        affinity = _close(job, affinity, topology)
    if excluded := bad_nodes.excluded_nodes(status):
        affinity = _exclude(affinity, excluded)
    if avoided := [node for node in status.avoided_nodes if node not in excluded]:
        affinity = _avoid(affinity, avoided)
    return out if affinity is given_affinity else {**out, "affinity": affinity}


def _is_placed_close(status: Status, topology: Topology) -> bool:
    """Return whether the attempt's PodGroup holds the constraint, or Kueue selects the nodes."""
    if status.queue and any(pod_set.topology for pod_set in status.queue.pod_sets.values()):
        return True
    backend = members.backend_of(status)
    return backend is not None and backend.places_close(topology)


def _close(job: Job, affinity: Manifest, topology: Topology) -> Manifest:
    """Return the affinity to the job's other pods, beside the user's own. The first pod goes anywhere."""
    key = topology.required or topology.preferred
    term: Manifest = {"topologyKey": key, "labelSelector": {"matchLabels": {naming.JOB_LABEL: job.name}}}
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    if topology.preferred:
        kind, term = "preferredDuringSchedulingIgnoredDuringExecution", {"weight": 100, "podAffinityTerm": term}
    pods = affinity.get("podAffinity") or {}
    return {**affinity, "podAffinity": {**pods, kind: [*pods.get(kind, []), term]}}


def _tolerations(tolerations: list[Manifest], gpus: bool, platform: Platform) -> list[Manifest]:
    """Return the tolerations that allranks adds to the tolerations of the template."""
    out: list[Manifest] = [_GPU_TOLERATION] if gpus and _GPU_TOLERATION not in tolerations else []
    if platform.node_lost_seconds is not None:
        tolerated = {
            item.get("key") or None for item in tolerations if (item.get("effect") or "NoExecute") == "NoExecute"
        }
        toleration: Manifest = {
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": platform.node_lost_seconds,
        }
        out += [{"key": key, **toleration} for key in _NODE_LOST_TAINTS if not tolerated & {key, None}]
    return out


def _avoid(affinity: Manifest, nodes: list[str]) -> Manifest:
    """Return the affinity with a preference for other nodes: where there are no others, the pods run on these."""
    kind = "preferredDuringSchedulingIgnoredDuringExecution"
    term = {"matchFields": _not_on(nodes)}
    node_affinity = affinity.get("nodeAffinity") or {}
    return {
        **affinity,
        "nodeAffinity": {**node_affinity, kind: [*node_affinity.get(kind, []), {"weight": 100, "preference": term}]},
    }


def _exclude(affinity: Manifest, nodes: list[str]) -> Manifest:
    """Return the affinity with the requirement of other nodes, beside each of the user's alternatives."""
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    node_affinity = affinity.get("nodeAffinity") or {}
    terms = (node_affinity.get(kind) or {}).get("nodeSelectorTerms") or [{}]
    others = [{**term, "matchFields": [*(term.get("matchFields") or []), *_not_on(nodes)]} for term in terms]
    return {**affinity, "nodeAffinity": {**node_affinity, kind: {"nodeSelectorTerms": others}}}


def _not_on(nodes: list[str]) -> list[Manifest]:
    """Return entries of matchFields. One takes exactly one value, so each node has its own; all of them must hold."""
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
