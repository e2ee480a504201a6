"""The types of `status.queue`: the admission of a job by Kueue, and its last eviction."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from allranks.fields import Count, Model, Name, Reason, Replicas

Time = Annotated[datetime, Field(strict=False)]

_Key = Annotated[str, StringConstraints(max_length=317)]
_Word = Annotated[str, StringConstraints(max_length=63)]
NodeLabels = Annotated[dict[_Key, _Word], Field(max_length=8)]
Labels = Annotated[dict[_Key, _Word], Field(max_length=4)]
Annotations = Annotated[dict[_Key, Annotated[str, StringConstraints(max_length=256)]], Field(max_length=4)]


class Toleration(Model):
    """A toleration, as in a pod."""

    key: _Key | None = Field(None, description="Key of the tolerated taint. Without it, all keys.")
    operator: _Word | None = Field(None, description="Exists, or Equal, which is the default.")
    value: _Word | None = Field(None, description="Value of the tolerated taint.")
    effect: _Word | None = Field(None, description="Effect of the tolerated taint. Without it, all effects.")
    toleration_seconds: Annotated[int, Field(ge=-(2**53), le=2**53)] | None = Field(
        None, description="How long a taint of effect NoExecute is tolerated."
    )


class PodPlacement(Model):
    """What an admission adds to pods."""

    node_selector: NodeLabels = Field(default_factory=dict, description="Node labels of the assigned flavors.")
    tolerations: Annotated[list[Toleration], Field(max_length=8)] = Field(
        default_factory=list, description="Tolerations of the assigned flavors."
    )
    labels: Labels = Field(default_factory=dict, description="Labels that admission checks add to the pods.")
    annotations: Annotations = Field(default_factory=dict, description="Annotations that admission checks add.")


class PodSetAdmission(Model):
    """What Kueue assigned to the pods of one role."""

    count: Replicas = Field(description="Number of pods that Kueue admitted.")
    requested: Replicas = Field(description="Number of pods that the Workload asked for.")
    placement: Count = Field(0, description="Index of their entry in placements.")
    topology: bool = Field(False, description="Kueue assigns a node to each pod after its creation.")


class Eviction(Model):
    """The last time that the job lost its quota."""

    reason: Reason = Field(description="Preempted, ClusterQueueStopped, PodsReadyTimeout, Resized, ...")
    message: Annotated[str, StringConstraints(max_length=256)] = Field(
        "", description="The message, as a rule Kueue's."
    )
    time: Time = Field(description="When the job gave up its pods.")


class QueueStatus(Model):
    """The job's place in a queue of Kueue."""

    name: Name = Field(description="The LocalQueue of the job's namespace.")
    workload: Name | None = Field(None, description="The Workload by which Kueue admitted the job.")
    workload_uid: Reason = Field("", description="UID of that Workload, which proves that it is still the same.")
    cluster_queue: Name | None = Field(None, description="The ClusterQueue that admitted the job.")
    admitted_time: Time | None = Field(None, description="When the operator acted on the admission.")
    pod_sets: Annotated[dict[Reason, PodSetAdmission], Field(max_length=16)] = Field(
        default_factory=dict, description="The admission by role. Empty: the job is not admitted."
    )
    placements: Annotated[list[PodPlacement], Field(max_length=6)] = Field(
        default_factory=list, description="What the admission adds to pods. Roles with the same flavors share an entry."
    )
    evictions: Count = Field(0, description="Number of times that the job lost its quota.")
    last_eviction: Eviction | None = Field(None, description="The last one of these times.")
