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

NOT_YET: Mapping[str, str] = {
    "elastic": "is served by a later version: leave it out",
    "hang": "is served by a later version: leave it out, or use activeDeadlineSeconds",
    "progress": "is served by a later version: leave it out",
}
"""Field of spec -> why it is refused."""

_FIXED_IN_CONTAINER = ("image", "command", "args", "env", "resources", "workingDir", "template")
_FIXED_IN_RESTART = ("backoffSeconds", "scope", "rules")
_FIXED_IN_SPEC = (
    *("framework", "pool", "restart", "elastic", "success", "managedBy", "cleanPodPolicy"),
    *("startupDeadlineSeconds", "scheduling", "checkpoint", "hang", "progress"),
)
"""What may not change while a job lives; the rest (suspend, replicas, deadlines, TTL, maxRestarts) may."""


def spec(frameworks: Mapping[str, Framework]) -> tuple[Rule, ...]:
    """The rules of `spec`: `self` is the spec."""
    roles = sorted({role for framework in frameworks.values() for role in framework.roles})
    return (
        *(rule for framework in frameworks.values() for rule in _of_framework(framework, frameworks, roles)),
        Rule(
            rule="has(self.image) || has(self.template) || "
            + _all(f"!has(self.roles.{r}) || has(self.roles.{r}.image) || has(self.roles.{r}.template)" for r in roles),
            message="an image is needed, here or in every role",
            field=".image",
        ),
        Rule(
            rule=_any(f"has(self.roles.{role}) && self.roles.{role}.replicas > 0" for role in roles),
            message="the job has no pods: give at least one role replicas",
            field=".roles",
        ),
        Rule(
            rule="!has(self.success) || self.success == 'all' || "
            + _any(f"self.success == '{r}' && has(self.roles.{r}) && self.roles.{r}.replicas > 0" for r in roles),
            message="names a role that this job does not have",
            field=".success",
        ),
        *(Rule(rule=f"!has(self.{name})", message=message, field=f".{name}") for name, message in NOT_YET.items()),
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
        *_immutable(frameworks, roles),
    )


def _of_framework(framework: Framework, frameworks: Mapping[str, Framework], roles: list[str]) -> Iterable[Rule]:
    """One framework's options, roles, limits and reserved variables, from what its file declares."""
    this = f"self.framework == '{framework.name}'"
    yield Rule(
        rule=f"{this} || !has(self.{framework.name})",
        message="only the block that matches framework is allowed: remove it or change framework",
        field=f".{framework.name}",
    )
    for role in roles:
        if role not in framework.roles:
            yield Rule(
                rule=f"!({this}) || !has(self.roles.{role})",
                message=f"is no role of {framework.name}, which has {', '.join(framework.roles)}",
                field=f".roles.{role}",
            )
    for role, kind in framework.roles.items():
        if kind.max_replicas is not None:
            yield Rule(
                rule=f"!({this}) || !has(self.roles.{role}) || self.roles.{role}.replicas <= {kind.max_replicas}",
                message=f"{framework.name} has at most {kind.max_replicas} {role}",
                field=f".roles.{role}.replicas",
            )
    reserved = _list(framework.reserved_env)
    for place in ("", *(f".roles.{role}" for role in framework.roles)):
        there = f"has(self{place}) && has(self{place}.env)" if place else "has(self.env)"
        yield Rule(
            rule=f"!({this}) || !({there}) || self{place}.env.all(e, !(e.name in {reserved}))",
            message="variables by which the ranks find one another are set by allranks: remove any of "
            + ", ".join(sorted(framework.reserved_env)),
            field=f"{place}.env",
        )
    for rule in framework.rules:
        yield rule.model_copy(update={"rule": f"!({this}) || ({rule.rule})"})


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


def _immutable(frameworks: Mapping[str, Framework], roles: list[str]) -> Iterable[Rule]:
    for name in (*_FIXED_IN_SPEC, *_FIXED_IN_CONTAINER, *frameworks):
        if name != "restart":
            yield _fixed("", name)
    for name in _FIXED_IN_RESTART:
        yield _fixed(".restart", name)
    for role in roles:
        yield Rule(
            rule=f"has(self.roles.{role}) == has(oldSelf.roles.{role})",
            message="the roles of a job cannot change: make a new job",
            field=".roles",
        )
        for name in _FIXED_IN_CONTAINER:
            yield _fixed(f".roles.{role}", name)


def _fixed(place: str, name: str) -> Rule:
    both = f"has(self{place}) && has(oldSelf{place})" if place else "true"
    new, old = f"self{place}.{name}", f"oldSelf{place}.{name}"
    return Rule(
        rule=f"!({both}) || (has({new}) == has({old}) && (!has({new}) || {new} == {old}))",
        message="cannot change while the job lives: make a new job",
        field=f"{place}.{name}",
    )


def _list(names: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in sorted(names)) + "]"


def _all(terms: Iterable[str]) -> str:
    return "(" + " && ".join(f"({term})" for term in terms) + ")"


def _any(terms: Iterable[str]) -> str:
    return "(" + " || ".join(f"({term})" for term in terms) + ")"
