"""The types of `status`, the operator's write-ahead log: all counters are persisted here and none only in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allranks.api.cost import CostStatus, UtilizationStatus
from allranks.api.data import InputStatus, OutputStatus
from allranks.api.notify import Entry
from allranks.api.scheduling import GangStatus, QueueStatus
from allranks.fields import (
    EXACT,
    Commit,
    Count,
    Name,
    NonNegative,
    Reason,
    Replicas,
    Sha256,
    StatusPart,
    TextPart,
    Time,
)

Phase = Literal["Queued", "Pending", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]
FINISHED: frozenset[str] = frozenset({"Succeeded", "Failed"})
WITHOUT_PODS: frozenset[str] = frozenset({"Suspended", "Queued"})
"""A job in these phases has no pods, except for those that still terminate."""

Message = Annotated[str, StringConstraints(max_length=4096)]
Sentence = Annotated[str, StringConstraints(max_length=2048)]


@dataclass(frozen=True, kw_only=True)
class Condition(TextPart):
    """A condition, as everywhere in Kubernetes."""

    type: Annotated[
        Literal[
            "Running",
            "Restarting",
            "Suspended",
            "Complete",
            "Failed",
            "ReportsLost",
            "HardwareUnhealthy",
            "CheckpointOverdue",
            "GangScheduling",
            "LowUtilization",
            "OutputsUploaded",
        ],
        Field(description="Type of the condition; Complete and Failed are final."),
    ]
    status: Annotated[Literal["True", "False", "Unknown"], Field(description="Whether the condition holds.")]
    reason: Annotated[
        str, StringConstraints(min_length=1, max_length=128), Field(description="The reason in one word, for programs.")
    ]
    message: Annotated[Message, Field(description="The reason in a sentence, for people.")]
    last_transition_time: Annotated[Time, Field(description="When status changed last.")]
    observed_generation: Annotated[Count, Field(description="Generation of spec that the condition is based on.")] = 0


@dataclass(frozen=True, kw_only=True)
class RestartCounts(TextPart):
    """Numbers of restarts of the job."""

    counted: Annotated[
        Count, Field(description="Restarts after failures of the program. They count against maxRestarts.")
    ] = 0
    disruptions: Annotated[
        Count, Field(description="Restarts that the cluster caused. They do not count against maxRestarts.")
    ] = 0
    by_reason: Annotated[
        dict[Reason, Count], Field(max_length=64, description="Number of restarts by the reason of the failure.")
    ] = field(default_factory=dict)
    recent: Annotated[
        list[Time] | None,
        Field(max_length=30, description="Times of the newest counted restarts, for restart.window."),
    ] = None
    without_progress: Annotated[
        Count | None,
        Field(
            description="Restarts in a row of attempts without progress, counted or not. Progress is a reported step, "
            "or a run of two minutes if the program reports no steps. The backoff grows with this number."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RoleStatus(StatusPart):
    """The pods of one role in the current attempt."""

    desired: Annotated[Replicas, Field(description="Number of pods that there should be.")] = 0
    active: Annotated[Replicas, Field(description="Pods that exist and have not terminated.")] = 0
    ready: Annotated[Replicas, Field(description="Pods that run or have succeeded; 0 for a finished job.")] = 0
    succeeded: Annotated[Replicas, Field(description="Pods that exited with code 0.")] = 0
    failed: Annotated[Replicas, Field(description="Pods that failed in the current attempt.")] = 0
    waiting: Annotated[
        Replicas, Field(description="Pods of an elastic job for which the cluster has no capacity yet.")
    ] = 0


Because = Literal[
    "LostPeer",
    "Absent",
    "CompletedEarly",
    "NeverWhole",
    "PodRefused",
    "NotJoined",
    "DeviceError",
    "DeviceUnhealthy",
    "NodeUnhealthy",
    "PreflightFailed",
    "InitContainer",
    "InitContainerOfNode",
    "NetworkError",
    "WriteFailed",
    "CheckpointUnreadable",
]
"""Evidence about a failure."""

Verdict = Literal["Program", "Checkpoint", "Input", "Node", "Network", "Capacity", "Platform", "User", "Unknown"]
"""Whose fault a failure is."""


@dataclass(frozen=True, kw_only=True)
class Failure(TextPart):
    """The first failure of an attempt, which is the root cause of those that follow."""

    attempt: Annotated[Count, Field(description="Number of the attempt that failed, from 0.")] = 0
    role: Annotated[Reason, Field(description="Role of the pod that failed first.")] = ""
    index: Annotated[Count, Field(description="Index of that pod within its role.")] = 0
    rank: Annotated[Count | None, Field(description="Global rank, if it can be determined.")] = None
    pod: Annotated[Name, Field(description="Name of the pod that failed first.")] = "unknown"
    node: Annotated[Name | None, Field(description="Node on which that pod ran.")] = None
    exit_code: Annotated[
        Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None, Field(description="Exit code of the program.")
    ] = None
    signal: Annotated[
        Annotated[int, Field(ge=1, le=128)] | None,
        Field(
            description="Signal that ended the program, if that is certain: the kernel or a launcher reported it. A "
            "container runtime reports only exit code 128 + n, which a program can also exit with."
        ),
    ] = None
    reason: Annotated[Reason, Field(description="OOMKilled, Evicted, NodeLost, Deleted, Error, ...")] = "Error"
    because: Annotated[
        Because | None,
        Field(description="The evidence about the cause, beyond the end of the pod: docs/reference/verdicts.md."),
    ] = None
    verdict: Annotated[
        Verdict | None, Field(description="Whose fault it is, as the evidence shows: docs/reference/verdicts.md.")
    ] = None
    checkpoint_step: Annotated[
        Count | None, Field(description="Step of the checkpoint that could not be read, if it is certain.")
    ] = None
    step: Annotated[
        Count | None,
        Field(description="Step in which the rank failed: the one after the last that it reported as completed."),
    ] = None
    message: Annotated[
        Message, Field(description="What ended the program, as it printed it, with the last lines of its output.")
    ] = ""
    time: Annotated[Time, Field(description="When the program or the pod failed.")]
    ran_seconds: Annotated[NonNegative | None, Field(description="How long the attempt had been running.")] = None


@dataclass(frozen=True, kw_only=True)
class Hold(StatusPart):
    """The pods of a failed job that are kept for a look."""

    until: Annotated[Time, Field(description="When cleanPodPolicy applies to them.")]
    pods: Annotated[Replicas, Field(description="Pods that exist.")] = 0
    gpus: Annotated[
        Count, Field(description="GPUs of those that have not ended, which no other job can use meanwhile.")
    ] = 0


@dataclass(frozen=True, kw_only=True)
class PastAttempt(TextPart):
    """A finished attempt."""

    attempt: Annotated[Count, Field(description="Number of the attempt, from 0.")] = 0
    start_time: Annotated[Time | None, Field(description="When the attempt was created.")] = None
    running_time: Annotated[Time | None, Field(description="When all pods of the attempt were running.")] = None
    end_time: Annotated[Time, Field(description="When the attempt was ended.")]
    reason: Annotated[
        Reason,
        Field(
            description="Why the attempt ended: the reason of its first failure, Restarted, Suspended, Completed, ..."
        ),
    ]
    counted: Annotated[bool, Field(description="Whether its end counts against maxRestarts.")] = False
    requeued: Annotated[bool | None, Field(description="After it, the job waited in its queue.")] = None
    failure: Annotated[
        Failure | None, Field(description="The first failure, with the last line of its message only.")
    ] = None
    how: Annotated[
        Literal["InPlace", "NewPods"] | None,
        Field(description="How the next attempt began: in the same pods, or with new ones."),
    ] = None
    why_new_pods: Annotated[
        Reason | None, Field(description="Why the next attempt began with new pods although restart.inPlace is Auto.")
    ] = None
    first_step: Annotated[Count | None, Field(description="The first step that was reported.")] = None
    last_step: Annotated[Count | None, Field(description="The last step that was reported.")] = None
    checkpoint_step: Annotated[Count | None, Field(description="Step of the newest checkpoint that it stored.")] = None
    productive_seconds: Annotated[
        NonNegative | None, Field(description="Training time without the work that was lost when the attempt ended.")
    ] = None
    lost_seconds: Annotated[
        NonNegative | None,
        Field(description="Work that was lost when the attempt ended: the time since the last checkpoint."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReplicaRestarts(StatusPart):
    """A replica that was restarted alone in the current attempt."""

    count: Annotated[Count, Field(description="Number of these restarts.")] = 0
    in_pod: Annotated[
        Count | None,
        Field(
            description="How many of the last restarts were in its present pod, whose name has the number of the "
            "restart before them."
        ),
    ] = None
    launched: Annotated[
        bool,
        Field(
            description="Its newest pod was observed, or its program after a restart in its pod. If the pod is missing "
            "afterwards, it was deleted."
        ),
    ] = False
    counted: Annotated[bool, Field(description="Whether the last of these restarts counted against maxRestarts.")] = (
        False
    )
    restart_time: Annotated[
        Time | None,
        Field(description="The pod is not created before this time: the time of the decision plus the backoff."),
    ] = None
    failure: Annotated[
        Failure | None,
        Field(
            description="The failure that caused the restart, with the last line of its message only. Of many "
            "restarted replicas, only the failures that later decisions depend on are kept."
        ),
    ] = None
    without_progress: Annotated[
        Count | None,
        Field(
            description="Restarts in a row before which it ran for less than two minutes. The backoff grows with it."
        ),
    ] = None

    @property
    def pod_number(self) -> int:
        """Return the number of the restart for which its pod is created: the last part of the pod's name."""
        return self.count - (self.in_pod or 0)


Indexes = Annotated[str, StringConstraints(max_length=65_536, pattern=r"^([0-9]{1,4}(-[0-9]{1,4})?(,|$))*$")]
"""Indexes and ranges of indexes, as in `completedIndexes` of a Kubernetes Job: `0-99,105`."""


@dataclass(frozen=True, kw_only=True)
class RestartedIndexes(TextPart):
    """Replicas of one role that were restarted alone in the current attempt, in a compact form."""

    counts: Annotated[
        dict[Reason, Indexes],
        Field(max_length=10_000, description="Number of restarts, and the indexes of the replicas that have it."),
    ] = field(default_factory=dict)
    without_progress: Annotated[
        dict[Reason, Indexes],
        Field(
            max_length=10_000, description="Number of restarts in a row without progress, and the indexes that have it."
        ),
    ] = field(default_factory=dict)
    unlaunched: Annotated[Indexes, Field(description="Indexes of replicas whose newest pod was not observed yet.")] = ""
    restart_times: Annotated[
        dict[Reason, Indexes],
        Field(max_length=10_000, description="Times before which the pods of these indexes are not created."),
    ] = field(default_factory=dict)


TimeKind = Literal["Queued", "Starting", "Productive", "Lost", "Uploading", "Finished"]


@dataclass(frozen=True, kw_only=True)
class Times(TextPart):
    """The job's time by category, in seconds up to `since`. The numbers add up to the job's age at that time."""

    queued: Annotated[float, Field(ge=0, description="Time without a scheduled pod, or suspended.")] = 0.0
    starting: Annotated[float, Field(ge=0, description="Time from scheduling to the first step.")] = 0.0
    productive: Annotated[float, Field(ge=0, description="Time spent training, without lost work.")] = 0.0
    lost: Annotated[float, Field(ge=0, description="Work lost by restarts, and the time of the restarts.")] = 0.0
    uploading: Annotated[
        NonNegative | None,
        Field(description="Time after the program's end in which outputs were uploaded. None: there was none."),
    ] = None
    category: Annotated[
        TimeKind,
        Field(
            description="Category of the time after since. Finished: the job has finished, and no time counts any more."
        ),
    ] = "Queued"
    since: Annotated[Time, Field(description="Time up to which the numbers count.")]
    productive_since: Annotated[
        Time | None, Field(description="Since when the current attempt has been productive.")
    ] = None
    stalled: Annotated[
        NonNegative | None,
        Field(
            description="Lost seconds of the current attempt, since its last checkpoint, in which ranks waited for "
            "another one, or for data. None: there were none."
        ),
    ] = None
    measured: Annotated[
        bool, Field(description="Whether the program's reports are used. Without them, Running counts as productive.")
    ] = False
    by_reason: Annotated[
        dict[Reason, NonNegative], Field(max_length=64, description="Lost seconds by the reason of the restart.")
    ] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Straggler(TextPart):
    """A rank that is slower than its peers."""

    rank: Annotated[Count | None, Field(description="Global rank, if it can be determined.")] = None
    replica: Annotated[Name, Field(description="Replica of the rank (role-index).")]
    node: Annotated[Name | None, Field(description="Node on which the rank runs.")] = None
    slowdown: Annotated[float, Field(ge=0, description="Its step time divided by the median of its peers.")]
    loading: Annotated[bool | None, Field(description="Whether it is slow because it waits for data.")] = None


