"""Jobs that hold nodes for a part of their pods while the others find no room. `contention` decides about them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from allranks.api.job import Job


@dataclass(frozen=True, slots=True)
class Contender:
    """A job that holds nodes for a part of its pods."""

    job: tuple[str, str]
    """(namespace, name)"""
    priority: int
    created_at: datetime
    placed_at: datetime
    """Time at which a pod of it was placed last."""
    timeout_seconds: int
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class Contention:
    """The other contenders, as far as this operator observes them."""

    others: tuple[Contender, ...] = ()
    given_up_at: datetime | None = None
    """Time at which one of the jobs that wait for their next attempt gave its pods up last."""


DEFAULT_TIMEOUT_SECONDS = 300
"""Default of `scheduling.gangTimeoutSeconds`."""


def timeout_seconds(job: Job) -> int:
    """Return how long the job holds nodes for a part of its pods before it gives way to a rival."""
    timeout = job.spec.scheduling.gang_timeout_seconds
    return DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout
