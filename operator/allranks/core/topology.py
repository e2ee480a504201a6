"""Who is in an attempt: roles, indices and ranks, as the framework orders them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.naming import hostname
from allranks.frameworks import FRAMEWORKS
from allranks.frameworks.base import Elasticity, Framework, Replica


def framework_of(job: Job) -> Framework:
    return FRAMEWORKS[job.spec.framework]


def wanted_sizes(job: Job) -> dict[str, int]:
    """Role -> replicas that the spec asks for, without the roles it asks none of."""
    return {role: spec.replicas for role, spec in job.spec.roles.items() if spec.replicas}


def sizes(job: Job, status: Status) -> dict[str, int]:
    """Role -> replicas of the present attempt: what status persisted when the attempt began."""
    persisted = {role: of.desired for role, of in status.roles.items() if of.desired}
    return persisted or wanted_sizes(job)


def replicas(job: Job, status: Status) -> tuple[Replica, ...]:
    """The replicas of the present attempt. Ranks follow the framework's order of roles, then the index."""
    return _replicas(job.spec.framework, job.name, tuple(sizes(job, status).items()), status.attempt)


@lru_cache(maxsize=64)
def _replicas(framework: str, job: str, count: tuple[tuple[str, int], ...], attempt: int) -> tuple[Replica, ...]:
    """Every look asks several times."""
    out: list[Replica] = []
    rank, of = 0, dict(count)
    for role, kind in FRAMEWORKS[framework].roles.items():
        for index in range(of.get(role, 0)):
            out.append(Replica(role, index, hostname(job, role, index, attempt), rank if kind.ranked else None))
            rank += kind.ranked
    return tuple(out)


def elasticity(job: Job) -> Elasticity | None:
    """What the job's ranks do about another number of workers; None where that number is fixed."""
    return framework_of(job).elastic if job.spec.elastic else None


ELASTIC_ROLE = "worker"
"""The role whose number of pods may change."""


def waiting(job: Job, status: Status) -> tuple[Replica, ...]:
    """The workers that the present attempt would have as well, if there were room for them."""
    of = status.roles.get(ELASTIC_ROLE)
    if of is None or not of.waiting:
        return ()
    numbers = range(of.desired, of.desired + of.waiting)
    return tuple(Replica(ELASTIC_ROLE, i, hostname(job.name, ELASTIC_ROLE, i, status.attempt), None) for i in numbers)


def success_target(job: Job, status: Status) -> list[tuple[str, int | None]]:
    """Whose completion ends the job: (role, index), with index None for all of that role."""
    count = sizes(job, status)
    framework = framework_of(job)
    if job.spec.success == "all":
        return [(role, None) for role in count if role not in framework.services(count)]
    if job.spec.success:
        return [(job.spec.success, None)]
    return [framework.done(count, job.spec.elastic is not None)]


def gpus(resources: Mapping[str, object] | None, resource: str = "") -> int:
    """GPUs that a container's resources ask for, whoever made them (`nvidia.com/gpu`, `amd.com/gpu`, ...).

    `resource` is a further name that stands for GPUs, such as that of a part of one (`nvidia.com/mig-3g.40gb`).
    """
    for part in ("limits", "requests"):
        amounts = (resources or {}).get(part)
        if isinstance(amounts, Mapping):
            found = [
                int(str(amount))
                for name, amount in amounts.items()
                if (name.endswith("/gpu") or name == resource) and str(amount).isdigit()
            ]
            if found:
                return sum(found)
    return 0
