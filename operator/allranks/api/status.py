"""The types of `status`, the operator's write-ahead log: all counters are persisted here and none only in memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allranks.api.cost import CostStatus, UtilizationStatus
from allranks.api.data import InputStatus, OutputStatus
from allranks.api.notify import Entry
from allranks.api.scheduling import GangStatus, QueueStatus
from allranks.fields import Commit, Count, Model, Name, Reason, Replicas, Sha256, Time

Phase = Literal["Queued", "Pending", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]
FINISHED: frozenset[str] = frozenset({"Succeeded", "Failed"})
WITHOUT_PODS: frozenset[str] = frozenset({"Suspended", "Queued"})
"""A job in these phases has no pods, except for those that still terminate."""

Message = Annotated[str, StringConstraints(max_length=4096)]


class Condition(Model):
    """A condition, as everywhere in Kubernetes."""

    type: Literal[
        "Running",
        "Restarting",
        "Suspended",
        "Complete",
        "Failed",
        "ReportsLost",
        "GangScheduling",
        "LowUtilization",
        "OutputsUploaded",
    ] = Field(description="Type of the condition; Complete and Failed are final.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    reason: Annotated[str, StringConstraints(min_length=1, max_length=128)] = Field(
        description="The reason in one word, for programs."
    )
    message: Message = Field(description="The reason in a sentence, for people.")
    last_transition_time: Time = Field(description="When status changed last.")
    observed_generation: Count = Field(0, description="Generation of spec that the condition is based on.")


class RestartCounts(Model):
    """Numbers of restarts of the job."""

    counted: Count = Field(0, description="Restarts after failures of the program. They count against maxRestarts.")
    disruptions: Count = Field(
        0, description="Restarts that the cluster caused. They do not count against maxRestarts."
    )
    by_reason: Annotated[dict[Reason, Count], Field(max_length=64)] = Field(
        default_factory=dict, description="Number of restarts by the reason of the failure."
    )
    without_progress: Count | None = Field(
        None,
        description="Restarts in a row of attempts without progress, counted or not. Progress is a reported step, or a "
        "run of two minutes if the program reports no steps. The backoff grows with this number.",
    )


class RoleStatus(Model):
    """The pods of one role in the current attempt."""

    desired: Replicas = Field(0, description="Number of pods that there should be.")
    active: Replicas = Field(0, description="Pods that exist and have not terminated.")
    ready: Replicas = Field(0, description="Pods that run or have succeeded; 0 for a finished job.")
    succeeded: Replicas = Field(0, description="Pods that exited with code 0.")
    failed: Replicas = Field(0, description="Pods that failed in the current attempt.")
    waiting: Replicas = Field(0, description="Pods of an elastic job for which the cluster has no capacity yet.")


class Failure(Model):
    """The first failure of an attempt, which is the root cause of those that follow."""

    attempt: Count = Field(0, description="Number of the attempt that failed, from 0.")
    role: Reason = Field("", description="Role of the pod that failed first.")
    index: Count = Field(0, description="Index of that pod within its role.")
    rank: Count | None = Field(None, description="Global rank, if it can be determined.")
    pod: Name = Field("unknown", description="Name of the pod that failed first.")
    node: Name | None = Field(None, description="Node on which that pod ran.")
    exit_code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = Field(
        None, description="Exit code of the program."
    )
    signal: Annotated[int, Field(ge=1, le=128)] | None = Field(
        None,
        description="Signal that ended the program, if that is certain: the kernel or a launcher reported it. A "
        "container runtime reports only exit code 128 + n, which a program can also exit with.",
    )
    reason: Reason = Field("Error", description="OOMKilled, Evicted, NodeLost, Deleted, Error, ...")
    message: Message = Field("", description="The last lines of the program's output.")
    time: Time = Field(description="When the program or the pod failed.")
    ran_seconds: Annotated[float, Field(ge=0)] | None = Field(
        None, description="How long the attempt had been running."
    )


class Hold(Model):
    """The pods of a failed job that are kept for a look."""

    until: Time = Field(description="When cleanPodPolicy applies to them.")
    pods: Replicas = Field(0, description="Pods that exist.")
    gpus: Count = Field(0, description="GPUs of those that have not ended, which no other job can use meanwhile.")


class PastAttempt(Model):
    """A finished attempt."""

    attempt: Count = Field(0, description="Number of the attempt, from 0.")
    start_time: Time | None = Field(None, description="When the attempt was created.")
    running_time: Time | None = Field(None, description="When all pods of the attempt were running.")
    end_time: Time = Field(description="When the attempt was ended.")
    reason: Reason = Field(
        description="Why the attempt ended: the reason of its first failure, Resized, Suspended, Completed, ..."
    )
    counted: bool = Field(False, description="Whether its end counts against maxRestarts.")
    requeued: bool | None = Field(None, description="After it, the job waited in its queue.")
    failure: Failure | None = Field(None, description="The first failure, with the last line of its message only.")
    first_step: Count | None = Field(None, description="The first step that was reported.")
    last_step: Count | None = Field(None, description="The last step that was reported.")
    productive_seconds: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Training time without the work that was lost when the attempt ended."
    )
    lost_seconds: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Work that was lost when the attempt ended: the time since the last checkpoint."
    )


class ReplicaRestarts(Model):
    """A replica that was restarted alone in the current attempt."""

    count: Count = Field(0, description="Number of these restarts.")
    launched: bool = Field(
        False, description="Its newest pod was observed. If it is missing afterwards, it was deleted."
    )
    counted: bool = Field(False, description="Whether the last of these restarts counted against maxRestarts.")
    restart_time: Time | None = Field(
        None, description="The pod is not created before this time: the time of the decision plus the backoff."
    )
    failure: Failure | None = Field(
        None,
        description="The failure that caused the restart, with the last line of its message only. Of many restarted "
        "replicas, only the failures that later decisions depend on are kept.",
    )
    without_progress: Count | None = Field(
        None, description="Restarts in a row before which it ran for less than two minutes. The backoff grows with it."
    )


Indexes = Annotated[str, StringConstraints(max_length=65_536, pattern=r"^([0-9]{1,4}(-[0-9]{1,4})?(,|$))*$")]
"""Indexes and ranges of indexes, as in `completedIndexes` of a Kubernetes Job: `0-99,105`."""


class RestartedIndexes(Model):
    """Replicas of one role that were restarted alone in the current attempt, in a compact form."""

    counts: Annotated[dict[Reason, Indexes], Field(max_length=10_000)] = Field(
        default_factory=dict, description="Number of restarts, and the indexes of the replicas that have it."
    )
    without_progress: Annotated[dict[Reason, Indexes], Field(max_length=10_000)] = Field(
        default_factory=dict, description="Number of restarts in a row without progress, and the indexes that have it."
    )
    unlaunched: Indexes = Field("", description="Indexes of replicas whose newest pod was not observed yet.")
    restart_times: Annotated[dict[Reason, Indexes], Field(max_length=10_000)] = Field(
        default_factory=dict, description="Times before which the pods of these indexes are not created."
    )


TimeKind = Literal["Queued", "Starting", "Productive", "Lost", "Uploading", "Finished"]


class Times(Model):
    """The job's time by category, in seconds up to `since`. The numbers add up to the job's age at that time."""

    queued: Annotated[float, Field(ge=0)] = Field(0.0, description="Time without a scheduled pod, or suspended.")
    starting: Annotated[float, Field(ge=0)] = Field(0.0, description="Time from scheduling to the first step.")
    productive: Annotated[float, Field(ge=0)] = Field(0.0, description="Time spent training, without lost work.")
    lost: Annotated[float, Field(ge=0)] = Field(0.0, description="Work lost by restarts, and the time of the restarts.")
    uploading: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Time after the program's end in which outputs were uploaded. None: there was none."
    )
    category: TimeKind = Field(
        "Queued",
        description="Category of the time after since. Finished: the job has finished, and no time counts any more.",
    )
    since: Time = Field(description="Time up to which the numbers count.")
    productive_since: Time | None = Field(None, description="Since when the current attempt has been productive.")
    measured: bool = Field(
        False, description="Whether the program's reports are used. Without them, Running counts as productive."
    )
    by_reason: Annotated[dict[Reason, Annotated[float, Field(ge=0)]], Field(max_length=64)] = Field(
        default_factory=dict, description="Lost seconds by the reason of the restart."
    )


class Straggler(Model):
    """A rank that is slower than its peers."""

    rank: Count | None = Field(None, description="Global rank, if it can be determined.")
    replica: Name = Field(description="Replica of the rank (role-index).")
    node: Name | None = Field(None, description="Node on which the rank runs.")
    slowdown: Annotated[float, Field(ge=0)] = Field(description="Its step time divided by the median of its peers.")
    loading: bool | None = Field(None, description="Whether it is slow because it waits for data.")


class RankProgress(Model):
    """Progress of one rank."""

    rank: Count | None = Field(None, description="Global rank, if it can be determined.")
    replica: Name = Field(description="Replica of the rank (role-index).")
    step: Count | None = Field(None, description="Number of completed steps.")
    lag: Count = Field(0, description="Steps behind the most advanced rank.")
    step_seconds: Annotated[float, Field(ge=0)] | None = Field(None, description="Seconds that one step takes.")
    busy_seconds: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Part of stepSeconds without the time spent waiting for other ranks."
    )


class CurvePoint(Model):
    """One point of the metric's curve."""

    time: Time = Field(description="When the rank reported this point.")
    attempt: Count = Field(0, description="Number of the attempt that reported it.")
    step: Count = Field(description="Completed steps at that time.")
    value: float | None = Field(None, description="Value of the metric at that step.")
    samples_per_second: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Throughput of all ranks together."
    )


