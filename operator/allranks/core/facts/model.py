"""Input and output of the core: plain frozen data, the same for a cluster, a local run and the simulator.

A driver builds an `Observed` (job, persisted status, pods, time), passes it to `reconcile` and carries out the `Plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from allranks.api.job import Job
from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.core.facts.contenders import Contention
from allranks.core.facts.data_store import CacheUse, DataStore
from allranks.core.facts.optional_kinds import OptionalObjects
from allranks.core.facts.policy import Policy
from allranks.core.facts.processes import Order, PodProcess, Processes
from allranks.core.facts.rank_reports import CheckpointDue, Reports
from allranks.core.facts.resume_source import ResumeSource
from allranks.core.facts.uploads import Upload
from allranks.fields import printable

Manifest = dict[str, Any]
"""A Kubernetes object as its JSON. Parts are shared between manifests: treat it as read-only."""

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]

START_ERRORS = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"}
    | {"CreateContainerError", "RunContainerError", "ImageInspectError", "SignatureValidationFailed"}
    | {"RegistryUnavailable", "PreCreateHookError", "PreStartHookError", "PostStartHookError"}
)
"""Waiting reasons that kubelets have for a container that cannot start. `is_start_error` knows the others."""
NOT_READY_TO_START = "PodNotReadyToStart"
"""Reason of a pod whose volumes or network are not ready: a missing Secret, a volume that is attached elsewhere."""

CRASH_LOOP = "CrashLoopBackOff"
"""Waiting reason of a container that failed and that its kubelet restarts in place, after a backoff."""
UNSCHEDULABLE = "Unschedulable"
NOT_SCHEDULED = frozenset({UNSCHEDULABLE, "SchedulingGated", "SchedulerError"})
"""Reasons of a pod that has no node."""
INIT_FAILED = "InitContainerFailed"
"""Reason of a failure: an init container failed, and the program did not run."""
FETCH_FAILED = "FetchFailed"
"""Reason of a failure: a pod could not fetch an input of its job, for a reason that may pass."""
INPUT_FAILED = "InputFailed"
"""An input cannot be fetched: reason of the condition Failed."""
FETCHING, FETCH_RETRYING = "FetchingInputs", "FetchRetrying"
"""Reasons of the condition Running."""
RESTART_IN_PLACE = "RestartInPlace"
"""Reason of a pod that waits for the start of the next attempt in it."""
START_TOGETHER = "StartTogether"
"""Reason of a pod that runs, and waits for the other pods before its program starts."""
_STARTS = frozenset(
    {"", RESTART_IN_PLACE, START_TOGETHER, "ContainerCreating", "PodInitializing", CRASH_LOOP, FETCHING, FETCH_RETRYING}
    | NOT_SCHEDULED
)


def is_start_error(reason: str) -> bool:
    """Return whether a pod that waits for this reason has a container that cannot start.

    All reasons but the usual ones count, because each container runtime has its own.
    """
    return reason not in _STARTS


LIMIT_EXCEEDED = "LimitExceeded"
"""Reason of a failure: the kubelet evicted the pod for a limit of its own, such as the size of an emptyDir."""
NODE_LOST = frozenset({"DeletionByTaintManager", "DeletionByPodGC"})
"""Reasons of `DisruptionTarget`: the node of the pod was declared lost."""
BY_KUBELET = "TerminationByKubelet"
"""Reason of `DisruptionTarget`: the kubelet evicted the pod for a resource of its node, or its node shuts down."""
UNKNOWN_END = "ContainerStatusUnknown"
"""The kubelet lost track of the container, after a reboot for example: its exit code and time are invalid."""
LOST_BY_RUNTIME = 255
"""containerd's exit code of a container whose process it cannot find, with reason `Unknown`."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Termination of the training container for good. A container that its kubelet restarts in place has none."""

    code: int
    """Exit code as kubelet reports it: 128 + n for a process that signal n ended, or that exited with this code."""
    finished_at: datetime
    reason: str = "Error"
    """`Completed`, `Error`, `OOMKilled`, ... as kubelet reports it."""
    message: str = ""
    """Termination message: the last lines of the log (2048 bytes, 80 lines on a cluster)."""
    signal: int | None = None
    """The signal that ended the process, if the kernel's wait status is available or the kernel killed it for memory.
    None: it exited by itself, or nothing but the exit code is available, as from container runtimes."""

    @property
    def lost_by_runtime(self) -> bool:
        """The container runtime found no process for it when it started again, as after a reboot. The kubelet has the
        code 137 for containers that it lost track of, also while it deletes a pod."""
        return self.reason == UNKNOWN_END and self.code == LOST_BY_RUNTIME


