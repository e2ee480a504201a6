"""The current attempt as its framework needs it, and jobs that are too large for a variable or a ConfigMap."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import compatibility, naming, pod_template, pool_template, rank_reports, topology, tpus
from allranks.core.facts.model import ANY_PLATFORM, Manifest, Platform
from allranks.core.facts.quantity import amount
from allranks.frameworks.base import AttemptContext, ElasticBounds, Framework, Replica
from allranks.frameworks.command_line import starts


def attempt_context(
    job: Job, status: Status, platform: Platform, templates: Mapping[str, Manifest] | None = None
) -> AttemptContext:
    """Return the current attempt, as the framework needs it for the wiring. `templates`: the result of
    `role_templates`."""
    if templates is None:
        templates = pod_template.role_templates(job, platform)
    elastic = job.spec.elastic
    context = AttemptContext(
        job=job.name,
        namespace=job.namespace,
        attempt=status.attempt,
        replicas=topology.replicas(job, status),
        options=job.spec.options,
        gpus={role: pod_template.gpus(job, role, template, platform) for role, template in templates.items()},
        gpus_determined=platform.local or not pool_template.missing(job, platform),
        cpus=_amounts(templates, "cpu"),
        memory=_amounts(templates, "memory"),
        tpus=frozenset(
            role for role, of_role in templates.items() if tpus.has_tpu(pod_template.trainer(of_role).get("resources"))
        ),
        own_command=frozenset(role for role, spec in job.spec.roles.items() if spec.command is not None),
        commands={role: _command(template) for role, template in templates.items()},
        values={role: _values(template) for role, template in templates.items()},
        variables={role: _variable_names(job, status, template, platform) for role, template in templates.items()},
        grace_seconds=min(pod_template.grace_period(template) for template in templates.values()),
        elastic=ElasticBounds(elastic.min_replicas, elastic.max_replicas, elastic.wait_seconds) if elastic else None,
        local=platform.local,
        endpoints=platform.endpoints,
    )
    if not job.spec.compatibility:
        return context
    added = compatibility.names(job, topology.framework_of(job), context)
    variables = {role: (*present, *added[role]) for role, present in context.variables.items()}
    return replace(context, variables=variables)


UNDECLARED_PROCESSES = 8
"""A program may start this many processes in each pod, although its job does not declare them."""
_COUNTS = frozenset({"nproc-per-node", "num-processes", "num-gpus"})
"""Options of launchers with the number of their processes."""


def most_processes(job: Job, status: Status, platform: Platform) -> dict[str, int] | None:
    """Return role -> the number of processes that may report in each of its pods; None if it is not determined.

    The job declares them: by options of the framework or of a launcher, or by the GPUs and CPUs that it requests.
    """
    if pool_template.unavailable(job, platform):
        return None
    context, framework = attempt_context(job, status, platform), topology.framework_of(job)
    return {
        role: max(
            UNDECLARED_PROCESSES,
            framework.processes(context, role),
            context.gpus.get(role, 0),
            context.cpus.get(role, 0),
            *_of_launchers(context.commands.get(role, ())),
        )
        for role in context.gpus
    }


def _of_launchers(command: tuple[str, ...]) -> list[int]:
    options = [option for start in starts(command) for option in start.options if option.name in _COUNTS]
    return [int(option.value) for option in options if option.value.isdecimal() and len(option.value) < 8]


def with_launched_commands(
    framework: Framework, context: AttemptContext, templates: dict[str, Manifest]
) -> tuple[AttemptContext, dict[str, Manifest]]:
    """Return both with the commands as allranks runs them: what starts ranks of another system is replaced."""
    launched = {
        role: framework.launch(context, role).command for role, line in context.commands.items() if starts(line)
    }
    changed = {role: command for role, command in launched.items() if command != context.commands[role]}
    if not changed:
        return context, templates
    out = {
        role: _with_command(template, changed[role]) if role in changed else template
        for role, template in templates.items()
    }
    return replace(context, commands={**context.commands, **changed}), out


def _with_command(template: Manifest, command: tuple[str, ...]) -> Manifest:
    containers = [
        {**{key: value for key, value in container.items() if key != "args"}, "command": list(command)}
        if container["name"] == naming.TRAINER
        else container
        for container in template["spec"]["containers"]
    ]
    return {**template, "spec": {**template["spec"], "containers": containers}}


def _command(template: Manifest) -> tuple[str, ...]:
    container = pod_template.trainer(template)
    return (*container["command"], *container.get("args", ())) if container.get("command") else ()


def _amounts(templates: Mapping[str, Manifest], resource: str) -> dict[str, int]:
    """Return role -> the limit of a resource of its training container, or else its request."""
    amounts = {
        role: amount(pod_template.trainer(template).get("resources"), resource) for role, template in templates.items()
    }
    return {role: amount for role, amount in amounts.items() if amount}


def _values(template: Manifest) -> dict[str, str]:
    variables = pod_template.trainer(template).get("env", [])
    return {item["name"]: str(item["value"]) for item in variables if item.get("value") is not None}


def _variable_names(job: Job, status: Status, template: Manifest, platform: Platform) -> tuple[str, ...]:
    names = [
        "ALLRANKS_JOB",
        "ALLRANKS_JOB_UID",
        "ALLRANKS_ATTEMPT",
        *(["ALLRANKS_CHECKPOINT_DIR"] if job.spec.checkpoint else []),
        *(["ALLRANKS_CHECKPOINT_KEEP"] if job.spec.checkpoint and job.spec.checkpoint.keep else []),
        *(["ALLRANKS_CHECKPOINT_EVERY_SECONDS"] if job.spec.checkpoint and job.spec.checkpoint.every_seconds else []),
        *(["ALLRANKS_RESUME_STEP"] if status.rollback else []),
        *([rank_reports.URL, rank_reports.TOKEN_FILE] if platform.report_url else []),
    ]
    user = [variable["name"] for variable in pod_template.trainer(template).get("env", [])]
    return tuple(dict.fromkeys((*names, "PYTHONUNBUFFERED", "PYTHONHASHSEED", *user)))


@dataclass(frozen=True)
class Ranks:
    """The global ranks of the replicas, computed once for all failures of a reconcile."""

    job: Job
    status: Status
    platform: Platform

    def rank(self, role: str, index: int) -> int | None:
        """Return the global rank if each pod runs one process: then it equals the node rank."""
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


MAX_VARIABLE_BYTES = 32 * 4096 - 1
"""`NAME=value` of one environment variable: Linux' MAX_ARG_STRLEN without the final NUL."""
MAX_CONFIG_MAP_BYTES = 1024 * 1024
"""All values of a ConfigMap, as the API server counts them."""
MAX_ATTEMPT_BYTES = 200 * 10**6
"""Templates of all pods of a job. They are written to etcd, whose quota is 2 GB, and again with each status."""
LAST_ATTEMPT = Status(attempt=9999)
"""Attempt with the longest names, which contain its number. A job that fits in this attempt fits in all."""


def longest_context(job: Job, templates: Mapping[str, Manifest]) -> AttemptContext:
    """Return the context of the attempt with the longest names. `templates`: the result of
    `pod_template.role_templates`."""
    return attempt_context(job, LAST_ATTEMPT, ANY_PLATFORM, templates)


def outermost(context: AttemptContext) -> list[Replica]:
    """Return the first and the last replica of each role: the first may have more to do, the last has the longest
    name."""
    by_role: dict[str, list[Replica]] = {}
    for replica in context.replicas:
        by_role.setdefault(replica.role, [replica, replica])[1] = replica
    return list(dict.fromkeys(replica for pair in by_role.values() for replica in pair))


def size_problems(job: Job, framework: Framework, context: AttemptContext) -> list[tuple[str, str]]:
    """Return (field path, message) of a job with too many replicas."""
    too_large = _too_large(job, framework, context)
    if not too_large:
        return []
    count = {role: len(context.in_roles(role)) for role in framework.roles}
    largest = max(count, key=lambda role: count[role])
    low, high = 0, count[largest]  # `low` replicas of the largest role fit, `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        fewer = tuple(r for r in context.replicas if r.role != largest or r.index < middle)
        low, high = (low, middle) if _too_large(job, framework, replace(context, replicas=fewer)) else (middle, high)
    fits = f"at most {low} fit with this name and namespace" if low else "set fewer replicas of the other roles as well"
    return [(f"spec.roles.{largest}.replicas", f"is too large: {too_large}; {fits}")]


def byte_problems(job: Job, templates: Mapping[str, Manifest]) -> list[tuple[str, str]]:
    """Return (field path, message) of a job whose pods have too many bytes together: each has a copy of a template."""
    size = {role: len(json.dumps(template, separators=(",", ":")).encode()) for role, template in templates.items()}
    count = topology.largest_sizes(job)
    total = sum(size[role] * number for role, number in count.items())
    if total <= MAX_ATTEMPT_BYTES:
        return []
    largest = max(count, key=lambda role: size[role] * count[role])
    rest = MAX_ATTEMPT_BYTES - total + size[largest] * count[largest]
    problem = f"the template of a pod has {size[largest]} bytes, and the templates of all pods {total // 10**6} MB"
    fits = f"at most {rest // size[largest]} replicas fit into {MAX_ATTEMPT_BYTES // 10**6} MB"
    if rest < size[largest]:
        fits = f"set fewer replicas of the other roles as well, to fit into {MAX_ATTEMPT_BYTES // 10**6} MB"
    path = f"spec.roles.{largest}.replicas"
    if job.spec.elastic and largest == topology.ELASTIC_ROLE:
        path = "spec.elastic.maxReplicas"
    return [(path, f"is too large: {problem}; {fits}")]


def _too_large(job: Job, framework: Framework, context: AttemptContext) -> str:
    """Return the name and size of the first value with too many bytes, as a clause; empty if everything fits."""
    shared = compatibility.shared(job, framework, context)
    wire = compatibility.wire(job, framework, context)
    for replica in outermost(context):
        wiring = wire(replica)
        variables = {name: shared.variables[name] for name in wiring.shared_env}
        for name, value in (*wiring.env.items(), *variables.items(), *wiring.defaults.items()):
            inserted = sum(
                len(variable) - len(f"$({key})") for key, variable in variables.items() if f"$({key})" in value
            )
            size = len(f"{name}={value}".encode()) + inserted
            if size > MAX_VARIABLE_BYTES:
                return f"{name} has {size} bytes, and Linux takes {MAX_VARIABLE_BYTES} for one variable"
    stored = sum(len(value.encode()) for part in (shared.variables, shared.files) for value in part.values())
    if stored > MAX_CONFIG_MAP_BYTES:
        return f"the addresses of the pods have {stored} bytes, and a ConfigMap takes {MAX_CONFIG_MAP_BYTES}"
    return ""
