"""What the core sees and what it answers: plain frozen data, the same for a cluster, a laptop and the simulation.

A driver builds an `Observed` (job, status as persisted, pods as last seen, the time) and carries out the `Plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from allranks.api.job import Job
from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.core.progress import Reports

Manifest = dict[str, Any]
"""A Kubernetes object as its JSON. Parts are shared between manifests: treat it as read-only."""

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


@dataclass(frozen=True, slots=True)
class Exit:
    """How the training container ended. A container that runs again in place has none."""

    code: int
    """Exit code as kubelet reports it: 128 + n for a process that signal n ended."""
    finished_at: datetime
    reason: str = "Error"
    """`Completed`, `Error`, `OOMKilled`, ... as kubelet reports it."""
    message: str = ""
    """Termination message: the last lines of the log (2048 bytes, 80 lines on a cluster)."""

    @property
    def signal(self) -> int | None:
        """The signal that ended the process, None where it exited by itself; 128 + n, as shells say it."""
        return self.code - 128 if 128 < self.code <= 128 + 64 else None


@dataclass(frozen=True, slots=True)
class Disruption:
    """The pod's condition `DisruptionTarget`: the cluster takes the pod away, the program is not to blame."""

    reason: str
    at: datetime
    message: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """The dozen fields of a pod that decisions need. `role index attempt restart` come from its labels."""

    name: str
    uid: str
    role: str
    index: int
    attempt: int
    restart: int = 0
    """How often this replica was restarted alone within the attempt."""
    phase: PodPhase = "Pending"
    owned: bool = True
    """Its controller is this job (by UID). Labels alone adopt nothing."""
    created_at: datetime | None = None
    placed_at: datetime | None = None
    """When it got its node."""
    started_at: datetime | None = None
    deleted_at: datetime | None = None
    """When somebody asked for its deletion: `deletionTimestamp` less the grace period. None while nobody has."""
    node: str | None = None
    waiting_reason: str = ""
    """Why it is not running yet: `Unschedulable`, `ImagePullBackOff`, `ContainerCreating`, ..."""
    waiting_message: str = ""
    exit: Exit | None = None
    disruption: Disruption | None = None

    @property
    def succeeded(self) -> bool:
        """The training container is done well; a sidecar that still runs, or fails, changes nothing about it.

        Exit code 0 of a pod that was being taken away is no success: the program has saved and gone, as it was told.
        """
        if self.exit is None:
            return self.phase == "Succeeded"
        return self.exit.code == 0 and not self.terminating

    @property
    def termination_requested_at(self) -> datetime | None:
        """Since when the cluster or somebody has been taking the pod away."""
        moments = (self.deleted_at, self.disruption.at if self.disruption else None)
        return min((moment for moment in moments if moment), default=None)

    @property
    def terminating(self) -> bool:
        """The pod was being taken away before, or instead of, its program's own end."""
        requested = self.termination_requested_at
        return requested is not None and (self.exit is None or requested <= self.exit.finished_at)

    @property
    def ended(self) -> bool:
        return self.exit is not None or self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class RejectedCreate:
    """A creation that was answered with a refusal (quota, admission, a name that somebody else has)."""

    kind: str
    name: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Platform:
    """Where the job runs: the facts about it that pods depend on."""

    helper_image: str
    """Image of the init container that brings a helper into a pod (the operator's own)."""
    local: bool = False
    """This machine: processes share one network, there is no DNS for them, no image, no ssh."""
    endpoints: Mapping[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    """(pod hostname, port) -> (address, port) where it is not `hostname.job.namespace.svc:port`."""
    node_lost_seconds: int | None = None
    """So long after a node was found to be gone its pods are given up. None: as long as the cluster has it, 300 s."""
    pool: PoolSpec | None = None
    """The TrainingPool that the job names, as it is now; None where there is none of that name."""
    report_url: str = ""
    """Where ranks report their progress to, with a token of their pod; empty: nowhere."""
    pool_refused: str = ""
    """Why no pools are served here at all, as a sentence for users."""


@dataclass(frozen=True, slots=True)
class Observed:
    """All that a decision may depend on."""

    job: Job
    status: Status
    """As persisted: never older than this driver's own last write."""
    pods: tuple[Pod, ...]
    """As last seen; may lag, but holds what this driver created from the answer on, until its deletion was seen."""
    now: datetime
    platform: Platform
    refused: tuple[RejectedCreate, ...] = ()
    reports: Reports | None = None
    """What the ranks of the present attempt say of themselves; None where nobody listens."""


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event on the job."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod to delete; the UID is a precondition, so that a namesake is never hit."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do next. An empty plan means that the job is settled until something changes or `wake_at` comes.

    With `write_ahead` the status must be persisted, guarded by the observed resourceVersion, before anything else
    happens; such a plan holds no creations and no deletions: the next reconcile derives them from what was persisted.
    """

    status: Status | None = None
    write_ahead: bool = False
    create: tuple[Manifest, ...] = ()
    """In this order: what is not a pod comes first, and no pod is created before these exist."""
    delete: tuple[PodRef, ...] = ()
    delete_job: bool = False
    events: tuple[Event, ...] = ()
    wake_at: datetime | None = None
    stack_dump_id: str = ""
    """Ranks that report are asked for the stacks of their threads; another word is another question."""

    @property
    def empty(self) -> bool:
        return not (self.status or self.create or self.delete or self.delete_job)
