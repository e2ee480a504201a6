"""The replicas of an attempt: roles, indices and ranks, in the framework's order."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts.naming import hostname, replica_key
from allranks.frameworks import FRAMEWORKS
from allranks.frameworks.base import Elasticity, Framework, Replica, Scope

CLEANUP_GRACE = timedelta(seconds=10)
"""Time for peers to end by themselves after success: rank 0 often finishes a moment before the others."""


def framework_of(job: Job) -> Framework:
    return FRAMEWORKS[job.spec.framework].for_job(job.spec.options, tuple(job.spec.roles))


def wanted_sizes(job: Job) -> dict[str, int]:
    """Return role -> number of replicas in the spec, without roles that have none."""
    return {role: spec.replicas for role, spec in job.spec.roles.items() if spec.replicas}


def largest_sizes(job: Job) -> dict[str, int]:
    """Return role -> the largest number of replicas that an attempt may have."""
    elastic = job.spec.elastic
    return wanted_sizes(job) | ({ELASTIC_ROLE: elastic.max_replicas} if elastic else {})


def sizes(job: Job, status: Status) -> dict[str, int]:
    """Return role -> number of replicas in the current attempt, as persisted when the attempt started."""
    persisted = {role: state.desired for role, state in status.roles.items() if state.desired}
    return persisted or wanted_sizes(job)


def replicas(job: Job, status: Status) -> tuple[Replica, ...]:
    """Return the replicas of the current attempt. Ranks follow the framework's order of roles, then the index."""
    kinds = tuple((role, kind.ranked) for role, kind in framework_of(job).roles.items())
    return _replicas(kinds, job.name, tuple(sizes(job, status).items()), status.pod_attempt)


@lru_cache(maxsize=8)
def _replicas(
    kinds: tuple[tuple[str, bool], ...], job: str, role_sizes: tuple[tuple[str, int], ...], attempt: int
) -> tuple[Replica, ...]:
    # Cached because each reconcile needs the replicas several times. 10,000 replicas have 2 MB: keep few.
    out: list[Replica] = []
    rank, numbers = 0, dict(role_sizes)
    for role, ranked in kinds:
        for index in range(numbers.get(role, 0)):
            out.append(Replica(role, index, hostname(job, role, index, attempt), rank if ranked else None))
            rank += ranked
    return tuple(out)


def scope(job: Job, role: str, index: int) -> Scope:
    """Return whether a failure of this replica restarts the whole group or only its pod."""
    framework, elastic = framework_of(job), job.spec.elastic is not None
    return job.spec.restart.scope or framework.scope(role, index, wanted_sizes(job), elastic)


def is_group(job: Job, status: Status) -> bool:
    """Return whether at least two replicas of the attempt restart together."""
    group = (r for r in replicas(job, status) if scope(job, r.role, r.index) == "Group")
    return next(group, None) is not None and next(group, None) is not None


def elasticity(job: Job) -> Elasticity | None:
    """Return how the job changes its number of workers; None if that number is fixed."""
    return framework_of(job).elastic if job.spec.elastic else None


ELASTIC_ROLE = "worker"
"""The role whose number of replicas may change."""


def waiting(job: Job, status: Status) -> tuple[Replica, ...]:
    """Return the workers beyond the current size that the attempt could use if the cluster had capacity for them."""
    state = status.roles.get(ELASTIC_ROLE)
    if state is None or not state.waiting:
        return ()
    indices = range(state.desired, state.desired + state.waiting)
    return tuple(
        Replica(ELASTIC_ROLE, i, hostname(job.name, ELASTIC_ROLE, i, status.pod_attempt), None) for i in indices
    )


def success_target(job: Job, status: Status) -> list[tuple[str, int | None]]:
    """Return the replicas whose completion completes the job: (role, index), with index None for the whole role."""
    count = sizes(job, status)
    framework = framework_of(job)
    if job.spec.success == "All":
        return [(role, None) for role in count if role not in framework.long_running_roles(count)]
    if job.spec.success:
        return [(job.spec.success, None)]
    return [framework.success_target(count, job.spec.elastic is not None)]


def target_places(job: Job, status: Status) -> list[tuple[str, int]]:
    """Return the replicas of `success_target`, one by one."""
    count = sizes(job, status)
    target = success_target(job, status)
    return [(role, i) for role, index in target for i in ([index] if index is not None else range(count.get(role, 0)))]


def is_last_of_target(job: Job, status: Status, role: str, index: int) -> bool:
    """Return whether the job can succeed only through this replica: the failures of all others that decide were
    ignored."""
    count = sizes(job, status)
    size = sum(1 if index is not None else count.get(role, 0) for role, index in success_target(job, status))
    if len(status.ignored) < size - 1:
        return False  # most jobs: ten thousand failures may be evaluated one by one
    ignored = set(status.ignored)
    left = [place for place in target_places(job, status) if replica_key(*place) not in ignored]
    return left == [(role, index)]
