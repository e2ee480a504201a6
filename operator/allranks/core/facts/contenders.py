"""Jobs that hold nodes for a part of their pods while the others find no room. `contention` decides about them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from allranks.api.job import Job


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """What a pod demands of a node, as far as its template says it. The operator knows no nodes."""

    devices: frozenset[str] = frozenset()
    """Extended resources; empty for a pod that needs CPU and memory only."""
    labels: tuple[tuple[str, frozenset[str]], ...] = ()
    """Label of the node -> its allowed values."""

    def meets(self, other: NodeDemand) -> bool:
        """Return whether there may be a node that both want, for the same resource."""
        same = self.devices & other.devices or not (self.devices or other.devices)
        labels = dict(other.labels)
        return bool(same) and all(values & labels.get(key, values) for key, values in self.labels)


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
    pools: frozenset[str | None] = frozenset({None})
    """The TrainingPools of its roles; None for roles without."""
    held: frozenset[NodeDemand] = frozenset({NodeDemand()})
    """Demands of its pods that have nodes."""
    lacking: frozenset[NodeDemand] = frozenset({NodeDemand()})
    """Demands of its pods that find no room."""
    by_quota: bool = False
    """A quota of its namespace admits only a part of its pods."""
    placeable: bool = True
    """Each of its pods may have room when pods of other jobs are gone."""
    progress_at: datetime | None = None
    """Time at which it got a node that it did not have before; None: `placed_at`."""
    gave_up_at: tuple[datetime, ...] = ()
    """Times at which it gave its pods up."""


@dataclass(frozen=True, slots=True)
class Contention:
    """The other contenders that may use the same nodes, as far as this operator observes them."""

    others: tuple[Contender, ...] = ()
    given_up_at: datetime | None = None
    """Time at which one of the jobs that wait for their next attempt gave its pods up last."""


Place = tuple[str, frozenset[str | None]]
"""Namespace and TrainingPools of a job."""


def near(first: Place, second: Place) -> bool:
    """Return whether jobs may be rivals: roles of both have the same pool, or a role has none and they share a
    namespace."""
    (namespace, pools), (other_namespace, other_pools) = first, second
    if (pools & other_pools) - {None}:
        return True
    return None in pools | other_pools and namespace == other_namespace


DEFAULT_TIMEOUT_SECONDS = 300
"""Default of `scheduling.gangTimeoutSeconds`."""


def timeout_seconds(job: Job) -> int:
    """Return how long the job holds nodes for a part of its pods before it gives way to a rival."""
    timeout = job.spec.scheduling.gang_timeout_seconds
    return DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout
