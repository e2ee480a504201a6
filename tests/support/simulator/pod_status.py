"""Status updates of scheduler, kubelet and node controller: functions from a pod to its next status.

Shapes and words are those of Kubernetes 1.36, so that a fake kubelet can patch the very same on a real one.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from allranks.core.facts.model import Manifest
from allranks.core.facts.naming import TRAINER

from .store import stamp


def unschedulable(pod: Manifest, now: datetime, message: str) -> Manifest:
    """The scheduler found no node."""
    return _with_condition(pod, now, "PodScheduled", "False", "Unschedulable", message)


def scheduled(pod: Manifest, now: datetime) -> Manifest:
    """The pod has a node, but its containers do not run yet."""
    return _with_condition(pod, now, "PodScheduled", "True") | {"startTime": stamp(now)}


def waiting(pod: Manifest, now: datetime, reason: str, message: str = "", container: str = TRAINER) -> Manifest:
    """A container waits, for example with reason `ImagePullBackOff`. If it is the trainer, all main containers wait;
    beside another main container the trainer runs; after an init container nothing has started."""
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    if container in _init_names(pod):
        return _initializing(pod, now, container, state)
    runs = {"running": {"startedAt": stamp(now)}}
    waits = [container] if container != TRAINER else _names(pod)
    containers = [_container(name, state if name in waits else runs) for name in _names(pod)]
    return _initialized(pod, now) | {"phase": "Pending", "containerStatuses": containers}


def initializing(pod: Manifest, now: datetime, container: str) -> Manifest:
    """An init container runs."""
    return _initializing(pod, now, container, {"running": {"startedAt": stamp(now)}})


def unmounted(pod: Manifest, now: datetime) -> Manifest:
    """The kubelet waits for the pod's volumes."""
    init = _init_names(pod)
    state = {"waiting": {"reason": "PodInitializing" if init else "ContainerCreating"}}
    status = _with_condition(pod, now, "PodReadyToStartContainers", "False") | {"phase": "Pending"}
    if init:
        status |= {"initContainerStatuses": [_container(name, state) for name in init]}
    return status | {"containerStatuses": [_container(name, state) for name in _names(pod)]}


def running(pod: Manifest, now: datetime) -> Manifest:
    """All containers run."""
    state = {"running": {"startedAt": stamp(now)}}
    containers = [_container(name, state, ready=True) for name in _names(pod)]
    pod = {**pod, "status": _initialized(pod, now)}
    return _with_condition(pod, now, "Ready", "True") | {"phase": "Running", "containerStatuses": containers}


def _initializing(pod: Manifest, now: datetime, container: str, state: Manifest) -> Manifest:
    """The init containers before this one have ended, or run if they are sidecars."""
    waits = {"waiting": {"reason": "PodInitializing"}}
    names = _init_names(pod)
    before = names[: names.index(container)]
    states = {**dict.fromkeys(names, waits), **{name: _begun(pod, now, name) for name in before}, container: state}
    status = _with_condition(pod, now, "Initialized", "False", "ContainersNotInitialized") | {"phase": "Pending"}
    status |= {"initContainerStatuses": [_container(name, state) for name, state in states.items()]}
    return status | {"containerStatuses": [_container(name, waits) for name in _names(pod)]}


def _initialized(pod: Manifest, now: datetime) -> Manifest:
    if not (names := _init_names(pod)):
        status: Manifest = pod["status"]
        return status
    init = [_container(name, _begun(pod, now, name)) for name in names]
    return _with_condition(pod, now, "Initialized", "True") | {"initContainerStatuses": init}


def _begun(pod: Manifest, now: datetime, name: str) -> Manifest:
    """State of an init container whose successors may start."""
    [container] = [container for container in pod["spec"]["initContainers"] if container["name"] == name]
    sidecar = container.get("restartPolicy") == "Always"
    return {"running": {"startedAt": stamp(now)}} if sidecar else _terminated({}, now, 0)


def _init_names(pod: Manifest) -> list[str]:
    return [container["name"] for container in pod["spec"].get("initContainers", ())]


def exited(
    pod: Manifest,
    now: datetime,
    code: int,
    reason: str = "",
    message: str = "",
    container: str = TRAINER,
    others: int | None = 0,
) -> Manifest:
    """A container exited, and the others with exit code `others` (None: they and the pod continue to run)."""
    before = {status["name"]: status for status in pod["status"].get("containerStatuses", ())}
    containers = []
    for name in _names(pod):
        state = before.get(name, {}).get("state", {})
        if name == container and "terminated" not in state:
            ended = _container(name, _terminated(state, now, code, reason, message))
            kept = {key: before[name][key] for key in ("allocatedResourcesStatus",) if key in before.get(name, {})}
            containers.append(ended | kept)
        elif others is not None and "terminated" not in state:
            containers.append(_container(name, _terminated(state, now, others)))
        else:
            containers.append(before.get(name) or _container(name, {"waiting": {"reason": "ContainerCreating"}}))
    codes = [status["state"].get("terminated", {}).get("exitCode") for status in containers]
    waits = any("waiting" in status["state"] for status in containers)
    phase = "Pending" if waits else "Running" if None in codes else "Failed" if any(codes) else "Succeeded"
    return _with_condition(pod, now, "Ready", "False") | {"phase": phase, "containerStatuses": containers}


def with_unhealthy_device(pod: Manifest, device: str) -> Manifest:
    """The device plugin, or the DRA driver, says that a device of the training container is unhealthy: KEP-4680."""
    name, _, identifier = device.partition(" ")
    health = [{"name": name, "resources": [{"resourceID": identifier, "health": "Unhealthy"}]}]
    containers = [
        {**status, "allocatedResourcesStatus": health} if status["name"] == TRAINER else status
        for status in pod["status"]["containerStatuses"]
    ]
    return {**pod["status"], "containerStatuses": containers}


