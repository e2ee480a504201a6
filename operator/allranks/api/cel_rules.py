"""The CEL rules of the CRD, each in one place. The API server evaluates them at `kubectl apply`, `allranks validate`
evaluates the very same expressions. A rule's message is what the user reads.

A field whose behaviour is not built yet is refused here (`NOT_YET`), never ignored. Rules of one framework alone are in
that framework's file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from allranks.fields import Rule
from allranks.frameworks.base import Framework

NAME = (
    Rule(
        rule="size(self.metadata.name) <= 42",
        message="metadata.name: at most 42 characters: pods are named {name}-{role}-{index}-{attempt}-{restart}, "
        "and a host name has at most 63",
    ),
    Rule(
        rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message="metadata.name: must be lower-case letters, digits and '-', begin with a letter and end with "
        "a letter or digit: it becomes a DNS name",
    ),
)
"""Rules of the object as a whole. The API server lets CEL see of metadata the name, and no rule point at it by
fieldPath: the message begins with the path instead."""

POOL_NAME = (
    # The API server checks names itself; `allranks validate` would not.
    Rule(
        rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
        message="metadata.name: must be lower-case letters, digits, '-' and '.', begin and end with a letter or digit",
    ),
)

ENVIRONMENT = (
    Rule(
        rule="!has(self.env) || self.env.all(e, !e.name.startsWith('ALLRANKS_'))",
        message="variables that begin with ALLRANKS_ are set by allranks: choose another name",
        field=".env",
    ),
    Rule(
        rule="!has(self.env) || self.env.all(e, !(has(e.value) && has(e.valueFrom)))",
        message="a variable has either value or valueFrom, not both",
        field=".env",
    ),
)

RESTART_RULE = (
    Rule(
        rule="[has(self.exitCodes), has(self.signals), has(self.reasons)].filter(x, x).size() == 1",
        message="give exactly one of exitCodes, signals and reasons",
    ),
)

ELASTIC = (
    Rule(rule="self.minReplicas <= self.maxReplicas", message="minReplicas must not be larger than maxReplicas"),
)

CHECKPOINT = (
    Rule(rule="has(self.claim) != has(self.volume)", message="give either claim or volume, and not both"),
    Rule(
        rule="!has(self.volume) || !has(self.volume.hostPath)",
        message="hostPath is refused: the next attempt may run on another node; use a claim or a CSI volume",
        field=".volume",
    ),
)

_FIXED_IN_CONTAINER = ("image", "command", "args", "env", "resources", "workingDir", "template")
_FIXED_IN_SPEC = ("pool", "elastic", "success", "managedBy", "checkpoint", "hang", "progress")
"""What may not change while a job lives, beside the fields that say so themselves (FIXED); the rest (suspend, replicas,
deadlines, TTL, maxRestarts) may."""
_NEW_JOB = "cannot change while the job lives: make a new job"

FIXED = (Rule(rule="self == oldSelf", message=_NEW_JOB),)
"""Of a field that is always there."""


def _fixed(*names: str) -> tuple[Rule, ...]:
    """Of the object that has these fields, not of the spec: the API server evaluates every rule at every change of the
    object, of its status too, and each field that a rule looks at costs it as much as the holder has fields."""
    return tuple(
        Rule(
            rule=f"has(self.{name}) ? has(oldSelf.{name}) && self.{name} == oldSelf.{name} : !has(oldSelf.{name})",
            message=_NEW_JOB,
            field=f".{name}",
        )
        for name in names
    )


RESTART = _fixed("backoffSeconds", "scope", "rules")
ROLE = _fixed(*_FIXED_IN_CONTAINER)


def roles(frameworks: Mapping[str, Framework]) -> tuple[Rule, ...]:
    """The rules of `spec.roles`. What only one framework has needs no look at `framework`."""
    names = _roles(frameworks)
    return (
        Rule(
            rule=_any(f"has(self.{role}) && self.{role}.replicas > 0" for role in names),
            message="the job has no pods: give at least one role replicas",
        ),
        *(
            rule.model_copy(update={"rule": f"!has(self.{role}) || {rule.rule}"})
            for role in names
            if len(owners := _owners(role, frameworks)) == 1
            for rule in _of_role(role, owners[0], f"self.{role}", f".{role}")
        ),
        *(
            Rule(
                rule=f"has(self.{role}) == has(oldSelf.{role})",
                message="the roles of a job cannot change: make a new job",
            )
            for role in names
        ),
    )


def _of_role(role: str, framework: Framework, there: str, field: str) -> Iterable[Rule]:
    """One framework's limits and reserved variables in a role of it that is `there`."""
    most = framework.roles[role].max_replicas
    if most is not None:
        yield Rule(
            rule=f"{there}.replicas <= {most}",
            message=f"{framework.name} has at most {most} {role}",
            field=f"{field}.replicas",
        )
    yield _reserved(framework, there, f"{field}.env")


def _reserved(framework: Framework, there: str, field: str) -> Rule:
    return Rule(
        rule=f"!has({there}.env) || {there}.env.all(e, !(e.name in {_list(framework.reserved_env)}))",
        message="variables by which the ranks find one another are set by allranks: remove any of "
        + ", ".join(sorted(framework.reserved_env)),
        field=field,
    )


