"""Decodes pods from the API server into the few fields that the core needs."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import NamedTuple

from allranks.api.job import KIND
from allranks.core.facts.model import (
    CRASH_LOOP,
    INIT_FAILED,
    LIMIT_EXCEEDED,
    LOST_BY_RUNTIME,
    NOT_SCHEDULED,
    UNKNOWN_END,
    UNSCHEDULABLE,
    Disruption,
    Exit,
    InitContainer,
    Pod,
    PodPhase,
    is_start_error,
)
from allranks.core.facts.naming import TRAINER
from allranks.kube.raw_pod import (
    Condition,
    Container,
    ContainerSpec,
    Meta,
    Raw,
    RawStatus,
    State,
    Terminated,
    Waiting,
)


class CachedPod(NamedTuple):
    """A pod in the cache."""

    version: int
    namespace: str
    owner: str
    """UID of its controller; empty where it has none."""
    jobs: frozenset[str]
    """Names of the jobs to reconcile when it changes: its controller, and the one in its label."""
    label: str
    """The job in its label, which proves no ownership."""
    pod: Pod
    """`owned` is always true here: the cache compares `owner` with the UID of the job."""


def to_cached_pod(raw: Raw) -> CachedPod:
    """Return the pod as the cache keeps it."""
    metadata = raw.metadata
    controller = next((o for o in metadata.owner_references if o.controller), None)
    label = metadata.labels.job
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
    """Return the pod as the core reads it."""
    metadata, status, labels = raw.metadata, raw.status, raw.metadata.labels
    trainer = next((c for c in status.container_statuses if c.name == TRAINER), None)
    state = trainer.state if trainer else State()
    waiting = _Wait(LIMIT_EXCEEDED, status.message) if _exceeded_limit(raw) else _waiting(raw, state)
    looping = _crash_loop(raw, trainer)
    crashed = looping.last_state.terminated if looping else None
    ran = state.running or state.terminated or crashed
    placed = _condition(status, "PodScheduled")
    phase: PodPhase = status.phase if status.phase in _PHASES else "Unknown"  # type: ignore[assignment]
    return Pod(
        name=metadata.name,
        uid=metadata.uid,
        role=labels.role,
        index=_number(labels.index, -1),
        attempt=_number(labels.attempt, -1),
        restart=_number(labels.restart, 0),
        phase=phase,
        managed_by_kueue=_KUEUE_FINALIZER in metadata.finalizers,
        owned=owned,
        created_at=metadata.creation_timestamp,
        placed_at=placed.last_transition_time if placed and placed.status == "True" else None,
        started_at=_after_epoch(ran.started_at) if ran else None,
        deleted_at=_deletion_requested_at(metadata),
        node=raw.spec.node_name,
        priority=raw.spec.priority or 0,
        scheduling_group=(raw.spec.scheduling_group and raw.spec.scheduling_group.pod_group_name) or "",
        waiting_reason=waiting.reason,
        waiting_message=waiting.message,
        waiting_for=waiting.waits_for,
        init=_crashed_init(looping, trainer) or waiting.init,
        unprepared=waiting.unprepared,
        # Whatever the pod's phase: a pod is Running while a sidecar runs, and Pending while its image is pulled.
        exit=_final_exit(raw, state.terminated) if state.terminated else None,
        settling=_is_settling(raw),
        disruption=_disruption(raw),
        container_restarts=looping.restart_count if looping else 0,
        last_exit=_last_exit(looping, trainer, metadata) if looping else None,
        # Thousands of pods have the same image.
        image_id=sys.intern(trainer.image_id.removeprefix("docker-pullable://")) if trainer else "",
        unhealthy_devices=_unhealthy_devices(status),
        user=_user(trainer),
    )


_MOST_DEVICES = 16
"""Unhealthy devices that are kept of a pod."""


def _unhealthy_devices(status: RawStatus) -> tuple[str, ...]:
    devices = (
        f"{resource.name} {device.resource_id}"[:256]
        for container in status.container_statuses
        for resource in container.allocated_resources_status
        for device in resource.resources
        if device.health == "Unhealthy"
    )
    return tuple(islice(devices, _MOST_DEVICES))


def _user(trainer: Container | None) -> tuple[int, int] | None:
    linux = trainer.user.linux if trainer and trainer.user else None
    return (linux.uid, linux.gid) if linux and linux.uid >= 0 and linux.gid >= 0 else None


def _after_epoch(time: datetime | None) -> datetime | None:
    """Return the time; None for 1970-01-01T00:00:00Z, the start of a container whose program could not be executed
    (StartError)."""
    return time if time and time > _NEVER else None


_KUEUE_FINALIZER = "kueue.x-k8s.io/managed"
_PHASES = frozenset({"Pending", "Running", "Succeeded", "Failed"})
_NEVER = datetime.fromtimestamp(0, UTC)


def _exit(terminated: Terminated, metadata: Meta) -> Exit:
    return Exit(
        code=terminated.exit_code,
        # ContainerStatusUnknown has no time: the kubelet lost track of the container.
        finished_at=terminated.finished_at or metadata.creation_timestamp or _NEVER,
        reason=terminated.reason,
        message=terminated.message,
        signal=_signal(terminated),
    )


def _signal(terminated: Terminated) -> int | None:
    """Return the signal that certainly ended the container. `exit 137` and SIGKILL have the same exit code."""
    if terminated.signal > 0:
        return terminated.signal
    killed_for_memory = terminated.reason == "OOMKilled" and terminated.exit_code == 128 + signal.SIGKILL
    return int(signal.SIGKILL) if killed_for_memory else None


def _final_exit(raw: Raw, terminated: Terminated) -> Exit | None:
    """Return the program's end; None if its container restarts in place."""
    if not _is_final(raw, terminated):
        return None
    ending = _exit(terminated, raw.metadata)
    if _exceeded_limit(raw):  # a program that handles SIGTERM may have exited with 0
        return Exit(ending.code or 137, ending.finished_at, LIMIT_EXCEEDED, raw.status.message)
    # containerd's words after a reboot of the node. The kubelet's own are ContainerStatusUnknown.
    rebooted = (terminated.reason, terminated.exit_code) == ("Unknown", LOST_BY_RUNTIME)
    return replace(ending, reason=UNKNOWN_END) if rebooted else ending


