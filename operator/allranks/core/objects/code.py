"""The setup of a pod before its program starts: the job's code, Python packages, and checkpoints of another job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from allranks.api.job import Checkpoint, Job
from allranks.api.status import Rollback, Status
from allranks.core.facts import naming, resume_source, stored_checkpoints
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.pod_template import PACKAGES_DIR
from allranks.core.facts.resume_source import CHECKPOINT_VOLUME
from allranks.core.transfers import data
from allranks.frameworks.base import HELPER_DIR

VOLUME = "allranks-code"
ARCHIVE_VOLUME = "allranks-code-archive"
ARCHIVE_DIR = "/etc/allranks-code"
ARCHIVE = "code.tar.gz"
"""Key of the ConfigMap."""
PACKAGES = "allranks-packages"
"""Name of the volume, and of the init container."""


def needs_helper(job: Job, platform: Platform) -> bool:
    return not platform.local and (_archived(job) or bool(job.spec.packages))


def with_library(env: Iterable[Manifest]) -> list[Manifest]:
    """Return the variables of a program with the helper's report library at the end of PYTHONPATH.

    One with `valueFrom` stays as it is.
    """
    return [
        {**variable, "value": f"{variable['value']}:{HELPER_DIR}/python"}
        if variable["name"] == "PYTHONPATH" and variable.get("value")
        else variable
        for variable in env
    ]


def volumes(job: Job) -> Iterator[tuple[str, str, Manifest, dict[str, Any]]]:
    """Yield (name, mount path, source, further fields of the mount) of the training container's volumes."""
    code = job.spec.code
    if code and code.claim:
        sub_path = {"subPath": code.sub_path} if code.sub_path else {}
        yield VOLUME, code.path, {"persistentVolumeClaim": {"claimName": code.claim}}, {"readOnly": True, **sub_path}
    elif code and code.image:
        sub_path = {"subPath": code.sub_path} if code.sub_path else {}
        yield VOLUME, code.path, {"image": {"reference": code.image}}, {"readOnly": True, **sub_path}
    elif code:
        yield VOLUME, code.path, {"emptyDir": {}}, {}
    if job.spec.packages:
        yield PACKAGES, PACKAGES_DIR, {"emptyDir": {}}, {"readOnly": True}


def helper_volumes(job: Job, status: Status) -> Iterator[tuple[str, Manifest]]:
    """Yield (name, source) of volumes that only init containers mount."""
    if config_map := _archive(job, status)[0]:
        yield ARCHIVE_VOLUME, {"configMap": {"name": config_map}}


def unpacking(job: Job, status: Status) -> tuple[list[str], list[Manifest]]:
    """Return (further arguments, further mounts) of the helper."""
    code, (config_map, sha256) = job.spec.code, _archive(job, status)
    if code is None or not config_map or not sha256:
        return [], []
    arguments = ["--code", f"{ARCHIVE_DIR}/{ARCHIVE}", "--sha256", sha256, "--to", code.path]
    archive = {"name": ARCHIVE_VOLUME, "mountPath": ARCHIVE_DIR, "readOnly": True}
    return arguments, [archive, {"name": VOLUME, "mountPath": code.path}]


def packages_container(job: Job, trainer: Manifest, security: Manifest, resources: Manifest) -> Manifest:
    """Return the init container that installs the packages.

    It has the image of the training container, for its Python, with its variables, such as PIP_INDEX_URL, and its
    volumes, such as a cache.
    """
    kept = ("image", "imagePullPolicy", "env", "envFrom")
    mounts = [
        *trainer.get("volumeMounts", []),
        {"name": "allranks-helper", "mountPath": HELPER_DIR, "readOnly": True},
        {"name": PACKAGES, "mountPath": PACKAGES_DIR},
    ]
    return {
        "name": PACKAGES,
        **{key: trainer[key] for key in kept if trainer.get(key)},
        "command": [python(trainer), f"{HELPER_DIR}/install_packages.py", PACKAGES_DIR, *(job.spec.packages or [])],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        **({"resources": resources} if resources else {}),
        "securityContext": security,
    }


def python(trainer: Manifest) -> str:
    """Return the Python of the program's command, or `python3` if the command names none."""
    first = str((trainer.get("command") or ["python3"])[0])
    return first if re.fullmatch(r"python[0-9.]*", first.rpartition("/")[2]) else "python3"


def problems(job: Job, trainer: Manifest) -> Iterator[str]:
    """Yield a message for each mount path that the code shares with another volume."""
    code = job.spec.code
    if code is None:
        return
    taken = {str(mount.get("mountPath", "")).rstrip("/") for mount in trainer.get("volumeMounts", [])}
    taken |= {
        HELPER_DIR,
        PACKAGES_DIR,
        ARCHIVE_DIR,
        "/dev/shm",
        "/etc",
        "/usr",
        "/bin",
        "/lib",
        "/proc",
        "/sys",
        "/dev",
    }
    if job.spec.checkpoint:
        taken.add(job.spec.checkpoint.path.rstrip("/"))
    if code.path.rstrip("/") in taken:
        yield f"{code.path} is taken by another volume or by the system: choose another directory"