def crash_looping(pod: Manifest, now: datetime, code: int, restarts: int, message: str = "") -> Manifest:
    """The training container failed again, and the kubelet restarts it in place after a backoff."""
    text = f"back-off 5m0s restarting failed container={TRAINER}"
    containers = []
    for status in pod["status"]["containerStatuses"]:
        if status["name"] == TRAINER:
            last = _terminated(status["state"], now, code, message=message)
            status = _container(TRAINER, {"waiting": {"reason": "CrashLoopBackOff", "message": text}})
            status |= {"restartCount": restarts, "lastState": last}
        containers.append(status)
    return _with_condition(pod, now, "Ready", "False") | {"phase": "Running", "containerStatuses": containers}


def init_failed(pod: Manifest, now: datetime, code: int, message: str = "") -> Manifest:
    """An init container failed, so that the training container never ran."""
    names = [c["name"] for c in pod["spec"].get("initContainers", ())] or ["init"]
    failed = _container(names[-1], _terminated({}, now, code, "Error", message))
    idle = [_container(name, {"waiting": {"reason": "PodInitializing"}}) for name in _names(pod)]
    return {**pod["status"], "phase": "Failed", "initContainerStatuses": [failed], "containerStatuses": idle}


def rejected(pod: Manifest, reason: str, message: str) -> Manifest:
    """The kubelet rejected the pod at admission, for example with reason `UnexpectedAdmissionError`."""
    return {**pod["status"], "phase": "Failed", "reason": reason, "message": f"Pod was rejected: {message}"}


def limit_exceeded(pod: Manifest, now: datetime, code: int = 137) -> Manifest:
    """The kubelet evicted the pod for a limit of its own. Such an eviction has no condition DisruptionTarget."""
    message = 'Usage of EmptyDir volume "dshm" exceeds the limit "1Gi". '
    return exited(pod, now, code, others=137) | {"phase": "Failed", "reason": "Evicted", "message": message}


def disrupted(pod: Manifest, now: datetime, reason: str, message: str = "") -> Manifest:
    """The cluster is about to delete the pod: condition `DisruptionTarget`."""
    return _with_condition(pod, now, "DisruptionTarget", "True", reason, message)


def evicted(pod: Manifest, now: datetime, message: str = "The node was low on resource: memory.") -> Manifest:
    """The kubelet evicted the pod: its containers were killed."""
    gone = {**pod, "status": exited(pod, now, 137, "Error", others=137)}
    status = disrupted(gone, now, "TerminationByKubelet", message)
    return status | {"phase": "Failed", "reason": "Evicted", "message": message}


def stopped(pod: Manifest, now: datetime, code: int) -> Manifest:
    """The containers have ended. The kubelet writes this before it writes the phase, and why it ended them."""
    return exited(pod, now, code, others=code) | {"phase": pod["status"]["phase"]}


def shut_down(pod: Manifest, now: datetime) -> Manifest:
    """The node shuts down: its kubelet has ended the containers of the pod. If all exited with 0, the phase is
    Succeeded without a reason (tests/e2e/test_kubelets.py)."""
    message = "Pod was terminated in response to imminent node shutdown."
    status = disrupted(pod, now, "TerminationByKubelet", message)
    if any(container["state"]["terminated"]["exitCode"] for container in status["containerStatuses"]):
        return status | {"phase": "Failed", "reason": "Terminated", "message": message}
    return status | {"phase": "Succeeded"}


def over_limit(pod: Manifest, now: datetime) -> Manifest:
    """The kubelet evicted the pod because it exceeded a limit of its own: there is no DisruptionTarget."""
    message = 'Usage of EmptyDir volume "dshm" exceeds the limit "64Mi".'
    return exited(pod, now, 137, "Error", others=137) | {"phase": "Failed", "reason": "Evicted", "message": message}


def unreachable(pod: Manifest, now: datetime) -> Manifest:
    """The node controller lost contact to the node: the pod is not ready, and its phase does not change."""
    return _with_condition(pod, now, "Ready", "False", "NodeNotReady")


def collected(pod: Manifest, now: datetime) -> Manifest:
    """The pod garbage collector marks a pod whose node was deleted as failed."""
    return disrupted(pod, now, "DeletionByPodGC", "PodGC: node no longer exists") | {"phase": "Failed"}


def _names(pod: Manifest) -> list[str]:
    return [container["name"] for container in pod["spec"]["containers"]]


def _container(name: str, state: Manifest, ready: bool = False) -> Manifest:
    return {"name": name, "ready": ready, "restartCount": 0, "state": state}


def _terminated(state: Manifest, now: datetime, code: int, reason: str = "", message: str = "") -> Manifest:
    begun = state.get("running", {}).get("startedAt", stamp(now))
    ending: dict[str, Any] = {"exitCode": code, "startedAt": begun, "finishedAt": stamp(now)}
    ending["reason"] = reason or ("Error" if code else "Completed")
    return {"terminated": ending | ({"message": message} if message else {})}


def _with_condition(
    pod: Manifest, now: datetime, kind: str, value: str, reason: str = "", message: str = ""
) -> Manifest:
    status: Manifest = pod["status"]
    conditions = status.get("conditions", [])
    before = next((c for c in conditions if c["type"] == kind), None)
    since = before["lastTransitionTime"] if before and before["status"] == value else stamp(now)
    condition = {"type": kind, "status": value, "lastTransitionTime": since}
    condition |= {key: text for key, text in (("reason", reason), ("message", message)) if text}
    return {**status, "conditions": [*(c for c in conditions if c["type"] != kind), condition]}