def _is_settling(raw: Raw) -> bool:
    """Return whether the containers have ended, and the kubelet has not written yet that the pod has.

    It writes the two separately, also when it ended the containers itself: only the second status has the phase
    Failed, the reason (Evicted, Terminated) and the condition DisruptionTarget (mergePodStatus in
    pkg/kubelet/status/status_manager.go).
    """
    if raw.metadata.deletion_timestamp or raw.status.phase not in ("Pending", "Running") or _disruption(raw):
        return False
    states = [c.state for c in (*raw.status.init_container_statuses, *raw.status.container_statuses)]
    return bool(raw.status.container_statuses) and all(state.terminated for state in states)


def _is_final(raw: Raw, terminated: Terminated) -> bool:
    """Return whether the kubelet does not run the training container again (podutil.ContainerShouldRestart in
    Kubernetes)."""
    going = raw.metadata.deletion_timestamp is not None or _disruption(raw) is not None
    if going or raw.status.phase in ("Succeeded", "Failed"):
        return True
    trainer = next((c for c in raw.spec.containers if c.name == TRAINER), ContainerSpec())
    for rule in trainer.restart_policy_rules:
        if (terminated.exit_code in rule.exit_codes.values) == (rule.exit_codes.operator == "In"):
            return not rule.action.startswith("Restart")
    policy = trainer.restart_policy or raw.spec.restart_policy
    return policy == "Never" or (policy == "OnFailure" and terminated.exit_code == 0)


def _crash_loop(raw: Raw, trainer: Container | None) -> Container | None:
    """Return the container in CrashLoopBackOff: the training container, or an init container that is no sidecar."""
    init = _init_containers(raw)
    for container in [trainer, *init] if trainer else init:
        waiting = container.state.waiting
        if waiting and waiting.reason == CRASH_LOOP and container.last_state.terminated:
            return container
    return None


def _init_containers(raw: Raw) -> list[Container]:
    """Return the init containers without native sidecars (`restartPolicy: Always`), which end by a signal when the
    program has ended."""
    sidecars = {c.name for c in raw.spec.init_containers if c.restart_policy == "Always"}
    return [c for c in raw.status.init_container_statuses if c.name not in sidecars]


def _last_exit(looping: Container, trainer: Container | None, metadata: Meta) -> Exit:
    terminated = looping.last_state.terminated
    assert terminated
    last, failed = _exit(terminated, metadata), _crashed_init(looping, trainer)
    return replace(last, reason=INIT_FAILED, message=_init_failure(failed)) if failed else last


def _crashed_init(looping: Container | None, trainer: Container | None) -> InitContainer | None:
    """Return the init container that its kubelet runs again and again."""
    if looping is None or looping is trainer or looping.last_state.terminated is None:
        return None
    terminated = looping.last_state.terminated
    return InitContainer(looping.name, terminated.exit_code, terminated.message)


class _Wait(NamedTuple):
    """What keeps the program from starting, or kept it until the pod failed."""

    reason: str = ""
    message: str = ""
    waits_for: str = ""
    unprepared: bool = False
    init: InitContainer | None = None


def _waiting(raw: Raw, state: State) -> _Wait:
    status = raw.status
    if status.phase == "Failed":
        return _startup_failure(raw)
    placed = _condition(status, "PodScheduled")
    if placed and placed.status == "False":
        return _Wait(placed.reason if placed.reason in NOT_SCHEDULED else UNSCHEDULABLE, placed.message)
    if state.waiting and status.phase != "Pending":
        return _Wait(state.waiting.reason, state.waiting.message, _TRAINER)
    return _pending_containers(status) if status.phase == "Pending" else _Wait()


def _pending_containers(status: RawStatus) -> _Wait:
    """Return the cause for which a pending pod waits: errors of its containers, init containers, volumes, the
    kubelet. The training container's error comes first."""
    first = [(f"init container {container.name}", container.state) for container in status.init_container_statuses]
    main = [(f"container {container.name}", container.state) for container in status.container_statuses]
    init = {text: InitContainer(c.name) for (text, _), c in zip(first, status.init_container_statuses, strict=True)}
    waits = [(name, state.waiting) for name, state in first + main if state.waiting]
    waits.sort(key=lambda item: (item[1].reason == CRASH_LOOP, item[0] != _TRAINER))
    message = "; ".join(filter(None, (_waiting_text(name, waiting) for name, waiting in waits)))
    for name, wait in waits:
        if is_start_error(wait.reason) or wait.reason == CRASH_LOOP:
            return _Wait(wait.reason, message, name, init=init.get(name))
    prepared = _condition(status, "PodReadyToStartContainers")
    began = any(state.running or state.terminated for _, state in first + main)
    if prepared and prepared.status == "False" and not began:
        return _Wait(_first_reason(first + main), message, "its volumes and its network", unprepared=True)
    initialized = _condition(status, "Initialized")
    pending = first if first and not (initialized and initialized.status == "True") else main
    # Init containers run in order; native sidecars before the current one run as well.
    running = [name for name, state in pending if state.running] if pending is first else []
    waiting = [name for name, state in pending if state.waiting]
    named = running[-1:] or waiting[:1]
    waits_for = named[0] if named else "the kubelet of its node"
    return _Wait(_first_reason(main), message, waits_for, init=init.get(waits_for))


def _first_reason(containers: list[tuple[str, State]]) -> str:
    return next((state.waiting.reason for _, state in containers if state.waiting and state.waiting.reason), "")


_TRAINER = f"container {TRAINER}"


def _waiting_text(name: str, waiting: Waiting) -> str:
    """Return the message of a container that waits, with its name unless it trains; empty if it only waits."""
    if name == _TRAINER:
        return waiting.message
    error = is_start_error(waiting.reason) or waiting.reason == CRASH_LOOP
    text = waiting.message or (waiting.reason if error else "")
    return f"{name}: {text}" if text else ""


def _startup_failure(raw: Raw) -> _Wait:
    """Return the reason of a failed pod, or of its init container: the program did not run."""
    status = raw.status
    for container in _init_containers(raw):
        ending = container.state.terminated
        if ending and ending.exit_code:
            failed = InitContainer(container.name, ending.exit_code, ending.message)
            return _Wait(INIT_FAILED, _init_failure(failed), init=failed)
    return _Wait(status.reason, status.message)


def _init_failure(failed: InitContainer) -> str:
    text = f"init container {failed.name} ended with exit code {failed.exit_code}"
    return f"{text}: {failed.message}" if failed.message else text


def _disruption(raw: Raw) -> Disruption | None:
    target = _condition(raw.status, "DisruptionTarget")
    if target and target.status == "True":
        return Disruption(target.reason, target.last_transition_time or _NEVER, target.message)
    if raw.status.reason in _DISRUPTION_REASONS and not _exceeded_limit(raw):
        at = _deletion_requested_at(raw.metadata) or raw.metadata.creation_timestamp or _NEVER
        return Disruption(_DISRUPTION_REASONS[raw.status.reason], at, raw.status.message)
    return None


def _exceeded_limit(raw: Raw) -> bool:
    """Return whether the kubelet evicted the pod for a limit of its own: the size of an emptyDir, or ephemeral-storage.

    Kubernetes leaves out the condition DisruptionTarget then. It also does so where a node under pressure rejects a
    pod, but no container of such a pod ever ran.
    """
    status = raw.status
    if status.phase != "Failed" or status.reason != "Evicted" or _condition(status, "DisruptionTarget"):
        return False
    containers = (*status.init_container_statuses, *status.container_statuses)
    return any(state.running or state.terminated for c in containers for state in (c.state, c.last_state))


_DISRUPTION_REASONS = {
    "Evicted": "TerminationByKubelet",
    "Shutdown": "TerminationByKubelet",
    "Terminated": "TerminationByKubelet",
    "Preempting": "PreemptionByScheduler",
    "NodeLost": "DeletionByTaintManager",
}
"""`status.reason` of a pod without a DisruptionTarget condition -> the reason that the condition would have."""


def _condition(status: RawStatus, kind: str) -> Condition | None:
    return next((c for c in status.conditions if c.type == kind), None)


def _deletion_requested_at(metadata: Meta) -> datetime | None:
    if metadata.deletion_timestamp is None:
        return None
    try:
        return metadata.deletion_timestamp - timedelta(seconds=metadata.deletion_grace_period_seconds or 0)
    except OverflowError:
        # The API server accepts a grace period of centuries, and its own sum overflows: the time is lost.
        return metadata.creation_timestamp or _NEVER


def _number(label: str | None, otherwise: int) -> int:
    return int(label) if label and label.isdigit() else otherwise
