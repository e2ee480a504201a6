"""Jobs that hold nodes for a part of their pods while the others find no room. `contention.py` decides about them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Contender:
    """One of these jobs."""

    job: tuple[str, str]
    """(namespace, name)"""
    priority: int
    created_at: datetime
    placed_at: datetime
    """When a pod of it was placed last."""
    timeout_seconds: int
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class Contention:
    """The others of these jobs, as far as this operator observes them."""

    others: tuple[Contender, ...] = ()
    given_up_at: datetime | None = None
    """When one of the jobs that wait for their next attempt gave its pods up last."""
