"""The types of `TrainingPool`: a platform team's description of one pool of GPU nodes, which jobs name in `pool`.

The CRD is generated from these (`make generate`); field descriptions are what `kubectl explain` prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allranks.api import cel_rules as cel
from allranks.api.cost import Price, Utilization
from allranks.api.job import Environment, Preflight, Resources
from allranks.api.notify import Notifications
from allranks.fields import Count, Model, Name, Opaque, Path, Quantity, Text, rules
from allranks.frameworks import FRAMEWORKS

KIND = "TrainingPool"
PLURAL = "trainingpools"


class Toleration(Model):
    """A toleration, as in a pod."""

    key: Text | None = Field(None, description="Key of the taint. Default: all taints.")
    operator: Literal["Exists", "Equal"] | None = Field(None, description="Exists, or Equal (the default) to value.")
    value: Text | None = Field(None, description="Value of the taint, for operator Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint. Default: all effects."
    )
    toleration_seconds: Count | None = Field(None, description="How long NoExecute is tolerated. Default: forever.")


class Gpu(Model):
    """The GPUs of a node, as its device plugin advertises them."""

    resource: Name = Field("nvidia.com/gpu", description="Name of the resource that the device plugin advertises.")
    count: Annotated[int, Field(ge=1, le=1024)] = Field(
        description="GPUs of each pod that holds ranks, or whose role names the pool, unless the job sets this "
        "resource itself."
    )


class LabelExpression(Model):
    """A requirement of a label selector, as in Kubernetes."""

    model_config = {"json_schema_extra": rules(*cel.LABEL_EXPRESSION)}

    key: Name = Field(description="Key of the label that is compared.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="In: the label has one of the values. NotIn: it has none of them or is absent. Exists and "
        "DoesNotExist: the label is present or absent."
    )
    values: Annotated[list[Text], Field(max_length=64)] | None = Field(
        None, description="Values for In and NotIn; empty for Exists and DoesNotExist."
    )


class LabelSelector(Model):
    """A label selector, as in Kubernetes: all requirements must hold. An empty one selects everything."""

    match_labels: Annotated[dict[Name, Text], Field(max_length=64)] | None = Field(
        None, description="Labels that must have exactly these values."
    )
    match_expressions: Annotated[list[LabelExpression], Field(max_length=64)] | None = Field(
        None, description="Further requirements, all of which must hold."
    )


class InputCache(Model):
    """Where pods fetch the inputs of their job themselves. Without hostPath, each pod has an emptyDir for them."""

    model_config = {"json_schema_extra": rules(*cel.INPUT_CACHE)}

    host_path: Path | None = Field(
        None,
        description="Directory on each node of the pool, for example on its NVMe disk. The kubelet creates a directory "
        "for each namespace in it, whose pods on a node fetch once. Namespaces must admit pods with hostPath volumes. "
        "Default: none, so that each pod fetches into an emptyDir.",
    )
    size_limit: Quantity | None = Field(
        None,
        description="With hostPath: size of the inputs of one namespace on a node, before those that were used longest "
        "ago are evicted. Without: sizeLimit of the emptyDir. Default: the operator's setting `data_cache_size`.",
    )


class DataPods(Model):
    """The pods that fetch inputs into a claim, check destinations and upload outputs."""

    resources: Resources | None = Field(
        None, description="Compute resources of each of these pods. Default: `data_pods` of the operator."
    )
    node_selector: Annotated[dict[Name, Text], Field(max_length=64)] | None = Field(
        None, description="Labels of the nodes for these pods. Default: `data_pods` of the operator."
    )
    tolerations: Annotated[list[Toleration], Field(max_length=64)] | None = Field(
        None, description="Tolerations of these pods. Default: `data_pods` of the operator."
    )


ATTACHMENT = r"^([a-z0-9.-]{1,253}/)?[a-z0-9.-]{1,253}(@[^\s/,]{1,15})?$"
Attachment = Annotated[str, StringConstraints(max_length=600, pattern=ATTACHMENT)]
"""A NetworkAttachmentDefinition, as in Multus' annotation."""
Interface = Annotated[str, StringConstraints(min_length=1, max_length=253)]