@dataclass(frozen=True, slots=True)
class InitContainer:
    """The init container that a pod waits for, or that has failed."""

    name: str
    exit_code: int | None = None
    """Exit code; None while it runs."""
    message: str = ""
    """Its termination message."""


@dataclass(frozen=True, slots=True)
class Disruption:
    """The pod condition `DisruptionTarget`: the cluster removes the pod, for a reason outside of the program."""

    reason: str
    at: datetime
    message: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """The fields of a pod that decisions need. `role index attempt restart` come from its labels."""

    name: str
    uid: str
    role: str
    index: int
    attempt: int
    restart: int = 0
    """Number of individual restarts of this replica within the attempt."""
    phase: PodPhase = "Pending"
    managed_by_kueue: bool = False
    """Kueue's integration of single pods has taken the pod: it has Kueue's finalizer."""
    owned: bool = True
    """The pod has a controller ownerReference to this job's UID. Labels are never used for adoption."""
    created_at: datetime | None = None
    placed_at: datetime | None = None
    """Time of its assignment to a node."""
    started_at: datetime | None = None
    deleted_at: datetime | None = None
    """Time of the deletion request: `deletionTimestamp` minus the grace period. None without a request."""
    node: str | None = None
    priority: int = 0
    """From its priority class."""
    scheduling_group: str = ""
    """`spec.schedulingGroup.podGroupName`. An API server without the feature gate GenericWorkload drops it."""
    waiting_reason: str = ""
    """Reason why the pod is not running yet: `Unschedulable`, `ImagePullBackOff`, `ContainerCreating`, ..."""
    waiting_message: str = ""
    """The message of the scheduler or the kubelet; it begins with the container unless that is the trainer."""
    waiting_for: str = ""
    """The cause for which a pod with a node waits: `init container fetch`, `its volumes and its network`, ..."""
    init: InitContainer | None = None
    """The init container that `waiting_for`, `waiting_message` or the message of `last_exit` is about, if any."""
    unprepared: bool = False
    """The kubelet has not prepared the pod's volumes and network: condition PodReadyToStartContainers is False."""
    exit: Exit | None = None
    settling: bool = False
    """All containers have ended, and the kubelet has not set the phase of the pod yet. It says with the phase whether
    it ended them itself, for an eviction or a shutdown of the node."""
    disruption: Disruption | None = None
    container_restarts: int = 0
    """Number of restarts in place of the container in CrashLoopBackOff (`restartPolicy: OnFailure`)."""
    last_exit: Exit | None = None
    """The last termination of a container in CrashLoopBackOff: the training container, or an init container."""
    image_id: str = ""
    """The image of the training container with its digest; empty before the container exists."""
    unhealthy_devices: tuple[str, ...] = ()
    """Devices of its containers that the kubelet reports as unhealthy: `nvidia.com/gpu GPU-1c2d`."""
    process: PodProcess | None = None
    """What the supervisor in the pod reports, if the training container runs (`core/processes.py`); None without a
    supervisor."""
    user: tuple[int, int] | None = None
    """(user ID, group ID) of the training container; None before it exists, or if its runtime does not say."""

    @property
    def succeeded(self) -> bool:
        """The training container completed. Sidecars have no influence.

        Exit code 0 of a terminating pod is not a success: the program saved its state and stopped on SIGTERM.
        """
        if self.exit is None:
            return self.phase == "Succeeded"
        return self.exit.code == 0 and not self.terminating

    @property
    def termination_requested_at(self) -> datetime | None:
        """Time of the earliest deletion or disruption."""
        moments = (self.deleted_at, self.disruption.at if self.disruption else None)
        return min((moment for moment in moments if moment), default=None)

    @property
    def terminating(self) -> bool:
        """Termination was requested before the program ended by itself."""
        if self.disruption and self.disruption.reason == BY_KUBELET:
            return True  # the kubelet sets the condition after the containers have ended
        requested = self.termination_requested_at
        return requested is not None and (self.exit is None or requested <= self.exit.finished_at)

    @property
    def node_lost_at(self) -> datetime | None:
        """Time at which the pod's node was declared lost; None if it was not, or if the pod's exit was reported."""
        lost = self.exit is None and self.disruption and self.disruption.reason in NODE_LOST
        return self.disruption.at if lost and self.disruption else None

    @property
    def ended(self) -> bool:
        return self.exit is not None or self.phase in ("Succeeded", "Failed")

    @property
    def start_error(self) -> str:
        """Reason why a container of the pod cannot start: from the kubelet, or NOT_READY_TO_START; empty if it can."""
        if self.ended:
            return ""
        if is_start_error(self.waiting_reason):
            return self.waiting_reason
        return NOT_READY_TO_START if self.unprepared else ""

    @property
    def waiting_text(self) -> str:
        """Text about the cause of the wait, from the scheduler or the kubelet, or else from the status of the pod."""
        if self.waiting_message or not self.waiting_for:
            return self.waiting_message or self.waiting_reason
        since = f" since {self.placed_at:%Y-%m-%dT%H:%M:%SZ}" if self.placed_at else ""
        state = f": {self.waiting_reason}" if self.waiting_reason else ""
        hint = "; kubectl describe pod shows why" if self.unprepared else ""
        return f"waits for {self.waiting_for}{state}{since}{hint}"


