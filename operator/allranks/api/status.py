"""The types of `status`, the write-ahead log of the operator: every counter lives here, none in memory."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allranks.fields import Count, Model, Name, Reason, Replicas

Phase = Literal["Pending", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]
FINISHED: frozenset[str] = frozenset({"Succeeded", "Failed"})

Message = Annotated[str, StringConstraints(max_length=4096)]
Time = Annotated[datetime, Field(strict=False)]


class Condition(Model):
    """A condition, as everywhere in Kubernetes."""

    type: Literal["Running", "Restarting", "Suspended", "Complete", "Failed"] = Field(description="Which condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Reason = Field("", description="One word: why.")
    message: Message = Field("", description="A sentence for people.")
    last_transition_time: Time = Field(description="When status changed last.")
    observed_generation: Count = Field(0, description="The generation this was decided on.")


class RestartCounts(Model):
    """How often the job was restarted."""

    counted: Count = Field(0, description="Restarts after failures of the program; they count against maxRestarts.")
    disruptions: Count = Field(0, description="Restarts that the cluster caused; they count against nothing.")
    by_reason: Annotated[dict[Reason, Count], Field(max_length=64)] = Field(
        default_factory=dict, description="Restarts by the reason of their cause."
    )


class RoleStatus(Model):
    """The pods of one role in the present attempt."""

    desired: Replicas = Field(0, description="Pods there must be.")
    active: Replicas = Field(0, description="Pods that exist and have not ended.")
    ready: Replicas = Field(0, description="Pods that run, or have succeeded.")
    succeeded: Replicas = Field(0, description="Pods that ended with exit code 0.")
    failed: Replicas = Field(0, description="Pods that failed.")
    waiting: Replicas = Field(0, description="Pods of an elastic job for which there is no room yet.")


class Failure(Model):
    """The first failure of an attempt: the cause, not the avalanche that follows."""

    attempt: Count = Field(0, description="Attempt in which it happened.")
    role: Reason = Field("", description="Role of the pod that failed first.")
    index: Count = Field(0, description="Index of that pod within its role.")
    rank: Count | None = Field(None, description="Global rank, where it is known.")
    pod: Name = Field("unknown", description="Name of the pod.")
    node: Name | None = Field(None, description="Node it ran on.")
    exit_code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = Field(
        None, description="Exit code of the program."
    )
    signal: Annotated[int, Field(ge=1, le=128)] | None = Field(None, description="Signal that ended it.")
    reason: Reason = Field("Error", description="OOMKilled, Evicted, NodeLost, Deleted, Error, ...")
    message: Message = Field("", description="Its last lines.")
    time: Time = Field(description="When it ended.")
    ran_seconds: Annotated[float, Field(ge=0)] | None = Field(
        None, description="How long the attempt had been running."
    )


class PastAttempt(Model):
    """An attempt that is over."""

    attempt: Count = Field(0, description="Its number, from 0.")
    start_time: Time | None = Field(None, description="When it was decided on.")
    running_time: Time | None = Field(None, description="When all of its pods were running.")
    end_time: Time = Field(description="When its end was decided on.")
    reason: Reason = Field(description="Why it ended: its first failure's reason, Resized, Suspended, Completed, ...")
    counted: bool = Field(False, description="Its end counts against maxRestarts.")
    failure: Failure | None = Field(None, description="What failed first, with its last line only.")
    first_step: Count | None = Field(None, description="Its first reported step.")
    last_step: Count | None = Field(None, description="Its last reported step.")
    productive_seconds: Annotated[float, Field(ge=0)] | None = Field(
        None, description="How long it trained, without what its end threw away."
    )
    lost_seconds: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Work that its end threw away: since the last checkpoint."
    )


class ReplicaRestarts(Model):
    """A replica that was restarted alone in the present attempt."""

    count: Count = Field(0, description="How often.")
    launched: bool = Field(False, description="Its newest pod was seen: from now on, missing means deleted by someone.")
    counted: bool = Field(False, description="Whether the last of these restarts counted against maxRestarts.")
    restart_time: Time = Field(description="The pod is not made before this: the decision, and backoff.")
    failure: Failure | None = Field(None, description="What the restart was for, with its last line only.")


TimeKind = Literal["queued", "starting", "productive", "lost", "over"]


class Times(Model):
    """Where the job's time went, in seconds up to `since`: the four numbers add up to its age then."""

    queued: Annotated[float, Field(ge=0)] = Field(0.0, description="No pod scheduled, or suspended.")
    starting: Annotated[float, Field(ge=0)] = Field(0.0, description="Until the first step.")
    productive: Annotated[float, Field(ge=0)] = Field(0.0, description="Training.")
    lost: Annotated[float, Field(ge=0)] = Field(0.0, description="Work thrown away by restarts, and the restarts.")
    state: TimeKind = Field("queued", description="What the time since then counts as; over: nothing any more.")
    since: Time = Field(description="Up to when time is accounted for.")
    productive_since: Time | None = Field(None, description="Since when this attempt has been productive.")
    measured: bool = Field(False, description="By the program's reports; without them Running counts as productive.")
    by_reason: Annotated[dict[Reason, Annotated[float, Field(ge=0)]], Field(max_length=64)] = Field(
        default_factory=dict, description="Lost seconds by the reason of what lost them."
    )


class Straggler(Model):
    """A rank that is slower than its peers."""

    rank: Count | None = Field(None, description="Global rank, where it is known.")
    replica: Name = Field(description="Its replica (role-index).")
    node: Name | None = Field(None, description="Node it runs on.")
    slowdown: Annotated[float, Field(ge=0)] = Field(description="Its step time by the median of its peers.")


