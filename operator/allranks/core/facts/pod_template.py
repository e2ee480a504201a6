"""The pod template of each role: the layers of pool, job and role merged, before the framework's wiring is added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.api.job import Job, RoleSpec
from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.core.facts import gpu_count, naming, pod_metadata, pool_template, topology
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.quantity import amount
from allranks.core.facts.strategic_merge import merge, without_nulls
from allranks.core.objects import code, report_env, scheduling
from allranks.frameworks.base import AttemptContext, ElasticBounds

DEFAULT_GRACE_PERIOD_SECONDS = 30
"""Kubernetes' default of terminationGracePeriodSeconds."""

ANY_PLATFORM = Platform(helper_image="")
"""For results that do not depend on the platform."""

_DEFAULTS: Manifest = {
    "restartPolicy": "Never",
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
}
"""The lowest layer: the restricted Pod Security Standard, no service account token, no variables of Services."""


def role_templates(job: Job, platform: Platform) -> dict[str, Manifest]:
    """Role -> its pod template."""
    pool = pool_template.pool_of(job, platform)
    kinds = topology.framework_of(job).roles
    user = platform.policy.default_run_as_user
    defaults = merge(_DEFAULTS, {"securityContext": {"runAsUser": user}}) if user is not None else _DEFAULTS
    roles = job.spec.roles.items()
    return {role: _role_template(job, spec, pool, kinds[role].ranked, defaults) for role, spec in roles}


def attempt_context(
    job: Job, status: Status, platform: Platform, templates: Mapping[str, Manifest] | None = None
) -> AttemptContext:
    """The current attempt, as the framework needs it for the wiring. `templates`: the result of `role_templates`."""
    if templates is None:
        templates = role_templates(job, platform)
    elastic = job.spec.elastic
    return AttemptContext(
        job=job.name,
        namespace=job.namespace,
        attempt=status.attempt,
        replicas=topology.replicas(job, status),
        options=job.spec.options,
        gpus={role: gpus(job, template, platform) for role, template in templates.items()},
        cpus=_amounts(templates, "cpu"),
        memory=_amounts(templates, "memory"),
        own_command=frozenset(role for role, spec in job.spec.roles.items() if spec.command is not None),
        commands={role: _command(template) for role, template in templates.items()},
        variables={role: _variable_names(job, template, platform) for role, template in templates.items()},
        grace_seconds=min(_grace_period(template) for template in templates.values()),
        elastic=ElasticBounds(elastic.min_replicas, elastic.max_replicas, elastic.wait_seconds) if elastic else None,
        local=platform.local,
        endpoints=platform.endpoints,
    )


def longest_grace_period(job: Job) -> int:
    """The longest time, in seconds, that pods of the job may take to terminate."""
    return max(_grace_period(template) for template in role_templates(job, ANY_PLATFORM).values())


def trainer(template: Manifest) -> Manifest:
    """The training container."""
    found: Manifest = next(c for c in template["spec"]["containers"] if c["name"] == naming.TRAINER)
    return found


def gpus(job: Job, template: Manifest, platform: Platform) -> int:
    """GPUs that the training container requests."""
    pool = pool_template.pool_of(job, platform)
    return gpu_count.gpus(trainer(template).get("resources"), pool.gpu.resource if pool and pool.gpu else "")


def _command(template: Manifest) -> tuple[str, ...]:
    found = trainer(template)
    return (*found["command"], *found.get("args", ())) if found.get("command") else ()


def _amounts(templates: Mapping[str, Manifest], resource: str) -> dict[str, int]:
    """Role -> what its training container may use of a resource: its limit, else its request."""
    amounts = {role: amount(trainer(template).get("resources"), resource) for role, template in templates.items()}
    return {role: amount for role, amount in amounts.items() if amount}


def _grace_period(template: Manifest) -> int:
    seconds = template["spec"].get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE_PERIOD_SECONDS if seconds is None else int(seconds)


def _variable_names(job: Job, template: Manifest, platform: Platform) -> tuple[str, ...]:
    own = [
        "ALLRANKS_JOB",
        "ALLRANKS_JOB_UID",
        "ALLRANKS_ATTEMPT",
        *(["ALLRANKS_CHECKPOINT_DIR"] if job.spec.checkpoint else []),
        *([report_env.URL, report_env.TOKEN_FILE] if platform.report_url else []),
    ]
    user = [variable["name"] for variable in trainer(template).get("env", [])]
    return (*own, "PYTHONUNBUFFERED", *(name for name in user if name != "PYTHONUNBUFFERED"))


def _role_template(job: Job, role: RoleSpec, pool: PoolSpec | None, ranked: bool, defaults: Manifest) -> Manifest:
    """One role's pod template. The layers, lowest first: the defaults, the pool, the job's `scheduling`,
    spec.template, the role's template, the fields of the job and of the role."""
    user = without_nulls(merge(job.spec.template or {}, role.template or {}))
    user["spec"] = merge(user.get("spec") or {}, {"containers": [_trainer_from_fields(job, role)]})
    below = pool_template.template_of(pool, user, ranked) if pool else {"spec": {}}
    template = merge(merge(below, {"spec": scheduling.requested(job, user["spec"])}), user)
    template["spec"]["containers"] = [
        code.with_environment(job, container) if container["name"] == naming.TRAINER else container
        for container in template["spec"]["containers"]
    ]
    if tolerations := below["spec"].get("tolerations"):
        template["spec"]["tolerations"] = pool_template.union(tolerations, user["spec"].get("tolerations"))
    return {
        "metadata": pod_metadata.with_defaults(template.get("metadata") or {}),
        "spec": merge(defaults, template["spec"]),
    }


def _trainer_from_fields(job: Job, role: RoleSpec) -> Manifest:
    """The training container as the fields of the job and of the role describe it."""
    container: dict[str, Any] = {"name": naming.TRAINER}
    for source in (job.spec, role):
        own = source.model_dump(
            by_alias=True,
            exclude_none=True,
            mode="json",
            include={"image", "command", "args", "env", "resources", "working_dir"},
        )
        if own.get("command") is not None and "args" not in own:
            container.pop("args", None)  # the job's arguments belong to the job's command
        container = merge(container, own)
    return container
