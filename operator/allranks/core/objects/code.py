"""What a pod gets before its program starts: the job's code, Python packages, and checkpoints of another job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import naming, resume_source
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.pod_template import PACKAGES_DIR
from allranks.core.facts.resume_source import CHECKPOINT_VOLUME
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


def volumes(job: Job) -> Iterator[tuple[str, str, Manifest, dict[str, Any]]]:
    """(name, mount path, source, further fields of the mount) of the training container's volumes."""
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


def helper_volumes(job: Job) -> Iterator[tuple[str, Manifest]]:
    """(name, source) of volumes that only init containers mount."""
    if _archived(job) and job.spec.code:
        yield ARCHIVE_VOLUME, {"configMap": {"name": job.spec.code.config_map}}


def unpacking(job: Job) -> tuple[list[str], list[Manifest]]:
    """(further arguments, further mounts) of the helper."""
    code = job.spec.code
    if code is None or not code.config_map or not code.sha256:
        return [], []
    arguments = ["--code", f"{ARCHIVE_DIR}/{ARCHIVE}", "--sha256", code.sha256, "--to", code.path]
    archive = {"name": ARCHIVE_VOLUME, "mountPath": ARCHIVE_DIR, "readOnly": True}
    return arguments, [archive, {"name": VOLUME, "mountPath": code.path}]


def packages_container(job: Job, trainer: Manifest, security: Manifest, resources: Manifest) -> Manifest:
    """The init container that installs the packages: in the image of the training container, for its Python, with its
    variables, such as PIP_INDEX_URL, and its volumes, such as a cache."""
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
    """The Python of the program: that of its command, if it names one."""
    first = str((trainer.get("command") or ["python3"])[0])
    return first if re.fullmatch(r"python[0-9.]*", first.rpartition("/")[2]) else "python3"


def problems(job: Job, trainer: Manifest) -> Iterator[str]:
    """Mount paths that the code shares with another volume."""
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


RESUME_CONTAINER = "allranks-resume"
SOURCE_DIR = "/allranks-resume-from"
_RESUME_VOLUME = "allranks-resume"


def resume_needed(job: Job, status: Status, platform: Platform) -> bool:
    """Once all pods have run, the copy is there. A local run copies before it starts pods."""
    return bool(job.spec.resume_from and status.resumed_from) and not platform.local and not status.ever_ran


def resume_volumes(status: Status) -> list[Manifest]:
    """The volumes that only this init container mounts."""
    claim, _ = resume_source.parts(status.resumed_from or "")
    return [{"name": _RESUME_VOLUME, "persistentVolumeClaim": {"claimName": claim}}] if claim else []


def resume_container(
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
        "name": RESUME_CONTAINER,
        **{key: trainer[key] for key in ("image", "imagePullPolicy") if trainer.get(key)},
        "command": [python(trainer), f"{HELPER_DIR}/copy_checkpoint.py", *arguments],
        "env": [{"name": "ALLRANKS_INDEX", "valueFrom": index}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "allranks-helper", "mountPath": HELPER_DIR, "readOnly": True},
            {"name": CHECKPOINT_VOLUME, "mountPath": own.path, **target},
            {
                "name": _RESUME_VOLUME if claim else CHECKPOINT_VOLUME,
                "mountPath": SOURCE_DIR,
                "readOnly": True,
                **source,
            },
        ],
        **({"resources": resources} if resources else {}),
        "securityContext": security,
    }