def _archived(job: Job) -> bool:
    return job.spec.code is not None and job.spec.code.config_map is not None


def _archive(job: Job, status: Status) -> tuple[str | None, str | None]:
    """Return (ConfigMap, SHA-256) of the code of the attempt. The job may have other code already, for the next one."""
    of_attempt, code = status.code, job.spec.code
    if code is None or code.config_map is None:
        return None, None
    if of_attempt and of_attempt.config_map:
        return of_attempt.config_map, of_attempt.sha256
    return code.config_map, code.sha256


RESUME_CONTAINER = "allranks-resume"
SOURCE_DIR = "/allranks-resume-from"
_RESUME_VOLUME = "allranks-resume"


def resume_volume(job: Job, status: Status, platform: Platform) -> tuple[str, Manifest, Manifest]:
    """Return (name, source, further fields of the mount) of the volume with the checkpoints from which the job
    starts."""
    if start := job.spec.starting_point:
        mount = data.mount_of(start, status, job, platform)
        assert mount is not None
        return mount
    claim, folder = resume_source.parts(status.resumed_from or "")
    below: Manifest = {"subPath": folder} if folder else {}
    if claim:
        return _RESUME_VOLUME, {"persistentVolumeClaim": {"claimName": claim}}, below
    assert job.spec.checkpoint is not None
    return CHECKPOINT_VOLUME, resume_source.volume_source(job.spec.checkpoint), below


def resume_container(
    job: Job, source: tuple[str, Manifest], role: str, trainer: Manifest, security: Manifest, resources: Manifest
) -> Manifest:
    """Return the init container that copies the checkpoints from which the job starts. `source`: (name of their volume,
    further fields of the mount).

    It has the image and the user of the training container, which owns the files.
    """
    checkpoint = job.spec.checkpoint
    assert checkpoint is not None
    assert job.spec.resume_from is not None
    start = job.spec.starting_point
    step = None if start else resume_source.split(job.spec.resume_from)[1]
    arguments = [SOURCE_DIR, checkpoint.path, "--name", job.spec.resume_from]
    arguments += ["--may-be-empty"] if start and start.may_be_empty else []
    arguments += ["--step", str(step)] if step is not None else []
    if resume_source.shared(checkpoint):
        arguments += ["--copier", _acts(job, role)]
    volume, below = source
    mounts = [{"name": volume, "mountPath": SOURCE_DIR, "readOnly": True, **below}]
    return {
        "name": RESUME_CONTAINER,
        **_checkpoint_container(checkpoint, trainer, mounts),
        "command": [python(trainer), f"{HELPER_DIR}/copy_checkpoint.py", *arguments],
        **({"resources": resources} if resources else {}),
        "securityContext": security,
    }


SET_ASIDE_CONTAINER = "allranks-set-aside"


def set_aside_container(
    job: Job, rollback: Rollback, role: str, trainer: Manifest, security: Manifest, resources: Manifest
) -> Manifest:
    """Return the init container that sets a checkpoint aside which could not be read."""
    checkpoint = job.spec.checkpoint
    assert checkpoint is not None
    name = stored_checkpoints.aside_name(job, rollback)
    arguments = [checkpoint.path, str(rollback.unreadable_step), name, "--mover", _acts(job, role)]
    return {
        "name": SET_ASIDE_CONTAINER,
        **_checkpoint_container(checkpoint, trainer, []),
        "command": [python(trainer), f"{HELPER_DIR}/set_aside.py", *arguments],
        **({"resources": resources} if resources else {}),
        "securityContext": security,
    }


def _acts(job: Job, role: str) -> str:
    """Return 1 for the role whose pod with index 0 acts on the volume that all pods share; the others wait for it."""
    return str(int(role == next(name for name, spec in job.spec.roles.items() if spec.replicas)))


def _checkpoint_container(checkpoint: Checkpoint, trainer: Manifest, mounts: list[Manifest]) -> Manifest:
    """Return what init containers have in common that change the checkpoints."""
    target = {"subPath": checkpoint.sub_path} if checkpoint.sub_path else {}
    index = {"fieldRef": {"fieldPath": f"metadata.labels['{naming.INDEX_LABEL}']"}}
    return {
        **{key: trainer[key] for key in ("image", "imagePullPolicy") if trainer.get(key)},
        "env": [{"name": "ALLRANKS_INDEX", "valueFrom": index}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "allranks-helper", "mountPath": HELPER_DIR, "readOnly": True},
            {"name": CHECKPOINT_VOLUME, "mountPath": checkpoint.path, **target},
            *mounts,
        ],
    }
