"""What a TrainingPool puts under a job's pods, and why a job that names one may have to wait.

A pool is read when pods are made, and only then: what runs is left alone, a restart takes the pool as it is by then.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from allranks.api.job import Job
from allranks.api.pool import PoolSpec
from allranks.api.validation import template_problems
from allranks.core import naming
from allranks.core.manifests.strategic_merge import merge, without_nulls
from allranks.core.model import Manifest, Platform
from allranks.frameworks import FRAMEWORKS

RESERVED = frozenset(name for framework in FRAMEWORKS.values() for name in framework.reserved_env)
"""Variables that no pool may set: its jobs may be of any framework."""


def of(job: Job, platform: Platform) -> PoolSpec | None:
    """The pool that lies under the job's pods."""
    return platform.pool if job.spec.pool else None


def unavailable(job: Job, platform: Platform) -> tuple[str, str] | None:
    """(reason, message) of what keeps pods from being made: a pool that is not there, or cannot be used.

    The pool is not the job's fault, so the job waits for it, as it waits for a node. On one machine there are no pools,
    and nothing to wait for.
    """
    name = job.spec.pool
    if name is None or platform.local:
        return None
    if platform.pool is None:
        if platform.pool_refused:
            return "PoolsNotServed", platform.pool_refused
        what = "create it (kubectl get trainingpools lists those that exist), or make a new job that names another"
        return "PoolNotFound", f'TrainingPool "{name}" does not exist: {what}'
    if wrong := problems(platform.pool):
        told = "; ".join(f"{path}: {text}" for path, text in wrong)
        return "InvalidPool", f'TrainingPool "{name}" cannot be used until it is mended: {told}'
    return None


def problems(pool: PoolSpec) -> list[tuple[str, str]]:
    """(field path, message) of what is wrong inside the pool's template, which no schema sees."""
    template: Any = pool.template or {}
    if out := list(template_problems(template, "spec.template")):
        return out
    spec = template.get("spec") or {}
    for variable in _trainer(template).get("env") or ():
        if variable["name"] in RESERVED or variable["name"].startswith("ALLRANKS_"):
            where = "spec.template.spec.containers[trainer].env"
            out.append((where, f"{variable['name']} is set by allranks: remove it"))
    if spec.get("restartPolicy") == "Always":
        where = "spec.template.spec.restartPolicy"
        out.append((where, "must be Never or OnFailure: a rank that ended would run again"))
    return out


def template_of(pool: PoolSpec, user: Manifest, ranked: bool) -> Manifest:
    """The pod template that the pool stands for: its own one, with its fields laid over it.

    GPUs and network devices are for pods that hold ranks: a launcher or a parameter server would keep them idle.
    `user` is the pod template of the job's own that will lie over it. What it says of a resource is all that is said
    of it: limits of one and requests of the other would contradict one another.
    """
    base = without_nulls(pool.template or {})
    fields: Manifest = pool.model_dump(
        by_alias=True,
        exclude_none=True,
        mode="json",
        include={"node_selector", "tolerations", "priority_class_name", "scheduler_name"},
    )
    trainer: Manifest = {"name": naming.TRAINER}
    if pool.env:
        trainer["env"] = [variable.model_dump(by_alias=True, exclude_none=True, mode="json") for variable in pool.env]
    if devices := _devices(pool) if ranked else {}:
        trainer["resources"] = {"limits": devices}
    if "tolerations" in fields:
        fields["tolerations"] = both((base.get("spec") or {}).get("tolerations"), fields["tolerations"])
    merged = merge({**base, "spec": base.get("spec") or {}}, {"spec": {**fields, "containers": [trainer]}})
    named = _named(_trainer(user).get("resources"))
    containers = [_without(c, named) if c["name"] == naming.TRAINER else c for c in merged["spec"]["containers"]]
    return {**merged, "spec": {**merged["spec"], "containers": containers}}


def both(some: list[Any] | None, others: list[Any] | None) -> list[Any]:
    """The items of two lists, each once: a toleration of the pool's does not take the job's away."""
    out = list(some or ())
    return out + [item for item in others or () if item not in out]


def _devices(pool: PoolSpec) -> dict[str, int | str]:
    return {**(pool.rdma or {}), **({pool.gpu.resource: pool.gpu.count} if pool.gpu else {})}


def _trainer(template: Mapping[str, Any]) -> Manifest:
    containers = (template.get("spec") or {}).get("containers") or ()
    return next((container for container in containers if container["name"] == naming.TRAINER), {})


def _named(resources: Mapping[str, Any] | None) -> set[str]:
    amounts = ((resources or {}).get(part) for part in ("limits", "requests"))
    return {name for part in amounts if isinstance(part, Mapping) for name in part}


def _without(container: Manifest, resources: Container[str]) -> Manifest:
    """The container without a word on these resources."""
    if "resources" not in container:
        return container
    kept = {
        part: {name: amount for name, amount in amounts.items() if name not in resources}
        if isinstance(amounts, Mapping)
        else amounts
        for part, amounts in (container["resources"] or {}).items()
    }
    return {**container, "resources": {part: amounts for part, amounts in kept.items() if amounts}}
