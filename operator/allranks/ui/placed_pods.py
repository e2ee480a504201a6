"""What the page of nodes keeps of pods and Nodes, which may have any size. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from allranks.core.facts import gpu_count
from allranks.core.facts.naming import JOB_LABEL, TRAINER
from allranks.kube.decoding import ObjectMeta, decoder


class PlacedPod(NamedTuple):
    """What is kept of a pod of a job."""

    node: str
    job: str
    """NAMESPACE/NAME."""
    gpus: int


class Allocatable(NamedTuple):
    """What is kept of a Node."""

    name: str
    gpus: int
    unschedulable: bool


class _Labels(msgspec.Struct):
    job: str = msgspec.field(default="", name=JOB_LABEL)


class _Metadata(ObjectMeta):
    labels: _Labels = msgspec.field(default_factory=_Labels)


class _Container(msgspec.Struct):
    name: str = ""
    resources: msgspec.Raw = msgspec.Raw(b"{}")


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    unschedulable: bool = False
    containers: list[_Container] = []


class _Status(msgspec.Struct):
    phase: str = ""
    allocatable: dict[str, Any] = {}


class _Object(msgspec.Struct):
    """The decoded fields of a pod, or of a Node."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_object, _resources = decoder(_Object), decoder(dict[str, Any])


def placed_pod(data: bytes | msgspec.Raw) -> PlacedPod | None:
    """Return a pod that holds GPUs of a node; None for another one. Raises msgspec.DecodeError."""
    pod = _object(data)
    if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
        return None
    trainers = (container for container in pod.spec.containers if container.name == TRAINER)
    gpus = sum(gpu_count.gpus(_resources(trainer.resources)) for trainer in trainers)
    return PlacedPod(pod.spec.node_name, f"{pod.metadata.namespace}/{pod.metadata.labels.job}", gpus)


def allocatable(data: bytes | msgspec.Raw) -> Allocatable:
    """Return a Node. Raises msgspec.DecodeError."""
    node = _object(data)
    gpus = gpu_count.gpus({"limits": node.status.allocatable})
    return Allocatable(node.metadata.name, gpus, node.spec.unschedulable)
