"""The code and the Python packages of a job in its pods: volumes, variables, and what the helper must do first.

A ConfigMap holds the archive. The helper unpacks it into a volume of the pod; a claim or an image is mounted as it is.
A local run unpacks the code, and installs the packages, once for all pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from allranks.api.job import Job
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.pod_template import PACKAGES_DIR
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