class PoolNetwork(Model):
    """How ranks reach each other. What the pool's template and env say as well replaces it."""

    attachments: Annotated[list[Attachment], Field(min_length=1, max_length=16)] | None = Field(
        None,
        description="Further networks of the pods, which Multus attaches: [NAMESPACE/]NAME[@INTERFACE] of a "
        "NetworkAttachmentDefinition. Default: none.",
    )
    interface: Interface | None = Field(
        None,
        description="Network interface that ranks use, for example eth0 or net1: NCCL_SOCKET_IFNAME, "
        "GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME and HOROVOD_GLOO_IFACE. Default: each library chooses.",
    )
    cards: Interface | None = Field(
        None, description="RDMA cards that NCCL uses, for example mlx5: NCCL_IB_HCA. Default: NCCL chooses."
    )
    gid_index: Annotated[int, Field(ge=0, le=255)] | None = Field(
        None, description="GID index of the cards for RoCE: NCCL_IB_GID_INDEX. Default: NCCL chooses."
    )
    lock_memory: bool | None = Field(
        None,
        description="Whether the training container has the capability IPC_LOCK, which RDMA needs unless the container "
        "runtime sets no limit of locked memory. Default: false.",
    )
    host_network: bool | None = Field(None, description="Whether pods use the network of their node. Default: false.")


class PoolSpec(Model):
    """What a pod on these nodes needs. The job's own template and fields are merged over it."""

    model_config = {"json_schema_extra": rules(*cel.ENVIRONMENT, *cel.pool(FRAMEWORKS))}

    node_selector: Annotated[dict[Name, Text], Field(max_length=64)] | None = Field(
        None, description="Labels that the nodes of the pool have."
    )
    namespace_selector: LabelSelector | None = Field(
        None,
        description="Labels of the namespaces whose jobs may use the pool. A job in any other namespace is refused. "
        "Default: all namespaces.",
    )
    tolerations: Annotated[list[Toleration], Field(max_length=64)] | None = Field(
        None, description="Tolerations for the taints of the nodes, added to the job's own."
    )
    gpu: Gpu | None = Field(None, description="GPUs of each pod that holds ranks, or whose role names the pool.")
    rdma: Annotated[dict[Name, Quantity], Field(max_length=16)] | None = Field(
        None,
        description="Network devices of each pod that holds ranks, or whose role names the pool, for example "
        "{rdma/hca: 1}.",
    )
    network: PoolNetwork | None = Field(
        None,
        description="Interfaces, cards and further networks of pods that hold ranks, or whose role names the pool.",
    )
    shared_memory: Quantity | None = Field(
        None, description="Size limit of /dev/shm, for example 64Gi. It counts toward the pod's memory."
    )
    input_cache: InputCache | None = Field(
        None,
        description="Fetch the inputs of jobs in their pods, on the disks of the nodes, instead of into the claim of "
        "the operator's setting `data_claim`.",
    )
    data: DataPods | None = Field(
        None,
        description="Resources and nodes of the pods that transfer inputs and outputs of jobs of this pool. Each field "
        "replaces that of the operator's setting `data_pods`; fields of the pool such as `tolerations` do not apply to "
        "them.",
    )
    env: Environment | None = Field(
        None, description="Variables of the training container, for example NCCL_SOCKET_IFNAME."
    )
    priority_class_name: Name | None = Field(None, description="Priority class of the pods.")
    scheduler_name: Name | None = Field(None, description="Scheduler that places the pods.")
    price: Price | None = Field(None, description="What the GPUs cost. Default: reports have GPU-hours only.")
    notify: Notifications | None = Field(
        None, description="Who is notified about the jobs of this pool, besides those that the job names."
    )
    utilization: Utilization | None = Field(
        None,
        description="What happens to jobs of this pool that train too little. It replaces the job's `utilization`.",
    )
    preflight: Preflight | None = Field(
        None,
        description="Tests that the pods of jobs without `preflight` make before their program starts.",
    )
    template: Opaque | None = Field(
        None,
        description="A PodTemplateSpec that the fields above are merged into. The training container is named trainer.",
    )


@dataclass(frozen=True, slots=True)
class Pool:
    """A `TrainingPool`."""

    name: str
    spec: PoolSpec