def _roles(frameworks: Mapping[str, Framework]) -> list[str]:
    return sorted({role for framework in frameworks.values() for role in framework.roles})


def _owners(role: str, frameworks: Mapping[str, Framework]) -> list[Framework]:
    return [framework for framework in frameworks.values() if role in framework.roles]


def spec(frameworks: Mapping[str, Framework]) -> tuple[Rule, ...]:
    """The rules of `spec`: `self` is the spec."""
    roles = _roles(frameworks)
    return (
        *(rule for framework in frameworks.values() for rule in _of_framework(framework, frameworks)),
        *(rule for role in roles for rule in _not_of_every(role, frameworks)),
        Rule(
            rule="has(self.image) || has(self.template) || "
            + _all(f"!has(self.roles.{r}) || has(self.roles.{r}.image) || has(self.roles.{r}.template)" for r in roles),
            message="an image is needed, here or in every role",
            field=".image",
        ),
        Rule(
            rule="!has(self.success) || self.success == 'all' || "
            + _any(f"self.success == '{r}' && has(self.roles.{r}) && self.roles.{r}.replicas > 0" for r in roles),
            message="names a role that this job does not have",
            field=".success",
        ),
        *_elastic(frameworks),
        Rule(
            rule="!has(self.scheduling) || !has(self.scheduling.gang) || self.scheduling.gang in ['auto', 'none']",
            message="backends for gangs are served by a later version: use auto or none",
            field=".scheduling.gang",
        ),
        Rule(
            rule="!has(self.scheduling) || !has(self.scheduling.queue)",
            message="is served by a later version: leave it out",
            field=".scheduling.queue",
        ),
        *_fixed(*_FIXED_IN_SPEC, *_FIXED_IN_CONTAINER, *frameworks),
    )


def _of_framework(framework: Framework, frameworks: Mapping[str, Framework]) -> Iterable[Rule]:
    """One framework's options, and what it says of roles that others have too, from what its file declares."""
    other = f"self.framework != '{framework.name}'"
    yield Rule(
        rule=f"!has(self.{framework.name}) || self.framework == '{framework.name}'",
        message="only the block that matches framework is allowed: remove it or change framework",
        field=f".{framework.name}",
    )
    everywhere = _reserved(framework, "self", ".env")
    shared = [
        rule.model_copy(update={"rule": f"!has(self.roles.{role}) || {rule.rule}"})
        for role in framework.roles
        if len(_owners(role, frameworks)) > 1
        for rule in _of_role(role, framework, f"self.roles.{role}", f".roles.{role}")
    ]
    for rule in (everywhere, *shared, *framework.rules):
        yield rule.model_copy(update={"rule": f"{other} || ({rule.rule})"})


def _not_of_every(role: str, frameworks: Mapping[str, Framework]) -> Iterable[Rule]:
    owners = [framework.name for framework in _owners(role, frameworks)]
    if len(owners) < len(frameworks):
        yield Rule(
            rule=f"!has(self.roles.{role}) || self.framework in {_list(owners)}",
            message=f"is a role of {' and '.join(owners)} alone: remove it or change framework",
            field=f".roles.{role}",
        )


def _elastic(frameworks: Mapping[str, Framework]) -> Iterable[Rule]:
    able = [framework.name for framework in frameworks.values() if framework.elastic]
    yield Rule(
        rule=f"!has(self.elastic) || self.framework in {_list(able)}",
        message=f"is for {' and '.join(able)}: ranks of the others know one another from the start. Leave it out; a "
        "changed number of replicas restarts them",
        field=".elastic",
    )
    yield Rule(
        rule="!has(self.elastic) || !has(self.restart) || !has(self.restart.scope) || self.restart.scope != 'pod'",
        message="an elastic job's ranks restart as its framework needs it: leave it out, or say group",
        field=".restart.scope",
    )
    yield Rule(
        rule="!has(self.elastic) || (has(self.roles.worker) && "
        "self.elastic.minReplicas <= self.roles.worker.replicas && "
        "self.roles.worker.replicas <= self.elastic.maxReplicas)",
        message="must be within elastic.minReplicas and elastic.maxReplicas",
        field=".roles.worker.replicas",
    )


def pool(frameworks: Mapping[str, Framework]) -> tuple[Rule, ...]:
    """The rules of a TrainingPool's `spec`, whose variables reach jobs of every framework."""
    return tuple(
        Rule(
            rule=f"!has(self.env) || self.env.all(e, !(e.name in {_list(framework.reserved_env)}))",
            message=f"variables by which the ranks of {framework.name} find one another are set by allranks: remove "
            "any of " + ", ".join(sorted(framework.reserved_env)),
            field=".env",
        )
        for framework in frameworks.values()
    )


def _list(names: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in sorted(names)) + "]"


def _all(terms: Iterable[str]) -> str:
    return "(" + " && ".join(f"({term})" for term in terms) + ")"


def _any(terms: Iterable[str]) -> str:
    return "(" + " || ".join(f"({term})" for term in terms) + ")"
