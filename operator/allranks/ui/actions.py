"""The actions on a job and their effects, in sentences for the page that asks for confirmation. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from allranks.api.status import FINISHED, Status
from allranks.client.jobs import scaling_effect
from allranks.ui.entries import Entry
from allranks.views.format.duration import age


@dataclass(frozen=True)
class Action:
    """An action that a user may choose. `label`: text of its button."""

    name: str
    label: str
    question: str
    effects: tuple[str, ...]
    workers: int | None = None
    """The present number of workers, for scale."""
    bounds: tuple[int, int | None] = (0, None)
    """The allowed numbers of workers."""


def actions(entry: Entry, now: datetime) -> list[Action]:
    """Return the actions that the state of the job allows; none for a run, which its terminal controls, or a deleted
    job."""
    if entry.source != "jobs" or entry.metadata.get("deletionTimestamp"):
        return []
    spec, status = entry.manifest.get("spec") or {}, entry.status
    allowed = []
    finished = status.phase in FINISHED
    if spec.get("suspend") and not finished:
        allowed.append(Action("resume", "Resume", f"Resume {entry.name}?", tuple(_resume(status))))
    elif not finished or status.hold is not None:
        allowed.append(Action("suspend", "Suspend", f"Suspend {entry.name}?", tuple(_suspend(entry, now))))
    if "worker" in (spec.get("roles") or {}) and not finished:
        allowed.append(_scale(entry))
    allowed.append(Action("delete", "Delete", f"Delete {entry.name}?", tuple(_delete(status))))
    return allowed


def _pods(status: Status) -> str:
    number = sum(role.active for role in status.roles.values())
    return "its pod" if number == 1 else f"its {number} pods" if number else "its pods"


def _suspend(entry: Entry, now: datetime) -> Iterator[str]:
    status = entry.status
    if status.hold is not None:
        yield "The pods of the failed job, which restart.holdSeconds keeps, are deleted now."
        return
    yield f"The operator deletes {_pods(status)}, and their logs with them. The job stays, and can be resumed."
    yield from _lost_work(status, now)


def _lost_work(status: Status, now: datetime) -> Iterator[str]:
    progress = status.progress
    if progress is None or progress.step is None:
        yield "The ranks have not reported a step: the program continues from its last checkpoint, if it stores any."
    elif progress.saves_on_request:
        yield "The ranks are asked for a checkpoint first, so that no work is lost."
    elif progress.checkpoint_time is not None:
        step = "" if progress.checkpoint_step is None else f" of step {progress.checkpoint_step}"
        since = age(progress.checkpoint_time, now)
        yield f"The work since the last checkpoint{step}, {since} ago, is lost."
    else:
        yield "The program has reported no checkpoint: if it stores none, it begins again from step 0."


def _resume(status: Status) -> Iterator[str]:
    where = " when its queue admits it" if status.queue is not None else ""
    yield f"The operator creates the pods of all ranks again{where}. The program continues from its last checkpoint."


def _scale(entry: Entry) -> Action:
    spec = entry.manifest.get("spec") or {}
    workers = int((spec["roles"]["worker"] or {}).get("replicas", 1))
    elastic = spec.get("elastic")
    bounds = (int(elastic["minReplicas"]), int(elastic["maxReplicas"])) if elastic else (0, None)
    effects = [f"The job has {workers} worker{'s' * (workers != 1)}."]
    if entry.status.phase in ("Running", "Restarting", "Pending"):
        more, fewer = (scaling_effect(spec, grows).removeprefix(": ") for grows in (True, False))
        if more == fewer:
            effects.append(f"Another number of workers: {more}.")
        else:
            effects += [f"More workers: {more}.", f"Fewer workers: {fewer}."]
    if elastic:
        effects.append(f"The job is elastic from {bounds[0]} to {bounds[1]} workers.")
    return Action("scale", "Scale", f"Change the number of workers of {entry.name}?", tuple(effects), workers, bounds)


def _delete(status: Status) -> Iterator[str]:
    if status.phase in FINISHED:
        yield "The job is deleted with its status, the pods that are left, and their logs."
    else:
        yield f"The job ends. It is deleted with its status, {_pods(status)}, and their logs."
    yield "Volume claims and checkpoints are kept. A deleted job cannot be restored."
