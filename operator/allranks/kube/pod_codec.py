"""Pods as the API server gives them, decoded into the few fields that decisions need.

`Raw` names those fields: msgspec skips all others without building them, which is what makes ten thousand pods cheap.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from allranks.api.job import KIND
from allranks.core.model import Disruption, Exit, Pod, PodPhase
from allranks.core.naming import ATTEMPT_LABEL, INDEX_LABEL, JOB_LABEL, RESTART_LABEL, ROLE_LABEL, TRAINER


class _Fields(msgspec.Struct, rename="camel"):
    """Kubernetes' JSON is camelCase."""


class Owner(_Fields):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(_Fields):
    name: str = ""
    namespace: str = "default"
    uid: str = ""
    resource_version: str = "0"
    labels: dict[str, str] | None = None
    owner_references: list[Owner] = []
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None


class Running(_Fields):
    started_at: datetime | None = None


class Waiting(_Fields):
    reason: str = ""
    message: str = ""


class Terminated(_Fields):
    exit_code: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    reason: str = "Error"
    message: str = ""


class State(_Fields):
    running: Running | None = None
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class Container(_Fields):
    name: str = ""
    state: State = msgspec.field(default_factory=State)


class Condition(_Fields):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class RawStatus(_Fields):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: list[Condition] = []
    container_statuses: list[Container] = []
    init_container_statuses: list[Container] = []


class RawSpec(_Fields):
    node_name: str | None = None


class Raw(_Fields):
    """A pod, as far as it matters."""

    metadata: Meta
    spec: RawSpec = msgspec.field(default_factory=RawSpec)
    status: RawStatus = msgspec.field(default_factory=RawStatus)


class CachedPod(NamedTuple):
    """A pod in the cache."""

    version: int
    namespace: str
    owner: str
    """UID of its controller; empty where it has none."""
    jobs: frozenset[str]
    """Names of the jobs that it concerns: its controller's, and the one that its label claims."""
    label: str
    """The job that its label claims."""
    pod: Pod
    """`owned` says that its controller is a job; whose, `owner` says."""


def to_cached_pod(raw: Raw) -> CachedPod:
    """What the cache keeps of a pod."""
    metadata = raw.metadata
    controller = next((o for o in metadata.owner_references if o.controller), None)
    label = (metadata.labels or {}).get(JOB_LABEL, "")
    names = {label} if label else set()
    if controller and controller.kind == KIND:
        names.add(controller.name)
    return CachedPod(
        int(metadata.resource_version or 0),
        metadata.namespace,
        controller.uid if controller else "",
        frozenset(names),
        label,
        pod(raw),
    )


def pod(raw: Raw, owned: bool = True) -> Pod:
    """What the core sees of a pod."""
    metadata, status, labels = raw.metadata, raw.status, raw.metadata.labels or {}
    trainer = next((c for c in status.container_statuses if c.name == TRAINER), None)
    state = trainer.state if trainer else State()
    reason, message = _waiting(status, state)
    ran = state.running or state.terminated
    placed = _condition(status, "PodScheduled")
    phase: PodPhase = status.phase if status.phase in _PHASES else "Unknown"  # type: ignore[assignment]
    return Pod(
        name=metadata.name,
        uid=metadata.uid,
        role=labels.get(ROLE_LABEL, ""),
        index=_number(labels.get(INDEX_LABEL), -1),
        attempt=_number(labels.get(ATTEMPT_LABEL), -1),
        restart=_number(labels.get(RESTART_LABEL), 0),
        phase=phase,
        owned=owned,
        created_at=metadata.creation_timestamp,
        placed_at=placed.last_transition_time if placed and placed.status == "True" else None,
        started_at=ran.started_at if ran else None,
        deleted_at=_asked_to_go(metadata),
        node=raw.spec.node_name,
        waiting_reason=reason,
        waiting_message=message,
        # Not lastState: a container that restartPolicy OnFailure runs again has not ended.
        exit=_exit(state.terminated, metadata) if state.terminated else None,
        disruption=_disruption(raw),
    )


_PHASES = frozenset({"Pending", "Running", "Succeeded", "Failed"})
_NEVER = datetime.fromtimestamp(0, UTC)


def _exit(terminated: Terminated, metadata: Meta) -> Exit:
    return Exit(
        code=terminated.exit_code,
        # ContainerStatusUnknown comes without a time: kubelet had lost track of the container.
        finished_at=terminated.finished_at or metadata.creation_timestamp or _NEVER,
        reason=terminated.reason,
        message=terminated.message,
    )


def _waiting(status: RawStatus, state: State) -> tuple[str, str]:
    """(reason, message) of what keeps the program from running, or kept it from ever doing so."""
    if status.phase == "Failed":
        return _never_ran(status)
    if state.waiting:
        return state.waiting.reason, state.waiting.message
    placed = _condition(status, "PodScheduled")
    return (placed.reason, placed.message) if placed and placed.status == "False" else ("", "")


def _never_ran(status: RawStatus) -> tuple[str, str]:
    """What a pod that failed says of itself, or its init container, whose end is no end of the program."""
    for container in status.init_container_statuses:
        ending = container.state.terminated
        if ending and ending.exit_code:
            text = f"init container {container.name} ended with exit code {ending.exit_code}"
            return "InitContainerFailed", f"{text}: {ending.message}" if ending.message else text
    return status.reason, status.message


def _disruption(raw: Raw) -> Disruption | None:
    target = _condition(raw.status, "DisruptionTarget")
    if target and target.status == "True":
        return Disruption(target.reason, target.last_transition_time or _NEVER, target.message)
    if raw.status.reason in _LIKE_DISRUPTIONS:
        at = _asked_to_go(raw.metadata) or raw.metadata.creation_timestamp or _NEVER
        return Disruption(_LIKE_DISRUPTIONS[raw.status.reason], at, raw.status.message)
    return None


_LIKE_DISRUPTIONS = {
    "Evicted": "TerminationByKubelet",
    "Shutdown": "TerminationByKubelet",
    "Terminated": "TerminationByKubelet",
    "Preempting": "PreemptionByScheduler",
    "NodeLost": "DeletionByTaintManager",
}
"""`status.reason` of a pod -> the condition's reason that it stands for where there is no condition."""


def _condition(status: RawStatus, kind: str) -> Condition | None:
    return next((c for c in status.conditions if c.type == kind), None)


def _asked_to_go(metadata: Meta) -> datetime | None:
    if metadata.deletion_timestamp is None:
        return None
    try:
        return metadata.deletion_timestamp - timedelta(seconds=metadata.deletion_grace_period_seconds or 0)
    except OverflowError:
        # The API server takes a grace of centuries, and its own sum wraps around. Nobody knows when it was.
        return metadata.creation_timestamp or _NEVER


def _number(label: str | None, otherwise: int) -> int:
    return int(label) if label and label.isdigit() else otherwise