class RankProgress(Model):
    """How far one rank is."""

    rank: Count | None = Field(None, description="Global rank, where it is known.")
    replica: Name = Field(description="Its replica (role-index).")
    step: Count | None = Field(None, description="Steps done.")
    lag: Count = Field(0, description="Steps behind the rank that is furthest.")
    step_seconds: Annotated[float, Field(ge=0)] | None = Field(None, description="Time of a step.")
    busy_seconds: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Of that, its own work, without waiting for the others."
    )


class CurvePoint(Model):
    """A point of the curve."""

    time: Time = Field(description="When it was reported.")
    attempt: Count = Field(0, description="In which attempt.")
    step: Count = Field(description="After how many steps.")
    value: float | None = Field(None, description="The metric's value.")
    samples_per_second: Annotated[float, Field(ge=0)] | None = Field(None, description="Throughput of all ranks.")


class ProgressStatus(Model):
    """How far the training is, from the program's reports."""

    step: Count | None = Field(None, description="Steps done.")
    total_steps: Count | None = Field(None, description="Steps there will be.")
    epoch: Count | None = Field(None, description="Epochs done.")
    metrics: Annotated[dict[Reason, float], Field(max_length=32)] = Field(
        default_factory=dict, description="Newest value of each metric."
    )
    samples_per_second: Annotated[float, Field(ge=0)] | None = Field(None, description="Throughput of all ranks.")
    eta_seconds: Annotated[float, Field(ge=0)] | None = Field(None, description="Time to the last step at this rate.")
    last_report: Time | None = Field(None, description="When a rank reported last.")
    first_step_time: Time | None = Field(None, description="When this attempt's first step was reported.")
    first_step: Count | None = Field(None, description="Which one that was: where it resumed.")
    checkpoint_step: Count | None = Field(None, description="Step of this attempt's newest checkpoint.")
    checkpoint_time: Time | None = Field(None, description="When that was safely stored.")
    stragglers: Annotated[list[Straggler], Field(max_length=64)] = Field(
        default_factory=list, description="Ranks slower than their peers."
    )
    ranks: Annotated[list[RankProgress], Field(max_length=16)] = Field(
        default_factory=list, description="The ranks that lag most, then the slowest; 16 at most."
    )
    reporting: Count = Field(0, description="How many ranks report.")
    curve_metric: Reason = Field("", description="What the curve shows: loss, or else the first metric.")
    curve: Annotated[list[CurvePoint], Field(max_length=64)] = Field(
        default_factory=list, description="Over the whole life of the job, thinned to 64 points."
    )
    summary: Reason = Field("", description="For kubectl get: steps done of all, and percent.")
    eta: Reason = Field("", description="For kubectl get: the time to the last step.")


class Status(Model):
    """What the job is doing."""

    # One field to the API server: managedFields of every part would double what the write of a large one costs.
    model_config = {"json_schema_extra": {"x-kubernetes-map-type": "atomic"}}

    phase: Phase = Field("Pending", description="One word, for pipelines.")
    conditions: Annotated[list[Condition], Field(max_length=8)] = Field(
        default_factory=list, description="Running, Restarting, Suspended, Complete, Failed; for kubectl wait."
    )
    observed_generation: Count = Field(0, description="The generation this status speaks of.")
    attempt: Count = Field(0, description="Number of the present attempt, from 0.")
    launched: bool = Field(
        False, description="All pods of the attempt were seen: from now on, missing means deleted by someone."
    )
    restarts: RestartCounts = Field(default_factory=RestartCounts, description="How often the job was restarted.")
    replica_restarts: Annotated[dict[Name, ReplicaRestarts], Field(max_length=10_000)] = Field(
        default_factory=dict, description="Replicas (role-index) that were restarted alone in this attempt."
    )
    ignored: Annotated[list[Name], Field(max_length=10_000)] = Field(
        default_factory=list, description="Replicas (role-index) whose failure a rule ignores in this attempt."
    )
    roles: Annotated[dict[Reason, RoleStatus], Field(max_length=16)] = Field(
        default_factory=dict, description="Pods by role."
    )
    ready: Annotated[str, StringConstraints(max_length=32)] = Field(
        "", description="Ready pods of all, for example 5/5."
    )
    avoided_nodes: Annotated[list[Name], Field(max_length=10)] = Field(
        default_factory=list,
        description="Nodes that earlier attempts lost pods with: this attempt's pods run elsewhere where they can.",
    )
    last_failure: Failure | None = Field(None, description="The first failure of the last attempt that failed.")
    history: Annotated[list[PastAttempt], Field(max_length=10)] = Field(
        default_factory=list, description="The last ten attempts that are over, oldest first."
    )
    start_time: Time | None = Field(None, description="When the job was first acted on.")
    completion_time: Time | None = Field(None, description="When the job was over.")
    attempt_time: Time | None = Field(None, description="When this attempt was decided on.")
    running_time: Time | None = Field(None, description="When all pods of this attempt were running.")
    restart_time: Time | None = Field(None, description="Backoff: the attempt's pods are not made before this.")
    active_since: Time | None = Field(None, description="Since when the job has been unsuspended.")
    active_seconds: Annotated[float, Field(ge=0)] = Field(0.0, description="Time unsuspended before activeSince.")
    times: Times | None = Field(None, description="Where the job's time went.")
    goodput: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="productive / (all but queued).")
    progress: ProgressStatus | None = Field(None, description="How far the training is.")
    selector: Annotated[str, StringConstraints(max_length=512)] = Field(
        "", description="Label selector of the workers, for the scale subresource."
    )

    @property
    def attempt_failure(self) -> Failure | None:
        """What ended the attempt before this one, with its last line only."""
        return self.history[-1].failure if self.history else None

    def condition(self, kind: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == kind), None)
