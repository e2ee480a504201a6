"""The TrainingPool of each role: its pod template, and the reasons why a job that names a pool must wait.

A pool is read only when pods are created: a change applies to the pods of the next attempt.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from allranks.api.job import Job
from allranks.api.pool import LabelExpression, PoolNetwork, PoolSpec
from allranks.api.validation import template_problems
from allranks.core.facts import naming, topology
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.quantity import quantity, quantity_problems
from allranks.core.facts.strategic_merge import merge, without_nulls
from allranks.frameworks import FRAMEWORKS

RESERVED = frozenset(name for framework in FRAMEWORKS.values() for name in framework.reserved_env)
"""Variables that no pool may set: its jobs may be of any framework."""


def pool_of(job: Job, role: str, platform: Platform) -> PoolSpec | None:
    """Return the pool whose template is the lowest layer of the pods of a role; None without one."""
    name = job.spec.pool_of(role)
    return platform.pools.get(name) if name else None


def pools_of(job: Job, platform: Platform) -> list[PoolSpec]:
    """Return the pools of all roles, each once."""
    names = dict.fromkeys(job.spec.pools.values())
    return [platform.pools[name] for name in names if name in platform.pools]


def pool_of_ranks(job: Job, platform: Platform) -> PoolSpec | None:
    """Return the pool of rank 0. It decides what holds for the job as a whole: where inputs are fetched and outputs
    uploaded, and the preflight."""
    return pool_of(job, first_role(job), platform)


def first_role(job: Job) -> str:
    """Return the role of rank 0."""
    roles = [(not kind.ranked, role) for role, kind in topology.framework_of(job).roles.items()]
    return min(((other, role) for other, role in roles if role in job.spec.roles), key=lambda item: item[0])[1]


def missing(job: Job, platform: Platform) -> list[str]:
    """Return the paths of the fields whose TrainingPool the platform does not have."""
    return [path for path, name in job.spec.pools.items() if name not in platform.pools]


def unavailable(job: Job, platform: Platform) -> tuple[str, str] | None:
    """Return (reason, message) if pods cannot be created because a pool does not exist or is invalid, else None.

    The job waits for its pools, as it waits for a node, and does not fail. A local run has no pools to wait for.
    """
    if platform.local:
        return None
    reasons = (_unavailable(name, job, platform) for name in dict.fromkeys(job.spec.pools.values()))
    return next(filter(None, reasons), None)


def _unavailable(name: str, job: Job, platform: Platform) -> tuple[str, str] | None:
    pool = platform.pools.get(name)
    if pool is None:
        if platform.pool_refused:
            return "PoolsNotServed", platform.pool_refused
        cure = "create it (kubectl get trainingpools lists those that exist), or make a new job that names another"
        return "PoolNotFound", f'TrainingPool "{name}" does not exist: {cure}'
    selector = pool.namespace_selector
    if platform.namespace_labels is None and selector and (selector.match_labels or selector.match_expressions):
        problem = "its namespaceSelector needs the operator's setting `namespace_policies`, which is off"
        return "PoolNotAllowed", f'TrainingPool "{name}" cannot be used: {problem}'
    if refused := not_admitted(name, job, platform):
        return "PoolNotAllowed", refused
    if wrong := problems(pool):
        details = "; ".join(f"{path}: {text}" for path, text in wrong)
        return "InvalidPool", f'TrainingPool "{name}" cannot be used until it is corrected: {details}'
    return None


def not_admitted(name: str, job: Job, platform: Platform) -> str:
    """Return the reason why the pool's `namespaceSelector` excludes the job's namespace; empty if it does not.

    The job fails if this is so when it begins. A pool or a label that changes later makes it wait.
    """
    pool, labels = platform.pools.get(name), platform.namespace_labels
    if pool is None or labels is None or admits(pool, labels):
        return ""
    text = f'TrainingPool "{name}" does not admit jobs of namespace {job.namespace} (its namespaceSelector)'
    return f"{text}: use another pool, or ask the platform team for access"


def admits(pool: PoolSpec, labels: Mapping[str, str]) -> bool:
    """Return whether a namespace with these labels may use the pool: without a selector every namespace may."""
    selector = pool.namespace_selector
    if selector is None:
        return True
    if any(labels.get(key) != value for key, value in (selector.match_labels or {}).items()):
        return False
    return all(_holds(expression, labels) for expression in selector.match_expressions or ())


def _holds(expression: LabelExpression, labels: Mapping[str, str]) -> bool:
    present, value, values = expression.key in labels, labels.get(expression.key), expression.values or ()
    if expression.operator == "In":
        return present and value in values
    if expression.operator == "NotIn":
        return bool(values) and value not in values
    return present == (expression.operator == "Exists")


def problems(pool: PoolSpec) -> list[tuple[str, str]]:
    """Return (field path, message) of mistakes that the CRD's schema does not check: inside the template, and
    quantities."""
    template: Any = pool.template or {}
    if out := list(template_problems(template, "spec.template")):
        return out
    if pool.input_cache and pool.input_cache.size_limit is not None:
        try:
            quantity(str(pool.input_cache.size_limit))
        except ValueError as error:
            out.append(("spec.inputCache.sizeLimit", f"{error}: write it as 500Gi or 2T, for example"))
    resources = pool.data.resources if pool.data else None
    out += [(f"spec.data.resources.{path}", text) for path, text in quantity_problems(resources)]
    for variable in _trainer(template).get("env") or ():
        if variable["name"] in RESERVED or variable["name"].startswith("ALLRANKS_"):
            where = "spec.template.spec.containers[trainer].env"
            out.append((where, f"{variable['name']} is set by allranks: remove it"))
    return [*out, *restart_policy_problems(template, "spec.template")]


def restart_policy_problems(template: Mapping[str, Any], where: str) -> list[tuple[str, str]]:
    """Return (field path, message) where a template restarts a rank that has finished. `where` is the template's
    path."""
    text = "must be Never or OnFailure: with Always a finished rank would run again"
    parts = {
        "spec.restartPolicy": template.get("spec") or {},
        "spec.containers[trainer].restartPolicy": _trainer(template),
    }
    return [(f"{where}.{path}", text) for path, part in parts.items() if part.get("restartPolicy") == "Always"]


def template_of(pool: PoolSpec, user: Manifest, devices: bool) -> Manifest:
    """Return the pool's pod template: `spec.template` with the other fields of the pool merged over it.

    `devices`: whether the pods get GPUs and RDMA devices. A launcher or a parameter server would leave those of the
    job's pool idle, so they are for pods that hold ranks, and for roles that name the pool themselves. `user` is the
    job's pod template, which will be merged over this one. The pool's amounts of a resource that `user` mentions are
    left out: the pool's limit could contradict the job's request.
    """
    base = without_nulls(pool.template or {})
    if devices and pool.network:
        base = merge(_network(pool.network), base)
    fields: Manifest = pool.model_dump(
        by_alias=True,
        exclude_none=True,
        mode="json",
        include={"node_selector", "tolerations", "priority_class_name", "scheduler_name"},
    )
    trainer: Manifest = {"name": naming.TRAINER}
    if pool.env:
        trainer["env"] = [variable.model_dump(by_alias=True, exclude_none=True, mode="json") for variable in pool.env]
    limits = {**(pool.rdma or {}), **({pool.gpu.resource: pool.gpu.count} if pool.gpu else {})}
    if devices and limits:
        trainer["resources"] = {"limits": limits}
    if "tolerations" in fields:
        fields["tolerations"] = union((base.get("spec") or {}).get("tolerations"), fields["tolerations"])
    merged = merge({**base, "spec": base.get("spec") or {}}, {"spec": {**fields, "containers": [trainer]}})
    mentioned = _resource_names(_trainer(user).get("resources"))
    containers = [
        _without_resources(c, mentioned) if c["name"] == naming.TRAINER else c for c in merged["spec"]["containers"]
    ]
    return {**merged, "spec": {**merged["spec"], "containers": containers}}


NETWORKS = "k8s.v1.cni.cncf.io/networks"
"""The annotation by which Multus attaches further networks to a pod."""
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")


def _network(network: PoolNetwork) -> Manifest:
    """Return the pod template that the network of a pool stands for."""
    values = dict.fromkeys(_INTERFACES, network.interface)
    values |= {"NCCL_IB_HCA": network.cards}
    values |= {"NCCL_IB_GID_INDEX": None if network.gid_index is None else str(network.gid_index)}
    trainer: Manifest = {"name": naming.TRAINER}
    if env := [{"name": name, "value": value} for name, value in values.items() if value is not None]:
        trainer["env"] = env
    if network.lock_memory:
        trainer["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    spec: Manifest = {"containers": [trainer]}
    if network.host_network:
        spec["hostNetwork"] = True
    metadata = {"annotations": {NETWORKS: ", ".join(network.attachments)}} if network.attachments else {}
    return {"metadata": metadata, "spec": spec}


def union(first: list[Any] | None, second: list[Any] | None) -> list[Any]:
    """Return the items of both lists without duplicates. Tolerations of the pool and of the job add up."""
    out = list(first or ())
    return out + [item for item in second or () if item not in out]


def _trainer(template: Mapping[str, Any]) -> Manifest:
    containers = (template.get("spec") or {}).get("containers") or ()
    return next((container for container in containers if container["name"] == naming.TRAINER), {})


def _resource_names(resources: Mapping[str, Any] | None) -> set[str]:
    amounts = ((resources or {}).get(part) for part in ("limits", "requests"))
    return {name for part in amounts if isinstance(part, Mapping) for name in part}


def _without_resources(container: Manifest, resources: Container[str]) -> Manifest:
    """Return the container without amounts of these resources."""
    if "resources" not in container:
        return container
    kept = {
        part: {name: amount for name, amount in amounts.items() if name not in resources}
        if isinstance(amounts, Mapping)
        else amounts
        for part, amounts in (container["resources"] or {}).items()
    }
    return {**container, "resources": {part: amounts for part, amounts in kept.items() if amounts}}
