"""Jobs that cannot start because of their size: what grows with the number of replicas must fit into a variable or a
ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts.attempt import attempt_context
from allranks.core.facts.model import ANY_PLATFORM, Manifest
from allranks.frameworks.base import AttemptContext, Framework, Replica

MAX_VARIABLE_BYTES = 32 * 4096 - 1
"""`NAME=value` of one environment variable: Linux' MAX_ARG_STRLEN without the final NUL."""
MAX_CONFIG_MAP_BYTES = 1024 * 1024
"""All values of a ConfigMap, as the API server counts them."""
LAST_ATTEMPT = Status(attempt=9999)
"""Names contain the attempt: those of the first attempt are up to three characters shorter. A job that fits in this
attempt fits in all."""


def longest_context(job: Job, templates: Mapping[str, Manifest]) -> AttemptContext:
    """The attempt whose names are the longest. `templates`: the result of `pod_template.role_templates`."""
    return attempt_context(job, LAST_ATTEMPT, ANY_PLATFORM, templates)


def outermost(context: AttemptContext) -> list[Replica]:
    """The first and the last replica of each role: the first may have more to do, the last has the longest name."""
    by_role: dict[str, list[Replica]] = {}
    for replica in context.replicas:
        by_role.setdefault(replica.role, [replica, replica])[1] = replica
    return list(dict.fromkeys(replica for pair in by_role.values() for replica in pair))


def problems(framework: Framework, context: AttemptContext) -> list[tuple[str, str]]:
    """(field path, message) of a job with too many replicas."""
    too_large = _too_large(framework, context)
    if not too_large:
        return []
    count = {role: len(context.in_roles(role)) for role in framework.roles}
    largest = max(count, key=lambda role: count[role])
    low, high = 0, count[largest]  # `low` replicas of the largest role fit, `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        fewer = tuple(r for r in context.replicas if r.role != largest or r.index < middle)
        low, high = (low, middle) if _too_large(framework, replace(context, replicas=fewer)) else (middle, high)
    fits = f"at most {low} fit with this name and namespace" if low else "set fewer replicas of the other roles as well"
    return [(f"spec.roles.{largest}.replicas", f"is too large: {too_large}; {fits}")]


def _too_large(framework: Framework, context: AttemptContext) -> str:
    """What has too many bytes, as the beginning of a sentence; empty if everything fits."""
    shared = framework.shared(context)
    wire = framework.wire(context)
    for replica in outermost(context):
        wiring = wire(replica)
        variables = {name: shared.variables[name] for name in wiring.shared_env}
        for name, value in (*wiring.env.items(), *variables.items()):
            inserted = sum(len(found) - len(f"$({key})") for key, found in variables.items() if f"$({key})" in value)
            size = len(f"{name}={value}".encode()) + inserted
            if size > MAX_VARIABLE_BYTES:
                return f"{name} has {size} bytes, and Linux takes {MAX_VARIABLE_BYTES} for one variable"
    stored = sum(len(value.encode()) for part in (shared.variables, shared.files) for value in part.values())
    if stored > MAX_CONFIG_MAP_BYTES:
        return f"the addresses of the pods have {stored} bytes, and a ConfigMap takes {MAX_CONFIG_MAP_BYTES}"
    return ""