@dataclass(frozen=True, slots=True)
class RejectedCreate:
    """A create request that the API server rejected: quota, admission, or a name that another owner uses."""

    kind: str
    name: str
    reason: str
    message: str
    tried: bool = True
    """False if it was not sent, because the API server had just rejected another pod of the role. The message is of
    the other pod."""


@dataclass(frozen=True, slots=True)
class RejectedDelete:
    """The deletion of a pod that the API server rejected, for example by an admission policy."""

    name: str
    uid: str
    reason: str
    message: str


RESTART_OPTION = "--restarts {}"


@dataclass(frozen=True, slots=True)
class Platform:
    """Facts about the place where the job runs."""

    helper_image: str
    """Image of the init container that copies the helper files into a pod (the operator's own image)."""
    helper_pull_secrets: tuple[str, ...] = ()
    """Secrets, in the job's namespace, for pulling that image."""
    local: bool = False
    """Local run: processes share the host's network; there is no DNS, image or ssh."""
    restart_option: str = RESTART_OPTION
    """Option by which the user of a local run asks for this number of restarts."""
    endpoints: Mapping[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    """(pod hostname, port) -> (address, port) where it is not `hostname.job.namespace.svc:port`."""
    node_lost_seconds: int | None = None
    """tolerationSeconds for unreachable and not-ready nodes. None: the cluster's default, 300 s."""
    pools: Mapping[str, PoolSpec] = field(default_factory=dict)
    """Name -> TrainingPool in its current state: the pools of the job's roles that exist."""
    report_url: str = ""
    """URL for progress reports of ranks, authenticated with a token of their pod; empty: no reports."""
    network_policies: bool = False
    """True if each job gets a NetworkPolicy that lets only its own pods reach its ports."""
    disruption_budgets: bool = False
    """True if each job gets a PodDisruptionBudget that blocks the eviction of its pods."""
    notifies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Occasion -> receivers that are notified about every job. Empty: the driver sends no notifications."""
    pool_refused: str = ""
    """Reason why this operator serves no pools, as a sentence for users."""
    policy: Policy = field(default_factory=Policy)
    """Defaults and limits for the jobs of this namespace."""
    coscheduling_scheduler: str = "scheduler-plugins-scheduler"
    """Name of the scheduler with the plugin Coscheduling."""
    data: DataStore | None = None
    """Settings for inputs and outputs; None if this cluster fetches and uploads nothing."""
    namespace_uid: str = ""
    """UID of the job's namespace; empty if the operator does not read it."""
    reserved_accounts: tuple[str, ...] = ()
    """ServiceAccounts in the job's namespace that no job may use: the accounts of allranks."""
    namespace_labels: Mapping[str, str] | None = None
    """Labels of the job's namespace, for the selectors of pools; None if the operator does not read them."""
    why_restricted: str | None = None
    """Why pods of the job's namespace must be restricted; empty if they need not be. None: it has no namespace."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a decision may depend on."""

    job: Job
    persisted: Status
    """The status from the API server: at least as new as this driver's own last write."""
    pods: tuple[Pod, ...]
    """The pod cache. It may lag behind the API server, but always contains this driver's own creations."""
    now: datetime
    platform: Platform
    refused: tuple[RejectedCreate, ...] = ()
    reports: Reports | None = None
    """Progress reports of the ranks; None if there is no report server."""
    refused_deletions: tuple[RejectedDelete, ...] = ()
    check_companions: bool = False
    """The last check for companions that someone else deleted or changed was long ago."""
    optional: OptionalObjects = field(default_factory=OptionalObjects)
    """Objects of kinds that a cluster may or may not serve."""
    contention: Contention = field(default_factory=Contention)
    resume_source: ResumeSource | None = None
    """The job that `resumeFrom` names, until this one has a status; None if it does not exist."""
    notified: Mapping[str, str] = field(default_factory=dict)
    """Pending entry of `status.notifications` -> the result that its delivery had."""
    transfers: Mapping[str, Pod] = field(default_factory=dict)
    """Name -> pod that fetches an input or uploads an output. `reconcile` takes them out of `pods`."""
    cache_use: CacheUse | None = None
    uploads: Mapping[str, Upload] = field(default_factory=dict)
    """Name of an output -> its upload, if one was begun."""
    removed: Mapping[str, Pod] = field(default_factory=dict)
    """Name -> last state of a pod that is gone, if it succeeded, or its status said what ended it
    (`root_cause.says_what_ended_it`)."""
    processes: Processes | None = None
    """What supervisors in pods report; None if there is no report server."""
    node_problems: Mapping[str, str] = field(default_factory=dict)
    """Node -> what monitors of node health report about it; nodes without problems are left out."""
    prepared: Status | None = None
    """The current status, if `reconcile` has changed it. A driver leaves it out."""

    @property
    def current(self) -> Status:
        """The persisted status with what was observed since, such as the progress that ranks reported."""
        return self.prepared or self.persisted

    def with_current(self, status: Status) -> Observed:
        """Return the observation with another current status."""
        return self if status is self.current else replace(self, prepared=status)

    @property
    def pool_names(self) -> frozenset[str | None]:
        """The TrainingPools of the roles: their own, the job's, or the default of its namespace; None for none."""
        return self.platform.policy.pools_of(self.job)


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event on the job. As in a status, its text has no control sequences."""

    reason: str
    message: str
    warning: bool = False

    def __post_init__(self) -> None:
        if not (self.reason + self.message).isprintable():
            object.__setattr__(self, "reason", printable(self.reason))
            object.__setattr__(self, "message", printable(self.message))


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod to delete. The UID is a precondition: a new pod of the same name stays untouched."""

    name: str
    uid: str
    grace_seconds: int | None = None
    """Time between SIGTERM and SIGKILL; None: terminationGracePeriodSeconds of the pod."""


@dataclass(frozen=True, slots=True)
class ObjectPatch:
    """A merge patch of an object of an optional kind.

    `object` is the observed one: its UID and resourceVersion are preconditions, because the patch depends on what was
    observed, and a list such as the conditions is replaced as a whole.
    """

    object: Manifest
    change: Manifest
    subresource: str = ""
    """`status`, or empty."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next requests of a driver. An empty plan means that nothing is due until a change or `wake_at`.

    With `write_ahead` the status must be persisted, guarded by the observed resourceVersion, before anything else
    happens; such a plan holds no creations and no deletions: the next reconcile derives them from the persisted status.
    """

    next: Status | None = None
    """The status to write; None if the persisted one stays."""
    write_ahead: bool = False
    create: tuple[Manifest, ...] = ()
    """Objects in creation order: other objects first, then pods. Optional kinds have an `apiVersion` that the cluster
    serves."""
    patch: tuple[ObjectPatch, ...] = ()
    """Changes of objects of optional kinds, before anything is created."""
    remove: tuple[Manifest, ...] = ()
    """Objects of optional kinds to delete, as they were observed: the UID is a precondition. Comes before `patch`."""
    restore: tuple[Manifest, ...] = ()
    """Companions that were created before: create again those that someone else deleted, report those that someone
    else changed. Comes before the creation of pods, and never prevents it."""
    delete: tuple[PodRef, ...] = ()
    superseded: tuple[str, ...] = ()
    """Names of ConfigMaps of past attempts: those that exist and belong to the job are deleted. The plan that creates a
    ConfigMap deletes older ones, so their number is bounded even if the operator is killed often."""
    delete_job: bool = False
    suspend_job: bool = False
    """Set `spec.suspend`. The decision is in the persisted status."""
    events: tuple[Event, ...] = ()
    wake_at: datetime | None = None
    stack_dump_id: str = ""
    """Requests stack dumps from all ranks that report; a new id is a new request."""
    awaits_checkpoint: bool = False
    """A rule waits for a checkpoint that ranks were asked for. Only `reconcile` needs it."""
    checkpoint_request: int = 0
    """The number of the checkpoint that ranks are asked for, from the persisted status; 0 withdraws the request."""
    checkpoint_due: CheckpointDue | None = None
    """The step of the next checkpoint, from the persisted status."""
    orders: tuple[Order, ...] = ()
    """To the supervisors in pods, from the persisted status. Each is repeated until its pod reports that it is
    carried out."""

    @property
    def decided(self) -> bool:
        """Return whether a rule decided: nothing else is due with this plan."""
        return self.write_ahead or self.delete_job

    @property
    def empty(self) -> bool:
        changes = self.next or self.create or self.restore or self.delete or self.delete_job or self.suspend_job
        return not (changes or self.patch or self.remove)


ANY_PLATFORM = Platform(helper_image="")
"""For results that do not depend on the platform."""
