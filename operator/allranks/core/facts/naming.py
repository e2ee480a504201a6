"""Names, labels and owner references of a job's objects.

Names are computed, so that creating an object twice is harmless."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from allranks.api.job import API_VERSION, KIND, Job

JOB_LABEL = "allranks.dev/job-name"
ROLE_LABEL = "allranks.dev/role"
INDEX_LABEL = "allranks.dev/index"
ATTEMPT_LABEL = "allranks.dev/attempt"
RESTART_LABEL = "allranks.dev/restart"
SWEEP_LABEL = "allranks.dev/sweep"
"""The sweep whose trial the job is."""
MANAGER_LABEL = "app.kubernetes.io/managed-by"

PLACEHOLDER = "placeholder"
"""Value of the role label of a placeholder pod, which tests whether the cluster has capacity for one more worker."""

FETCH, UPLOAD = "data-fetch", "data-upload"
"""Values of the role label of pods that transfer inputs and outputs. No role has a name with a hyphen."""
NO_RANKS = frozenset({PLACEHOLDER, FETCH, UPLOAD})

TRAINER = "trainer"
"""Name of the training container."""


def hash_seed(uid: str) -> str:
    """Return the PYTHONHASHSEED of a job: with it, sets have the same order in all ranks and attempts."""
    return str(zlib.crc32(uid.encode()))


def hostname(job: str, role: str, index: int, attempt: int) -> str:
    """Return the pod's DNS name within the job's Service.

    It contains the attempt, so that no rank reaches a terminating pod of the previous attempt. It does not contain the
    restarts of the replica, so that addresses in TF_CONFIG stay valid when a parameter server is replaced alone.
    """
    return f"{job}-{role}-{index}-{attempt}"


def pod_name(job: str, role: str, index: int, attempt: int, restart: int = 0) -> str:
    """Return `{job}-{role}-{index}-{attempt}`, followed by `-{restart}` if the replica was restarted alone."""
    base = hostname(job, role, index, attempt)
    return f"{base}-{restart}" if restart else base


def name_in_attempt(pod: str, role: str, index: int, attempt: int) -> str:
    """Return the name that a pod would have if it was created for this attempt, which restarted in it. Local runs give
    this name to the log of the attempt."""
    place = f"-{role}-{index}-"
    job, _, numbers = pod.rpartition(place)
    return pod if not job or numbers.partition("-")[0] == str(attempt) else f"{job}{place}{attempt}"


def rank_name(rank: int | None, replica: str, node: str | None = None) -> str:
    """Return the name of a rank for people: `rank 3 (worker-1 on node-7)`; `worker-1` if its number is unknown."""
    where = f"{replica} on {node}" if node else replica
    return where if rank is None else f"rank {rank} ({where})"


def replica_key(role: str, index: int) -> str:
    """Return the name of a replica in the status and before its log lines."""
    return f"{role}-{index}"


FETCH_CONTAINER = "allranks-fetch-"
"""Prefix of init containers that fetch inputs in the pods of ranks; the name of the input follows."""


FUNCTION_ANNOTATION = "allranks.dev/function"
"""On a job that runs a function of Python and sends what it returned."""
OUTCOME_LABEL = "allranks.dev/outcome"
"""`returned` or `raised`."""
RANK_LABEL = "allranks.dev/rank"
POD_ANNOTATION = "allranks.dev/pod"
OUTCOME_CONTENT = "outcome"
"""The key: a line of JSON, then a pickle. See inpod/call_function.py."""


def outcome_value_name(job: str, uid: str, attempt: int, rank: int) -> str:
    return f"{job}-{uid[:8]}-value-{attempt}-{rank}"


def outcome_error_name(job: str, uid: str, attempt: int, restart: int, number: int) -> str:
    return f"{job}-{uid[:8]}-error-{attempt}-{restart}-{number}"


def encode_indices(indices: Iterable[int]) -> str:
    """Return indices of replicas as ranges in ascending order, `0-3,5`; empty for none.

    A job may have ten thousand replicas.
    """
    ranges: list[list[int]] = []
    for index in sorted(set(indices)):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


@lru_cache(maxsize=64)
def decode_indices(text: str) -> frozenset[int]:
    """Return the indices of a text of `encode_indices`."""
    bounds = [part.partition("-") for part in text.split(",") if part]
    return frozenset(i for first, _, last in bounds for i in range(int(first), int(last or first) + 1))


def object_metadata(job: Job, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of an object that the job owns."""
    return owned_metadata((job.namespace, job.name), job.metadata.uid, name, labels)


def owned_metadata(job: tuple[str, str], uid: str, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of an object of a job, which is given by (namespace, name) and UID."""
    namespace, owner_name = job
    return {
        "name": name,
        "namespace": namespace,
        "labels": {**labels, JOB_LABEL: owner_name, MANAGER_LABEL: "allranks"},
        "ownerReferences": [controller_reference(KIND, owner_name, uid)],
    }


def controller_reference(kind: str, name: str, uid: str) -> dict[str, Any]:
    """Return the ownerReference to the job or sweep that controls an object.

    A foreground deletion of the job or sweep waits for the object.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controller_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the ownerReference to the controller of an object; empty without one. Labels prove no ownership."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})
