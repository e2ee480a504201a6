"""From objects as the API server gives them to what the core sees, and back."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from allranks.api.job import Job, Metadata, Spec
from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.core.model import Disruption, Exit, Manifest, Pod
from allranks.core.names import ATTEMPT_LABEL, INDEX_LABEL, RESTART_LABEL, ROLE_LABEL, TRAINER
from allranks.drivers.memory.store import controller_of, parse_stamp


def job(manifest: Manifest) -> Job:
    """Raises pydantic's ValidationError for an object that was stored before its schema changed."""
    metadata = Metadata.model_validate(manifest["metadata"], by_alias=True, by_name=False)
    return Job(metadata=metadata, spec=Spec.model_validate(manifest["spec"], by_alias=True, by_name=False))


def pool(manifest: Manifest) -> PoolSpec:
    """Raises pydantic's ValidationError, as `job`."""
    return PoolSpec.model_validate(manifest["spec"], by_alias=True, by_name=False)


def status(manifest: Manifest) -> Status:
    return Status.model_validate(manifest.get("status") or {}, by_alias=True, by_name=False)


def encode_status(status: Status) -> Manifest:
    return status.model_dump(by_alias=True, exclude_none=True, mode="json")


def pod(manifest: Manifest, owner: str) -> Pod:
    """`owner` is the UID of the job that asks."""
    metadata, seen = manifest["metadata"], manifest["status"]
    labels = metadata.get("labels", {})
    trainer: Manifest = next((c for c in seen.get("containerStatuses", ()) if c["name"] == TRAINER), {})
    state = trainer.get("state", {})
    reason, message = _waiting(seen, state)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=labels.get(ROLE_LABEL, ""),
        index=_number(labels.get(INDEX_LABEL), -1),
        attempt=_number(labels.get(ATTEMPT_LABEL), -1),
        restart=_number(labels.get(RESTART_LABEL), 0),
        phase=seen["phase"],
        owned=controller_of(manifest) == owner,
        created_at=parse_stamp(metadata["creationTimestamp"]),
        started_at=_moment((state.get("running") or state.get("terminated") or {}).get("startedAt")),
        deleted_at=_asked_to_go(metadata),
        node=manifest["spec"].get("nodeName"),
        waiting_reason=reason,
        waiting_message=message,
        # Not lastState: a container that restartPolicy OnFailure runs again has not ended.
        exit=_exit(state["terminated"], manifest) if "terminated" in state else None,
        disruption=_disruption(seen, manifest),
    )


def _exit(terminated: Manifest, manifest: Manifest) -> Exit:
    return Exit(
        code=terminated["exitCode"],
        # ContainerStatusUnknown comes without a time: kubelet had lost track of the container.
        finished_at=_moment(terminated.get("finishedAt")) or parse_stamp(manifest["metadata"]["creationTimestamp"]),
        reason=terminated.get("reason", "Error"),
        message=terminated.get("message", ""),
    )


def _waiting(seen: Manifest, state: Manifest) -> tuple[str, str]:
    """(reason, message) of what keeps the program from running, or kept it from ever doing so."""
    if seen["phase"] == "Failed":
        return _never_ran(seen)
    if "waiting" in state:
        return state["waiting"].get("reason", ""), state["waiting"].get("message", "")
    placed = _condition(seen, "PodScheduled")
    if placed and placed["status"] == "False":
        return placed.get("reason", ""), placed.get("message", "")
    return "", ""


def _never_ran(seen: Manifest) -> tuple[str, str]:
    """What a pod that failed says of itself, or its init container, whose end is no end of the program."""
    for status in seen.get("initContainerStatuses", ()):
        ending = status.get("state", {}).get("terminated", {})
        if ending.get("exitCode"):
            text = f"init container {status['name']} ended with exit code {ending['exitCode']}"
            return "InitContainerFailed", f"{text}: {ending['message']}" if ending.get("message") else text
    return seen.get("reason", ""), seen.get("message", "")


def _disruption(seen: Manifest, manifest: Manifest) -> Disruption | None:
    target = _condition(seen, "DisruptionTarget")
    if target and target["status"] == "True":
        reason, message = target.get("reason", ""), target.get("message", "")
        return Disruption(reason, parse_stamp(target["lastTransitionTime"]), message)
    if seen.get("reason") in _LIKE_DISRUPTIONS:
        at = _asked_to_go(manifest["metadata"]) or parse_stamp(manifest["metadata"]["creationTimestamp"])
        return Disruption(_LIKE_DISRUPTIONS[seen["reason"]], at, seen.get("message", ""))
    return None


_LIKE_DISRUPTIONS = {
    "Evicted": "TerminationByKubelet",
    "Shutdown": "TerminationByKubelet",
    "Terminated": "TerminationByKubelet",
    "Preempting": "PreemptionByScheduler",
    "NodeLost": "DeletionByTaintManager",
}
"""`status.reason` of a pod -> the condition's reason that it stands for where there is no condition."""


def _condition(seen: Manifest, kind: str) -> Manifest | None:
    return next((c for c in seen.get("conditions", ()) if c["type"] == kind), None)


def _asked_to_go(metadata: Manifest) -> datetime | None:
    deadline = _moment(metadata.get("deletionTimestamp"))
    return deadline - timedelta(seconds=metadata.get("deletionGracePeriodSeconds", 0)) if deadline else None


def _moment(text: Any) -> datetime | None:
    return parse_stamp(text) if text else None


def _number(label: str | None, otherwise: int) -> int:
    return int(label) if label and label.isdigit() else otherwise