class ProgressStatus(Model):
    """Progress of the training, from the program's reports."""

    step: Count | None = Field(None, description="Number of completed steps.")
    total_steps: Count | None = Field(None, description="Steps of the whole training.")
    epoch: Count | None = Field(None, description="Number of completed epochs.")
    metrics: Annotated[dict[Reason, float], Field(max_length=32)] = Field(
        default_factory=dict, description="Latest value of each metric."
    )
    samples_per_second: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Throughput of all ranks together."
    )
    loading: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Share of a step in which ranks wait for data."
    )
    eta_seconds: Annotated[float, Field(ge=0)] | None = Field(None, description="Estimated time to the last step.")
    last_report: Time | None = Field(None, description="Time of the latest report of any rank.")
    first_step_time: Time | None = Field(None, description="When the first step of the current attempt was reported.")
    first_step: Count | None = Field(None, description="That first step, from which the attempt resumed.")
    checkpoint_step: Count | None = Field(None, description="Step of the newest checkpoint of the current attempt.")
    checkpoint_time: Time | None = Field(None, description="When that checkpoint was stored.")
    saves_on_request: bool | None = Field(
        None, description="Whether ranks store a checkpoint when they are asked for one."
    )
    stragglers: Annotated[list[Straggler], Field(max_length=64)] = Field(
        default_factory=list, description="Ranks that are slower than their peers."
    )
    ranks: Annotated[list[RankProgress], Field(max_length=16)] = Field(
        default_factory=list, description="The ranks that lag most, then the slowest, at most 16."
    )
    reporting: Count = Field(0, description="Number of ranks that report.")
    curve_metric: Reason = Field("", description="Metric of the curve: loss, or the first metric if there is no loss.")
    curve: Annotated[list[CurvePoint], Field(max_length=64)] = Field(
        default_factory=list, description="Points over the whole life of the job, at most 64."
    )
    summary: Reason = Field("", description="For kubectl get: completed and total steps, and percent.")
    eta: Reason = Field("", description="For kubectl get: the time to the last step.")


