"""The current attempt as its framework sees it: replicas with their ranks, sizes of pods, commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import pod_template, pool_template, rank_reports, topology
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.quantity import amount
from allranks.frameworks.base import AttemptContext, ElasticBounds


def attempt_context(
    job: Job, status: Status, platform: Platform, templates: Mapping[str, Manifest] | None = None
) -> AttemptContext:
    """The current attempt, as the framework needs it for the wiring. `templates`: the result of `role_templates`."""
    if templates is None:
        templates = pod_template.role_templates(job, platform)
    elastic = job.spec.elastic
    return AttemptContext(
        job=job.name,
        namespace=job.namespace,
        attempt=status.attempt,
        replicas=topology.replicas(job, status),
        options=job.spec.options,
        gpus={role: pod_template.gpus(job, template, platform) for role, template in templates.items()},
        cpus=_amounts(templates, "cpu"),
        memory=_amounts(templates, "memory"),
        own_command=frozenset(role for role, spec in job.spec.roles.items() if spec.command is not None),
        commands={role: _command(template) for role, template in templates.items()},
        variables={role: _variable_names(job, template, platform) for role, template in templates.items()},
        grace_seconds=min(pod_template.grace_period(template) for template in templates.values()),
        elastic=ElasticBounds(elastic.min_replicas, elastic.max_replicas, elastic.wait_seconds) if elastic else None,
        local=platform.local,
        endpoints=platform.endpoints,
    )


def _command(template: Manifest) -> tuple[str, ...]:
    found = pod_template.trainer(template)
    return (*found["command"], *found.get("args", ())) if found.get("command") else ()


def _amounts(templates: Mapping[str, Manifest], resource: str) -> dict[str, int]:
    """Role -> what its training container may use of a resource: its limit, else its request."""
    amounts = {
        role: amount(pod_template.trainer(template).get("resources"), resource) for role, template in templates.items()
    }
    return {role: amount for role, amount in amounts.items() if amount}


def _variable_names(job: Job, template: Manifest, platform: Platform) -> tuple[str, ...]:
    own = [
        "ALLRANKS_JOB",
        "ALLRANKS_JOB_UID",
        "ALLRANKS_ATTEMPT",
        *(["ALLRANKS_CHECKPOINT_DIR"] if job.spec.checkpoint else []),
        *([rank_reports.URL, rank_reports.TOKEN_FILE] if platform.report_url else []),
    ]
    user = [variable["name"] for variable in pod_template.trainer(template).get("env", [])]
    return (*own, "PYTHONUNBUFFERED", *(name for name in user if name != "PYTHONUNBUFFERED"))


@dataclass(frozen=True)
class Ranks:
    """The global ranks of the replicas, computed once for all failures of a look."""

    job: Job
    status: Status
    platform: Platform

    def of(self, role: str, index: int) -> int | None:
        """The global rank if each pod runs one process: then it equals the node rank."""
        return self._by_replica.get((role, index))

    @cached_property
    def _by_replica(self) -> Mapping[tuple[str, int], int | None]:
        if pool_template.unavailable(self.job, self.platform):
            return {}  # without its pool, the number of GPUs and so of processes per pod is undefined
        context = attempt_context(self.job, self.status, self.platform)
        framework = topology.framework_of(self.job)
        roles = {replica.role for replica in context.replicas if replica.node_rank is not None}
        if any(framework.processes(context, role) != 1 for role in roles):
            return {}
        return {(replica.role, replica.index): replica.node_rank for replica in context.replicas}
