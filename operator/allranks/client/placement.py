"""Finds room for pods on nodes, by the rules of kube-scheduler that templates of training jobs use: requests, node
selectors, required node affinity, taints. Pure.

What else a pod asks for (other pods, topology, volumes, claims) is not compared; `unchecked` names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allranks.core.facts.quantity import pod_requests, quantity

Manifest = Mapping[str, Any]
Amounts = dict[str, float]

_PODS = "pods"


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is ready, with what its pods may request."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Manifest]
    allocatable: Amounts
    images: Mapping[str, int] = field(default_factory=dict)
    """Image on the node -> its size in bytes. A kubelet reports 50 images."""

    @classmethod
    def read(cls, manifest: Manifest) -> Node | None:
        """Return the node; None if it is not ready or takes no pods."""
        spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
        conditions = {item["type"]: item["status"] for item in status.get("conditions") or ()}
        if spec.get("unschedulable") or conditions.get("Ready") != "True":
            return None
        return cls(
            manifest["metadata"]["name"],
            manifest["metadata"].get("labels") or {},
            spec.get("taints") or (),
            {name: quantity(str(amount)) for name, amount in (status.get("allocatable") or {}).items()},
            {
                name: image.get("sizeBytes", 0)
                for image in status.get("images") or ()
                for name in image.get("names", ())
            },
        )


def requests_of(spec: Manifest) -> Amounts:
    """Return what a pod takes of a node, its place in the number of pods included."""
    return {**pod_requests(spec), _PODS: 1}


def admits(node: Node, spec: Manifest) -> bool:
    """Return whether labels and taints of the node admit the pod."""
    selected = (spec.get("nodeSelector") or {}).items() <= node.labels.items()
    tolerations = spec.get("tolerations") or ()
    hard = (taint for taint in node.taints if taint.get("effect") in ("NoSchedule", "NoExecute"))
    tolerated = all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in hard)
    return selected and tolerated and _in_affinity(node, spec)


def _tolerates(toleration: Manifest, taint: Manifest) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")


def _in_affinity(node: Node, spec: Manifest) -> bool:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    names = {"metadata.name": node.name}
    return any(
        all(_matches(node.labels, expression) for expression in term.get("matchExpressions") or ())
        and all(_matches(names, expression) for expression in term.get("matchFields") or ())
        for term in required.get("nodeSelectorTerms") or ()
        if term.get("matchExpressions") or term.get("matchFields")
    )


def _matches(labels: Mapping[str, str], expression: Manifest) -> bool:
    value, values = labels.get(expression["key"]), [*(expression.get("values") or ())]
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                number, limit = int(value or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return number > limit if operator == "Gt" else number < limit
    return False


class Rooms:
    """What is free on each node."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.free: dict[str, Amounts] = {name: dict(node.allocatable) for name, node in self.nodes.items()}

    def take(self, node: str, requests: Amounts, times: int = 1) -> None:
        """Take room for pods that are on the node; a negative number gives it back."""
        if node not in self.free:
            return
        free = self.free[node]
        for name, amount in requests.items():
            free[name] = free.get(name, 0) - times * amount

    def count(self, spec: Manifest, most: int) -> int:
        """Return how many pods of this kind have room at the same time, at most `most`."""
        requests, total = requests_of(spec), 0
        for name, node in self.nodes.items():
            if admits(node, spec):
                total += min(most, _times(self.free[name], requests))
            if total >= most:
                return most
        return total

    def place(self, groups: Sequence[tuple[Manifest, int]]) -> bool:
        """Take room for pods of several kinds, the largest first, on the fullest nodes that have it. Return whether all
        found some."""
        for spec, number in sorted(groups, key=lambda group: _size(requests_of(group[0])), reverse=True):
            requests, left = requests_of(spec), number
            able = [name for name, node in self.nodes.items() if admits(node, spec)]
            for name in sorted(able, key=lambda name: _times(self.free[name], requests)):
                times = min(left, _times(self.free[name], requests))
                self.take(name, requests, times)
                left -= times
            if left:
                return False
        return True


def _times(free: Amounts, requests: Amounts) -> int:
    """Return how many times the requests fit. Rounding errors of fractions of a CPU do not count."""
    times = [int((free.get(name, 0) + 1e-9) / amount) for name, amount in requests.items() if amount > 0]
    return max(0, min(times))


def _size(requests: Amounts) -> tuple[float, float, float]:
    devices = sum(amount for name, amount in requests.items() if "/" in name)
    return devices, requests.get("memory", 0), requests.get("cpu", 0)


def unchecked(spec: Manifest) -> list[str]:
    """Return the fields of a pod that decide about its node as well, and that are not compared."""
    affinity = spec.get("affinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    fields = [
        f"affinity.{name}" for name in ("podAffinity", "podAntiAffinity") if (affinity.get(name) or {}).get(required)
    ]
    spread = spec.get("topologySpreadConstraints") or ()
    if any(constraint.get("whenUnsatisfiable") != "ScheduleAnyway" for constraint in spread):
        fields.append("topologySpreadConstraints")
    if spec.get("resourceClaims"):
        fields.append("resourceClaims")
    if any("persistentVolumeClaim" in volume for volume in spec.get("volumes") or ()):
        fields.append("volumes")
    return fields
