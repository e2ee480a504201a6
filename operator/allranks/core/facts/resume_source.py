"""The checkpoints from which a job starts (`resumeFrom`), of another job or at an address."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any

from allranks.api.job import Checkpoint, Job
from allranks.api.status import FINISHED, WITHOUT_PODS, Status

_FIELD = "spec.resumeFrom"
_LONGEST = 512
WITH_A_POD = frozenset({"emptyDir", "ephemeral"})
"""Volumes that are deleted with their pod."""


@dataclass(frozen=True, slots=True)
class ResumeSource:
    """The job that `resumeFrom` names."""

    phase: str
    checkpoint: Checkpoint | None = None


def is_address(resume_from: str) -> bool:
    return "://" in resume_from


def split(resume_from: str) -> tuple[str, int | None]:
    """Return (job, step) of JOB or JOB/STEP."""
    job, _, step = resume_from.partition("/")
    return job, int(step) if step else None


def problems(job: Job) -> list[tuple[str, str]]:
    """Return (field path, message) of mistakes that the job alone shows."""
    if job.spec.resume_from is None or is_address(job.spec.resume_from):
        return []
    if split(job.spec.resume_from)[0] == job.name:
        return [(_FIELD, "names this job itself, which continues from its own checkpoints anyway: remove it")]
    return []


def locate(job: Job, source: ResumeSource | None) -> tuple[str, list[tuple[str, str]]]:
    """Return (address of the checkpoints, problems): claim://CLAIM/FOLDER, volume:///FOLDER of this job's own volume,
    or the address that is fetched as an input."""
    assert job.spec.resume_from is not None
    if is_address(job.spec.resume_from):
        return job.spec.resume_from, []
    name, step = split(job.spec.resume_from)
    checkpoint = job.spec.checkpoint
    if source is None:
        return "", [(_FIELD, f"there is no DistributedTraining {name} in namespace {job.namespace}")]
    theirs = source.checkpoint
    if theirs is None or checkpoint is None:
        return "", [(_FIELD, f"{name} has no checkpoints: it does not set spec.checkpoint")]
    if source.phase not in FINISHED | WITHOUT_PODS and step is None:
        text = f"{name} is {source.phase or 'Pending'} and may be writing its newest checkpoint: name one of its steps"
        return "", [(_FIELD, f"{text}, {name}/STEP, or suspend it first")]
    if theirs.volume and theirs.volume != checkpoint.volume:
        kind = next(iter(theirs.volume.model_dump(by_alias=True, exclude_none=True)), "unknown")
        if kind in WITH_A_POD:
            return "", [(_FIELD, f"the checkpoints of {name} are gone: a volume of type {kind} ends with its pod")]
        text = f"the checkpoints of {name} are on a volume ({kind}) that this job does not have"
        return "", [(_FIELD, f"{text}: only a claim, or the same spec.checkpoint.volume, can be read")]
    folder, own_folder = _folder(theirs), _folder(checkpoint)
    same = (theirs.claim, theirs.volume) == (checkpoint.claim, checkpoint.volume)
    if same and _overlap(folder, own_folder):
        text = f"{own_folder or 'the whole volume'} overlaps the folder of {name} ({folder or 'the whole volume'})"
        return "", [("spec.checkpoint.subPath", f"{text}, whose checkpoints must not change: choose another folder")]
    address = f"claim://{theirs.claim}/{folder}" if theirs.claim else f"volume:///{folder}"
    if len(address) > _LONGEST:
        return "", [(_FIELD, f"the path of the checkpoints of {name} has more than {_LONGEST} characters")]
    return address, []


def shared(checkpoint: Checkpoint | None) -> bool:
    """Return whether all pods of the job have the same checkpoints."""
    volume = checkpoint.volume.model_dump(by_alias=True) if checkpoint and checkpoint.volume else {}
    return checkpoint is not None and not WITH_A_POD & volume.keys()


def needed(job: Job, status: Status, local: bool) -> bool:
    """Return whether pods need the init container that copies checkpoints: until all pods have run once, and always if
    each pod has a volume of its own, which is empty at first.

    A local run copies before it starts pods.
    """
    resumes = bool(job.spec.resume_from and status.resumed_from) and not local
    return resumes and not (status.ever_ran and shared(job.spec.checkpoint))


def parts(address: str) -> tuple[str, str]:
    """Return (claim, folder) of an address. The claim is empty if the checkpoints are on the job's own volume."""
    claim, _, folder = address.partition("://")[2].partition("/")
    return claim, folder


def _folder(checkpoint: Checkpoint) -> str:
    path = posixpath.normpath(checkpoint.sub_path or ".")
    return "" if path == "." else path


def _overlap(folder: str, other: str) -> bool:
    """Return whether one folder is the other, or inside it."""
    first, second = folder.split("/") if folder else [], other.split("/") if other else []
    shorter = min(len(first), len(second))
    return first[:shorter] == second[:shorter]


CHECKPOINT_VOLUME = "checkpoint"


def volume_source(checkpoint: Checkpoint) -> dict[str, Any]:
    if checkpoint.volume is None:
        return {"persistentVolumeClaim": {"claimName": checkpoint.claim}}
    return checkpoint.volume.model_dump(by_alias=True, exclude_none=True, mode="json")
