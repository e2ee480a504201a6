"""What a pod needs to start from the checkpoints of another job: an init container that copies them."""

from __future__ import annotations

from typing import Any

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import naming, resume_source
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.resume_source import CHECKPOINT_VOLUME
from allranks.core.objects import code
from allranks.frameworks.base import HELPER_DIR

CONTAINER = "allranks-resume"
SOURCE_DIR = "/allranks-resume-from"
_VOLUME = "allranks-resume"


def needed(job: Job, status: Status, platform: Platform) -> bool:
    """Once all pods have run, the copy is there. A local run copies before it starts pods."""
    return bool(job.spec.resume_from and status.resumed_from) and not platform.local and not status.ever_ran


def volumes(status: Status) -> list[Manifest]:
    """The volumes that only this init container mounts."""
    claim, _ = resume_source.parts(status.resumed_from or "")
    return [{"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim}}] if claim else []


def container(
    job: Job, status: Status, role: str, trainer: Manifest, security: Manifest, resources: Manifest
) -> Manifest:
    """Runs in the image and as the user of the training container, because the files are its own."""
    own = job.spec.checkpoint
    assert own is not None
    assert job.spec.resume_from is not None
    claim, folder = resume_source.parts(status.resumed_from or "")
    _, step = resume_source.split(job.spec.resume_from)
    arguments = [SOURCE_DIR, own.path, "--name", job.spec.resume_from]
    arguments += ["--step", str(step)] if step is not None else []
    if resume_source.shared(own):
        # All pods share the volume: one of them copies, and the others wait for it.
        arguments += ["--copier", str(int(role == next(name for name, of in job.spec.roles.items() if of.replicas)))]
    target = {"subPath": own.sub_path} if own.sub_path else {}
    source: dict[str, Any] = {"subPath": folder} if folder else {}
    index = {"fieldRef": {"fieldPath": f"metadata.labels['{naming.INDEX_LABEL}']"}}
    return {
        "name": CONTAINER,
        **{key: trainer[key] for key in ("image", "imagePullPolicy") if trainer.get(key)},
        "command": [code.python(trainer), f"{HELPER_DIR}/copy_checkpoint.py", *arguments],
        "env": [{"name": "ALLRANKS_INDEX", "valueFrom": index}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "allranks-helper", "mountPath": HELPER_DIR, "readOnly": True},
            {"name": CHECKPOINT_VOLUME, "mountPath": own.path, **target},
            {"name": _VOLUME if claim else CHECKPOINT_VOLUME, "mountPath": SOURCE_DIR, "readOnly": True, **source},
        ],
        **({"resources": resources} if resources else {}),
        "securityContext": security,
    }
