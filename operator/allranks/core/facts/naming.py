"""Names and labels of a job's objects. Names are deterministic, so that creating an object twice is harmless."""

from __future__ import annotations

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


def hostname(job: str, role: str, index: int, attempt: int) -> str:
    """The pod's DNS name within the job's Service.

    It contains the attempt, so that no rank reaches a terminating pod of the previous attempt. It does not contain the
    restarts of the replica, so that addresses in TF_CONFIG stay valid when a parameter server is replaced alone.
    """
    return f"{job}-{role}-{index}-{attempt}"


def pod_name(job: str, role: str, index: int, attempt: int, restart: int = 0) -> str:
    """`{job}-{role}-{index}-{attempt}`, followed by `-{restart}` if the replica was restarted alone."""
    base = hostname(job, role, index, attempt)
    return f"{base}-{restart}" if restart else base


def replica_key(role: str, index: int) -> str:
    """Name of a replica in status and before its log lines."""
    return f"{role}-{index}"


FETCH_CONTAINER = "allranks-fetch-"
"""Prefix of init containers that fetch inputs in the pods of ranks; the name of the input follows."""
