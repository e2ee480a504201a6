"""The CEL rules of the CRDs. The API server evaluates them at `kubectl apply`, `allranks validate` evaluates the same
expressions. A rule's message is shown to the user.

A field that has no effect yet (`scheduling.queue`) is rejected here, not ignored. Rules that concern
one framework only are in that framework's file.
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
"""Rules of the whole object. A rule can read metadata.name, but its fieldPath cannot refer to it, so the message begins
with the path."""

POOL_NAME = (
    # The API server checks names itself. This rule is for `allranks validate`.
    Rule(
        rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
        message="metadata.name: must be lower-case letters, digits, '-' and '.', begin and end with a letter or digit",
    ),
)

LABEL_EXPRESSION = (
    Rule(
        rule="(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
        message="In and NotIn need values, Exists and DoesNotExist have none",
        field=".values",
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
        message="set exactly one of exitCodes, signals and reasons",
    ),
)

ELASTIC = (
    Rule(rule="self.minReplicas <= self.maxReplicas", message="minReplicas must not be larger than maxReplicas"),
)

CHECKPOINT = (
    Rule(rule="has(self.claim) != has(self.volume)", message="set either claim or volume, not both"),
    Rule(
        rule="!has(self.volume) || !has(self.volume.hostPath)",
        message="hostPath is refused: the next attempt may run on another node; use a claim or a CSI volume",
        field=".volume",
    ),
)

REMOVE_ANY = "remove any of "
"""Stands before a list of variables in a message. `allranks validate` names only those that are set."""

_FIXED_IN_CONTAINER = ("image", "command", "args", "env", "resources", "workingDir", "template")
_FIXED_IN_SPEC = ("pool", "elastic", "success", "managedBy", "checkpoint", "hang", "progress")
"""Fields that cannot be changed in an existing job, besides those that have the rule FIXED themselves. All others can:
suspend, replicas, deadlines, TTL, maxRestarts."""
_NEW_JOB = "cannot be changed in an existing job: create a new job"

FIXED = (Rule(rule="self == oldSelf", message=_NEW_JOB),)
"""For a field that is always present."""


def _fixed(*names: str) -> tuple[Rule, ...]:
    """Rules that belong to the object with these fields, not to the spec.

    The API server evaluates every rule at every update, also of status, and the cost of reading a field grows with the
    number of fields of the object that carries the rule.
    """
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
    """The rules of `spec.roles`. Rules of a role that only one framework has need not test `framework`."""
    names = _roles(frameworks)
    return (
        Rule(
            rule=_any(f"has(self.{role}) && self.{role}.replicas > 0" for role in names),
            message="the job has no pods: set the replicas of at least one role",
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
                message="the roles of an existing job cannot be changed: create a new job",
            )
            for role in names
        ),
    )


def _of_role(role: str, framework: Framework, path: str, field: str) -> Iterable[Rule]:
    """One framework's limits and reserved variables for one of its roles. `path`: the role in CEL."""
    most = framework.roles[role].max_replicas
    if most is not None:
        yield Rule(
            rule=f"{path}.replicas <= {most}",
            message=f"{framework.name} has at most {most} {role}",
            field=f"{field}.replicas",
        )
    yield _reserved(framework, path, f"{field}.env")


def _reserved(framework: Framework, path: str, field: str) -> Rule:
    return Rule(
        rule=f"!has({path}.env) || {path}.env.all(e, !(e.name in {_list(framework.reserved_env)}))",
        message="variables by which the ranks find one another are set by allranks: "
        + REMOVE_ANY
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
            rule="!has(self.success) || self.success in ['All', 'all'] || "
            + _any(f"self.success == '{r}' && has(self.roles.{r}) && self.roles.{r}.replicas > 0" for r in roles),
            message="names a role that this job does not have",
            field=".success",
        ),
        *_elastic(frameworks),
        Rule(
            rule="!has(self.scheduling) || !has(self.scheduling.queue)",
            message="is not supported yet: remove it",
            field=".scheduling.queue",
        ),
        *_fixed(*_FIXED_IN_SPEC, *_FIXED_IN_CONTAINER, *frameworks),
    )


def _of_framework(framework: Framework, frameworks: Mapping[str, Framework]) -> Iterable[Rule]:
    """Rules for one framework: its options, its own rules, and its limits for roles that other frameworks have too."""
    other = f"self.framework != '{framework.name}'"
    yield Rule(
        rule=f"!has(self.{framework.name}) || self.framework == '{framework.name}'",
        message="does not match framework: remove it or change framework",
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
            message=f"is a role of {_joined(owners)} only: remove it or change framework",
            field=f".roles.{role}",
        )


def _elastic(frameworks: Mapping[str, Framework]) -> Iterable[Rule]:
    able = [framework.name for framework in frameworks.values() if framework.elastic]
    yield Rule(
        rule=f"!has(self.elastic) || self.framework in {_list(able)}",
        message=f"is supported by {_joined(able)} only: remove it. A change of replicas then restarts all ranks",
        field=".elastic",
    )
    yield Rule(
        rule="!has(self.elastic) || !has(self.restart) || !has(self.restart.scope) || "
        "!(self.restart.scope in ['Pod', 'pod'])",
        message="cannot be Pod in an elastic job, where the framework decides: remove it or use Group",
        field=".restart.scope",
    )
    yield Rule(
        rule="!has(self.elastic) || (has(self.roles.worker) && "
        "self.elastic.minReplicas <= self.roles.worker.replicas && "
        "self.roles.worker.replicas <= self.elastic.maxReplicas)",
        message="must be between elastic.minReplicas and elastic.maxReplicas",
        field=".roles.worker.replicas",
    )


def pool(frameworks: Mapping[str, Framework]) -> tuple[Rule, ...]:
    """The rules of a TrainingPool's `spec`. A pool may serve jobs of every framework."""
    return tuple(
        Rule(
            rule=f"!has(self.env) || self.env.all(e, !(e.name in {_list(framework.reserved_env)}))",
            message=f"variables by which the ranks of {framework.name} find one another are set by allranks: "
            + REMOVE_ANY
            + ", ".join(sorted(framework.reserved_env)),
            field=".env",
        )
        for framework in frameworks.values()
    )


def _joined(names: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _list(names: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in sorted(names)) + "]"


def _all(terms: Iterable[str]) -> str:
    return "(" + " && ".join(f"({term})" for term in terms) + ")"


def _any(terms: Iterable[str]) -> str:
    return "(" + " || ".join(f"({term})" for term in terms) + ")"
