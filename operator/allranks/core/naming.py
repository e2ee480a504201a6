"""Names and labels of everything a job owns: computed, never random, so that creating twice is harmless."""

from __future__ import annotations

JOB_LABEL = "allranks.dev/job-name"
ROLE_LABEL = "allranks.dev/role"
INDEX_LABEL = "allranks.dev/index"
ATTEMPT_LABEL = "allranks.dev/attempt"
RESTART_LABEL = "allranks.dev/restart"
MANAGER_LABEL = "app.kubernetes.io/managed-by"

PLACEHOLDER = "placeholder"
"""Role, in the label, of a pod that only shows whether there is room for one more worker."""

TRAINER = "trainer"
"""Name of the training container."""


def hostname(job: str, role: str, index: int, attempt: int) -> str:
    """The pod's DNS name within the job's Service. With the attempt in it, nobody reaches a dying namesake; without the
    replica's own restarts, the addresses in TF_CONFIG stay when a parameter server is replaced alone."""
    return f"{job}-{role}-{index}-{attempt}"


def pod_name(job: str, role: str, index: int, attempt: int, restart: int = 0) -> str:
    """`{job}-{role}-{index}-{attempt}`, and `-{restart}` when the replica was restarted alone."""
    base = hostname(job, role, index, attempt)
    return f"{base}-{restart}" if restart else base


def replica_key(role: str, index: int) -> str:
    """How a replica is named in status and in front of its log lines."""
    return f"{role}-{index}"