class CheckpointRequest(Model):
    """Ranks are asked for a checkpoint before their pods are deleted."""

    reason: Reason = Field(description="Why the pods go: Suspended, Resized, Grown, Evicted or QueueAdded.")
    time: Time = Field(description="When the ranks were asked. A checkpoint that is stored later ends the wait.")
    deadline: Time = Field(description="When the pods are deleted without a new checkpoint.")
    ranks: Count = Field(0, description="Number of ranks that had reported. A restarted operator waits for as many.")


class CodeStatus(Model):
    """The code that the current attempt runs."""

    sha256: Sha256 | None = Field(None, description="SHA-256 of the archive in the ConfigMap.")
    commit: Commit | None = Field(None, description="The git commit of the code.")
    dirty: bool | None = Field(None, description="Whether files differ from the commit.")


class Status(Model):
    """Observed state of the job."""

    # One field for the API server: managedFields for every part would double the cost of writing a large status.
    model_config = {"json_schema_extra": {"x-kubernetes-map-type": "atomic"}}

    phase: Phase = Field("Pending", description="State of the job in one word, for pipelines.")
    conditions: Annotated[list[Condition], Field(max_length=9)] = Field(
        default_factory=list,
        description="Running, Restarting, Suspended, Complete, Failed, ReportsLost, GangScheduling, LowUtilization, "
        "OutputsUploaded; for kubectl wait.",
    )
    observed_generation: Count = Field(0, description="Generation of spec that this status is based on.")
    attempt: Count = Field(0, description="Number of the current attempt, from 0.")
    launched: bool = Field(
        False, description="All pods of the attempt were observed. If one is missing afterwards, it was deleted."
    )
    restarts: RestartCounts = Field(default_factory=RestartCounts, description="Numbers of restarts of the job.")
    restart_summary: Reason | None = Field(
        None, description="For kubectl get: all restarts, and how many of them disruptions caused: 3 (1 disrupted)."
    )
    replica_restarts: Annotated[dict[Name, ReplicaRestarts], Field(max_length=10_000)] = Field(
        default_factory=dict, description="Replicas (role-index) that were restarted alone in the current attempt."
    )
    restarted_indexes: Annotated[dict[Reason, RestartedIndexes], Field(max_length=16)] | None = Field(
        None,
        description="Further restarted replicas by role. Used if there are so many that replicaRestarts would be too "
        "large.",
    )
    ignored: Annotated[list[Name], Field(max_length=10_000)] = Field(
        default_factory=list, description="Replicas (role-index) whose failure a rule ignored in the current attempt."
    )
    done: Annotated[dict[Reason, Annotated[str, StringConstraints(max_length=32_768)]], Field(max_length=16)] = Field(
        default_factory=dict,
        description="Replicas that completed in the current attempt, by role, for example 0-3,5. They stay done when "
        "their pods are deleted.",
    )
    roles: Annotated[dict[Reason, RoleStatus], Field(max_length=16)] = Field(
        default_factory=dict, description="Numbers of pods in the current attempt, by role."
    )
    ready: Annotated[str, StringConstraints(max_length=32)] = Field(
        "", description="Pods that run or have succeeded, and all pods: 5/5. 0/5 for a finished job."
    )
    avoided_nodes: Annotated[list[Name], Field(max_length=10)] = Field(
        default_factory=list,
        description="Nodes on which earlier attempts lost pods. Pods of the current attempt prefer other nodes.",
    )
    last_failure: Failure | None = Field(None, description="The first failure of the last attempt that failed.")
    history: Annotated[list[PastAttempt], Field(max_length=10)] = Field(
        default_factory=list, description="The last ten finished attempts, oldest first."
    )
    start_time: Time | None = Field(None, description="When the operator first acted on the job.")
    completion_time: Time | None = Field(None, description="When the job succeeded or failed.")
    hold: Hold | None = Field(None, description="The pods of a failed job that restart.holdSeconds keeps.")
    attempt_time: Time | None = Field(None, description="When the current attempt was created.")
    running_time: Time | None = Field(None, description="When all pods of the current attempt were running.")
    first_running_time: Time | None = Field(
        None, description="When all pods of the job were running for the first time, in any attempt."
    )
    restart_time: Time | None = Field(
        None, description="End of the backoff: pods of the attempt are not created earlier."
    )
    active_since: Time | None = Field(None, description="Since when the job has not been suspended.")
    active_seconds: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Time before activeSince in which the job was not suspended."
    )
    times: Times | None = Field(None, description="The job's time by category.")
    goodput: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Productive time divided by all time but queued."
    )
    cost: CostStatus | None = Field(None, description="The GPU time of the job and its price. None without GPUs.")
    notifications: Annotated[list[Entry], Field(max_length=12)] = Field(
        default_factory=list,
        description="Notifications as OCCASION/ATTEMPT RECEIVER, with sent or failed at the end when they are over.",
    )
    utilization: UtilizationStatus | None = Field(None, description="The current window of the policy utilization.")
    progress: ProgressStatus | None = Field(None, description="Progress of the training.")
    gang: GangStatus | None = Field(
        None, description="Gang scheduling of the current attempt. None: the scheduler places its pods one by one."
    )
    queue: QueueStatus | None = Field(None, description="The job's place in a queue, if it has one.")
    checkpoint_request: CheckpointRequest | None = Field(
        None, description="The checkpoint that ranks are asked for before their pods are deleted."
    )
    resumed_from: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        None, description="Where the checkpoints are that spec.resumeFrom names: claim://CLAIM/FOLDER, or an address."
    )
    code: CodeStatus | None = Field(None, description="The code that the current attempt runs, if spec.code names it.")
    inputs: Annotated[list[InputStatus], Field(max_length=9)] = Field(
        default_factory=list, description="The inputs with the revisions that the ranks read."
    )
    outputs: Annotated[list[OutputStatus], Field(max_length=8)] = Field(
        default_factory=list, description="The outputs, and whether they are uploaded."
    )
    selector: Annotated[str, StringConstraints(max_length=512)] = Field(
        "", description="Label selector of the workers, for the scale subresource."
    )

    @property
    def attempt_failure(self) -> Failure | None:
        """The failure that ended the previous attempt, with the last line of its message only."""
        return self.history[-1].failure if self.history else None

    @property
    def ever_ran(self) -> bool:
        """Return whether all pods ran at the same time in some attempt. Older operators left only the times of
        attempts."""
        return bool(self.first_running_time or self.running_time or any(past.running_time for past in self.history))

    def condition(self, kind: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == kind), None)
