"""The types of `spec.scheduling`: where the pods are placed, and which of them together."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from allranks.api import cel_rules as cel
from allranks.fields import GangBackend, LabelKey, Model, Name, Seconds, rules


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
