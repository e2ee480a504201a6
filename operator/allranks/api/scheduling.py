"""The types of `spec.scheduling`, `status.gang` and `status.queue`: where pods are placed, and which together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from pydantic import Field, StringConstraints

from allranks.api import cel_rules as cel
from allranks.fields import (
    Count,
    GangBackend,
    LabelKey,
    Model,
    Name,
    Reason,
    Replicas,
    Seconds,
    StatusPart,
    TextPart,
    Time,
    rules,
)


class Topology(Model):
    """Nodes that are close to each other. Set exactly one of required and preferred."""

    model_config = {"json_schema_extra": rules(*cel.TOPOLOGY)}

    required: LabelKey | None = Field(
        None,
        description="Node label that must have the same value on the nodes of all pods, for example "
        "topology.kubernetes.io/zone, or the label of a rack or of an NVLink domain.",
    )
    preferred: LabelKey | None = Field(
        None, description="Node label that should have the same value on the nodes of all pods, if there is room."
    )


class Preemption(Model):
    """Protection of a job in a queue of Kueue from preemption while that would lose work."""

    boost_until_checkpoint: int = Field(
        1,
        ge=1,
        le=1_000_000,
        description="What is added to the job's priority while it is protected. Kueue reads it from an annotation of "
        "the Workload if its feature PriorityBoost is on.",
    )
    min_run_seconds: Seconds = Field(
        0, description="A job is protected for this time after all its pods run, also if its ranks report no steps."
    )


class Scheduling(Model):
    """How the pods are placed."""

    gang: Literal["Auto", *get_args(GangBackend), "None"] | None = Field(  # type: ignore[valid-type]
        None,
        description="Gang scheduling, which places all pods that the job needs or none. Native: PodGroups of "
        "Kubernetes 1.36 and later. Kueue: admission by the job's queue. Volcano, Coscheduling: their schedulers. "
        "None: the scheduler places the pods one by one. Auto: Volcano or Coscheduling if the pods name that "
        "scheduler, else Native if the API server serves it, else None. Default: Auto.",
    )
    gang_timeout_seconds: Seconds | None = Field(
        None,
        description="Without a gang scheduler, how long the job keeps a part of its pods while another job waits for "
        "room as well. Then the job with the lower priority, or else the younger one, gives its pods up and tries "
        "again later. With Coscheduling, how long the scheduler reserves nodes for a part of the pods. 0: no limit. "
        "Default: 300.",
    )
    preemption: Preemption | None = Field(
        None,
        description="Raises the job's priority in its queue while a preemption would lose more than a minute of work, "
        "by the steps and checkpoints that ranks report. Default: the priority does not change.",
    )
    priority_class_name: Name | None = Field(None, description="Priority class of the pods.")
    queue: Name | None = Field(
        None,
        description="The LocalQueue of Kueue in which the job waits for its quota. The label kueue.x-k8s.io/queue-name "
        "means the same, and can be changed. Default: no queue.",
    )
    topology: Topology | None = Field(None, description="Nodes that are close to each other. Default: any nodes.")
    topology_key: Name | None = Field(
        None, description="Older form of topology.required, with pod affinity whatever gang is."
    )


@dataclass(frozen=True, kw_only=True)
class GangStatus(TextPart):
    """How the pods of the current attempt are placed together."""

    backend: Annotated[GangBackend, Field(description="What places them: Native, Kueue, Volcano or Coscheduling.")]
    api_version: Annotated[
        Name | None, Field(description="API version of the attempt's PodGroup, if there is one.")
    ] = None
    min_count: Annotated[Replicas, Field(description="Pods that are placed together or not at all.")]


_Key = Annotated[str, StringConstraints(max_length=317)]
_Word = Annotated[str, StringConstraints(max_length=63)]
NodeLabels = Annotated[dict[_Key, _Word], Field(max_length=8)]
Labels = Annotated[dict[_Key, _Word], Field(max_length=4)]
Annotations = Annotated[dict[_Key, Annotated[str, StringConstraints(max_length=256)]], Field(max_length=4)]


@dataclass(frozen=True, kw_only=True)
class Toleration(TextPart):
    """A toleration, as in a pod."""

    key: Annotated[_Key | None, Field(description="Key of the tolerated taint. Without it, all keys.")] = None
    operator: Annotated[_Word | None, Field(description="Exists, or Equal, which is the default.")] = None
    value: Annotated[_Word | None, Field(description="Value of the tolerated taint.")] = None
    effect: Annotated[_Word | None, Field(description="Effect of the tolerated taint. Without it, all effects.")] = None
    toleration_seconds: Annotated[
        Annotated[int, Field(ge=-(2**53), le=2**53)] | None,
        Field(description="How long a taint of effect NoExecute is tolerated."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PodPlacement(StatusPart):
    """What an admission adds to pods."""

    node_selector: Annotated[NodeLabels, Field(description="Node labels of the assigned flavors.")] = field(
        default_factory=dict
    )
    tolerations: Annotated[
        list[Toleration], Field(max_length=8, description="Tolerations of the assigned flavors.")
    ] = field(default_factory=list)
    labels: Annotated[Labels, Field(description="Labels that admission checks add to the pods.")] = field(
        default_factory=dict
    )
    annotations: Annotated[Annotations, Field(description="Annotations that admission checks add.")] = field(
        default_factory=dict
    )


@dataclass(frozen=True, kw_only=True)
class PodSetAdmission(StatusPart):
    """What Kueue assigned to the pods of one role."""

    count: Annotated[Replicas, Field(description="Number of pods that Kueue admitted.")]
    requested: Annotated[Replicas, Field(description="Number of pods that the Workload asked for.")]
    placement: Annotated[Count, Field(description="Index of their entry in placements.")] = 0
    topology: Annotated[bool, Field(description="Kueue assigns a node to each pod after its creation.")] = False


@dataclass(frozen=True, kw_only=True)
class Eviction(TextPart):
    """The last time that the job lost its quota."""

    reason: Annotated[Reason, Field(description="Preempted, ClusterQueueStopped, PodsReadyTimeout, Resized, ...")]
    message: Annotated[str, StringConstraints(max_length=256), Field(description="The message, as a rule Kueue's.")] = (
        ""
    )
    time: Annotated[Time, Field(description="When the job gave up its pods.")]


@dataclass(frozen=True, kw_only=True)
class QueueStatus(TextPart):
    """The job's place in a queue of Kueue."""

    name: Annotated[Name, Field(description="The LocalQueue of the job's namespace.")]
    workload: Annotated[Name | None, Field(description="The Workload by which Kueue admitted the job.")] = None
    workload_uid: Annotated[
        Reason, Field(description="UID of that Workload, which proves that it is still the same.")
    ] = ""
    cluster_queue: Annotated[Name | None, Field(description="The ClusterQueue that admitted the job.")] = None
    admitted_time: Annotated[Time | None, Field(description="When the operator acted on the admission.")] = None
    pod_sets: Annotated[
        dict[Reason, PodSetAdmission],
        Field(max_length=16, description="The admission by role. Empty: the job is not admitted."),
    ] = field(default_factory=dict)
    placements: Annotated[
        list[PodPlacement],
        Field(max_length=6, description="What the admission adds to pods. Roles with the same flavors share an entry."),
    ] = field(default_factory=list)
    evictions: Annotated[Count, Field(description="Number of times that the job lost its quota.")] = 0
    last_eviction: Annotated[Eviction | None, Field(description="The last one of these times.")] = None