@dataclass(frozen=True, kw_only=True)
class RankProgress(TextPart):
    """Progress of one rank."""

    rank: Annotated[Count | None, Field(description="Global rank, if it can be determined.")] = None
    replica: Annotated[Name, Field(description="Replica of the rank (role-index).")]
    step: Annotated[Count | None, Field(description="Number of completed steps.")] = None
    lag: Annotated[Count, Field(description="Steps behind the most advanced rank.")] = 0
    step_seconds: Annotated[NonNegative | None, Field(description="Seconds that one step takes.")] = None
    busy_seconds: Annotated[
        NonNegative | None, Field(description="Part of stepSeconds without the time spent waiting for other ranks.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class CurvePoint(StatusPart):
    """One point of the metric's curve."""

    time: Annotated[Time, Field(description="When the rank reported this point.")]
    attempt: Annotated[Count, Field(description="Number of the attempt that reported it.")] = 0
    step: Annotated[Count, Field(description="Completed steps at that time.")]
    value: Annotated[float | None, Field(description="Value of the metric at that step.")] = None
    samples_per_second: Annotated[NonNegative | None, Field(description="Throughput of all ranks together.")] = None


@dataclass(frozen=True, kw_only=True)
class MetricRecord(StatusPart):
    """All values of a metric that one rank reported, in all attempts."""

    first_step: Annotated[Count, Field(description="The step of the first reported value.")]
    first: Annotated[float | None, Field(description="The first value; None if it is NaN or infinite.")] = None
    last_step: Annotated[Count, Field(description="The step of the latest reported value.")]
    lowest_step: Annotated[Count | None, Field(description="The step of the lowest finite value.")] = None
    lowest: Annotated[float | None, Field(description="The lowest of all finite values.")] = None
    highest_step: Annotated[Count | None, Field(description="The step of the highest finite value.")] = None
    highest: Annotated[float | None, Field(description="The highest of all finite values.")] = None
    not_finite_step: Annotated[
        Count | None, Field(description="The step of the first value that is NaN or infinite.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ProgressStatus(TextPart):
    """Progress of the training, from the program's reports."""

    step: Annotated[Count | None, Field(description="Number of completed steps.")] = None
    total_steps: Annotated[Count | None, Field(description="Steps of the whole training.")] = None
    epoch: Annotated[Count | None, Field(description="Number of completed epochs.")] = None
    metrics: Annotated[dict[Reason, float], Field(max_length=32, description="Latest value of each metric.")] = field(
        default_factory=dict
    )
    metrics_step: Annotated[
        Count | None, Field(description="The step of these values: the rank that reports them may be behind others.")
    ] = None
    not_finite: Annotated[
        Annotated[dict[Reason, Count], Field(max_length=32)] | None,
        Field(description="Metrics whose value is NaN or infinite -> the step since which it is."),
    ] = None
    records: Annotated[
        Annotated[dict[Reason, MetricRecord], Field(max_length=32)] | None,
        Field(description="First, lowest and highest value of each metric, with their steps."),
    ] = None
    samples_per_second: Annotated[
        NonNegative | None, Field(description="Throughput of all ranks together, if each of them reports its own.")
    ] = None
    loading: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None, Field(description="Share of a step in which ranks wait for data.")
    ] = None
    eta_seconds: Annotated[NonNegative | None, Field(description="Estimated time to the last step.")] = None
    last_report: Annotated[Time | None, Field(description="Time of the latest report of any rank.")] = None
    first_step_time: Annotated[
        Time | None, Field(description="When the first step of the current attempt was reported.")
    ] = None
    first_step: Annotated[Count | None, Field(description="That first step, from which the attempt resumed.")] = None
    checkpoint_step: Annotated[
        Count | None, Field(description="Step of the newest checkpoint of the current attempt.")
    ] = None
    checkpoint_time: Annotated[Time | None, Field(description="When that checkpoint was stored.")] = None
    saves_on_request: Annotated[
        bool | None, Field(description="Whether ranks store a checkpoint when they are asked for one.")
    ] = None
    stragglers: Annotated[
        list[Straggler], Field(max_length=64, description="Ranks that are slower than their peers.")
    ] = field(default_factory=list)
    copies: Annotated[
        Sentence | None, Field(description="Which pods have ranks of the same number, and so do not train together.")
    ] = None
    stalled: Annotated[
        Sentence | None,
        Field(description="For which rank the others wait, while no rank makes a step, and since when."),
    ] = None
    ranks: Annotated[
        list[RankProgress], Field(max_length=16, description="The ranks that lag most, then the slowest, at most 16.")
    ] = field(default_factory=list)
    reporting: Annotated[Count, Field(description="Number of ranks that report.")] = 0
    curve_metric: Annotated[
        Reason, Field(description="Metric of the curve: loss, or the first metric if there is no loss.")
    ] = ""
    curve: Annotated[
        list[CurvePoint], Field(max_length=64, description="Points over the whole life of the job, at most 64.")
    ] = field(default_factory=list)
    summary: Annotated[Reason, Field(description="For kubectl get: completed and total steps, and percent.")] = ""
    eta: Annotated[Reason, Field(description="For kubectl get: the time to the last step.")] = ""


@dataclass(frozen=True, kw_only=True)
class CheckpointRequest(TextPart):
    """Ranks are asked for a checkpoint before their pods are deleted."""

    reason: Annotated[
        Reason, Field(description="Why the pods go: Suspended, Restarted, Resized, Grown, Evicted or QueueAdded.")
    ]
    time: Annotated[
        Time, Field(description="When the ranks were asked. A checkpoint that is stored later ends the wait.")
    ]
    deadline: Annotated[Time, Field(description="When the pods are deleted without a new checkpoint.")]
    ranks: Annotated[
        Count, Field(description="Number of ranks that had reported. A restarted operator waits for as many.")
    ] = 0


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint(TextPart):
    """A checkpoint of the job."""

    step: Annotated[Count, Field(description="The training step whose state it has.")]
    time: Annotated[Time, Field(description="When the checkpoint was stored.")]
    path: Annotated[
        Annotated[str, StringConstraints(max_length=256)],
        Field(description="The file or folder in a pod. Empty: the program has reported it, and no name has the step."),
    ] = ""
    complete: Annotated[
        bool | None,
        Field(
            description="Whether all files have the sizes in the manifest, which is written last. None: no manifest."
        ),
    ] = None
    verified: Annotated[
        bool | None,
        Field(description="Whether the files had the hashes in the manifest. None: they were not compared."),
    ] = None
    bytes: Annotated[Count | None, Field(description="Size of its files. None: a folder without a manifest.")] = None


@dataclass(frozen=True, kw_only=True)
class CheckpointSchedule(StatusPart):
    """When the program stores checkpoints, if spec.checkpoint has everySeconds."""

    interval_seconds: Annotated[NonNegative | None, Field(description="Time between two checkpoints.")] = None
    save_seconds: Annotated[
        NonNegative | None,
        Field(description="How long a step waited for the newest checkpoint that was due. None: not measured."),
    ] = None
    fault_seconds: Annotated[
        NonNegative | None, Field(description="Estimated running time between two failures, for Auto.")
    ] = None
    step: Annotated[Count | None, Field(description="The next checkpoint is due after this step.")] = None
    agreed: Annotated[
        bool | None, Field(description="All ranks have received the step. Before that, it may change.")
    ] = None
    ranks: Annotated[Count | None, Field(description="Number of ranks that ask when a checkpoint is due.")] = None


@dataclass(frozen=True, kw_only=True)
class Rollback(StatusPart):
    """The current attempt continues from an older checkpoint, because the newest one could not be read."""

    step: Annotated[Count, Field(description="Step of the checkpoint from which it continues.")]
    unreadable_step: Annotated[Count, Field(description="Step of the checkpoint that is set aside.")]
    attempt: Annotated[Count, Field(description="Number of the attempt that could not read it.")] = 0


@dataclass(frozen=True, kw_only=True)
class CodeStatus(TextPart):
    """The code that the current attempt runs."""

    config_map: Annotated[Name | None, Field(description="The ConfigMap with the archive.")] = None
    sha256: Annotated[Sha256 | None, Field(description="SHA-256 of the archive in the ConfigMap.")] = None
    commit: Annotated[Commit | None, Field(description="The git commit of the code.")] = None
    dirty: Annotated[bool | None, Field(description="Whether files differ from the commit.")] = None
    time: Annotated[Time | None, Field(description="When the first attempt with this code was created.")] = None
    awaits_change: Annotated[
        bool | None,
        Field(
            description="The ranks start with the next code, or at restartTime without one: they failed while allranks "
            "dev was attached."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Status(TextPart):
    """Observed state of the job."""

    # One field for the API server: managedFields for every part would double the cost of writing a large status.
    __pydantic_config__ = StatusPart.__pydantic_config__ | {"json_schema_extra": {"x-kubernetes-map-type": "atomic"}}

    phase: Annotated[Phase, Field(description="State of the job in one word, for pipelines.")] = "Pending"
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=11,
            description="Running, Restarting, Suspended, Complete, Failed, ReportsLost, HardwareUnhealthy, "
            "CheckpointOverdue, GangScheduling, LowUtilization, OutputsUploaded; for kubectl wait.",
        ),
    ] = field(default_factory=list)
    observed_generation: Annotated[Count, Field(description="Generation of spec that this status is based on.")] = 0
    attempt: Annotated[Count, Field(description="Number of the current attempt, from 0.")] = 0
    pods_of_attempt: Annotated[
        Count | None,
        Field(
            description="The attempt for which the pods of the current attempt were created, if it runs in the pods of "
            "an earlier one."
        ),
    ] = None
    launched: Annotated[
        bool, Field(description="All pods of the attempt were observed. If one is missing afterwards, it was deleted.")
    ] = False
    restarts: Annotated[RestartCounts, Field(description="Numbers of restarts of the job.")] = field(
        default_factory=RestartCounts
    )
    restart_summary: Annotated[
        Reason | None,
        Field(description="For kubectl get: all restarts, and how many of them disruptions caused: 3 (1 disrupted)."),
    ] = None
    replica_restarts: Annotated[
        dict[Name, ReplicaRestarts],
        Field(max_length=10_000, description="Replicas (role-index) that were restarted alone in the current attempt."),
    ] = field(default_factory=dict)
    restarted_indexes: Annotated[
        Annotated[dict[Reason, RestartedIndexes], Field(max_length=16)] | None,
        Field(
            description="Further restarted replicas by role. Used if there are so many that replicaRestarts would be "
            "too large."
        ),
    ] = None
    ignored: Annotated[
        list[Name],
        Field(
            max_length=10_000, description="Replicas (role-index) whose failure a rule ignored in the current attempt."
        ),
    ] = field(default_factory=list)
    done: Annotated[
        dict[Reason, Annotated[str, StringConstraints(max_length=32_768)]],
        Field(
            max_length=16,
            description="Replicas that completed in the current attempt, by role, for example 0-3,5. They stay done "
            "when their pods are deleted.",
        ),
    ] = field(default_factory=dict)
    roles: Annotated[
        dict[Reason, RoleStatus], Field(max_length=16, description="Numbers of pods in the current attempt, by role.")
    ] = field(default_factory=dict)
    ready: Annotated[
        str,
        StringConstraints(max_length=32),
        Field(description="Pods that run or have succeeded, and all pods: 5/5. 0/5 for a finished job."),
    ] = ""
    avoided_nodes: Annotated[
        list[Name],
        Field(
            max_length=10,
            description="Nodes on which earlier attempts lost pods. Pods of the current attempt prefer other nodes.",
        ),
    ] = field(default_factory=list)
    last_failure: Annotated[Failure | None, Field(description="The first failure of the last attempt that failed.")] = (
        None
    )
    history: Annotated[
        list[PastAttempt], Field(max_length=10, description="The last ten finished attempts, oldest first.")
    ] = field(default_factory=list)
    start_time: Annotated[Time | None, Field(description="When the operator first acted on the job.")] = None
    completion_time: Annotated[Time | None, Field(description="When the job succeeded or failed.")] = None
    hold: Annotated[Hold | None, Field(description="The pods of a failed job that restart.holdSeconds keeps.")] = None
    attempt_time: Annotated[Time | None, Field(description="When the current attempt was created.")] = None
    running_time: Annotated[Time | None, Field(description="When all pods of the current attempt were running.")] = None
    first_running_time: Annotated[
        Time | None, Field(description="When all pods of the job were running for the first time, in any attempt.")
    ] = None
    restart_time: Annotated[
        Time | None, Field(description="End of the backoff: pods of the attempt are not created earlier.")
    ] = None
    active_since: Annotated[Time | None, Field(description="Since when the job has not been suspended.")] = None
    active_seconds: Annotated[
        float, Field(ge=0, description="Time before activeSince in which the job was not suspended.")
    ] = 0.0
    times: Annotated[Times | None, Field(description="The job's time by category.")] = None
    goodput: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        Field(description="Productive time divided by all time but queued. None without reported steps."),
    ] = None
    cost: Annotated[
        CostStatus | None, Field(description="The GPU time of the job and its price. None without GPUs.")
    ] = None
    notifications: Annotated[
        list[Entry],
        Field(
            max_length=12,
            description="Notifications as OCCASION/ATTEMPT RECEIVER, with sent or failed at the end when they are "
            "over.",
        ),
    ] = field(default_factory=list)
    utilization: Annotated[
        UtilizationStatus | None, Field(description="The current window of the policy utilization.")
    ] = None
    progress: Annotated[ProgressStatus | None, Field(description="Progress of the training.")] = None
    gang: Annotated[
        GangStatus | None,
        Field(description="Gang scheduling of the current attempt. None: the scheduler places its pods one by one."),
    ] = None
    queue: Annotated[QueueStatus | None, Field(description="The job's place in a queue, if it has one.")] = None
    checkpoint_request: Annotated[
        CheckpointRequest | None,
        Field(description="The checkpoint that ranks are asked for before their pods are deleted."),
    ] = None
    resumed_from: Annotated[
        Annotated[str, StringConstraints(max_length=512), EXACT] | None,
        Field(description="Where the checkpoints are that spec.resumeFrom names: claim://CLAIM/FOLDER, or an address."),
    ] = None
    checkpoints: Annotated[
        list[StoredCheckpoint], Field(max_length=5, description="The newest checkpoints, the oldest first.")
    ] = field(default_factory=list)
    checkpoint_schedule: Annotated[
        CheckpointSchedule | None, Field(description="When the next checkpoint is due, by checkpoint.everySeconds.")
    ] = None
    rollback: Annotated[
        Rollback | None,
        Field(description="Set if the current attempt continues from an older checkpoint than the newest one."),
    ] = None
    code: Annotated[
        CodeStatus | None, Field(description="The code that the current attempt runs, if spec.code names it.")
    ] = None
    inputs: Annotated[
        list[InputStatus], Field(max_length=9, description="The inputs with the revisions that the ranks read.")
    ] = field(default_factory=list)
    outputs: Annotated[
        list[OutputStatus], Field(max_length=8, description="The outputs, and whether they are uploaded.")
    ] = field(default_factory=list)
    selector: Annotated[
        str,
        StringConstraints(max_length=512),
        Field(description="Label selector of the workers, for the scale subresource."),
    ] = ""

    @property
    def pod_attempt(self) -> int:
        """The attempt in the names and labels of the pods that carry the current one."""
        return self.attempt if self.pods_of_attempt is None else self.pods_of_attempt

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
