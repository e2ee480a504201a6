"""The CEL rules of the CRDs. The API server evaluates them at `kubectl apply`, `allranks validate` evaluates the same
expressions. A rule's message is shown to the user.

Rules that concern one framework only are in that framework's file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from allranks.fields import Rule
from allranks.frameworks.base import Framework
from allranks.text import joined

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

ROLE_NAMES = (
    # The roles of all other frameworks have fixed names. No '-', because pod 0 of role b-1 would have a name of role b.
    Rule(
        rule="self.spec.roles.all(r, r.matches('^[a-z][a-z0-9]*$') && !(r in ['all', 'placeholder']))",
        message="spec.roles: names of roles must be lower-case letters and digits and begin with a letter; all and "
        "placeholder are reserved",
    ),
    Rule(
        rule="self.spec.roles.all(r, size(self.metadata.name) + size(r) <= 52)",
        message="spec.roles: the names of the job and of a role have at most 52 characters together: pods are named "
        "{name}-{role}-{index}-{attempt}, and a host name has at most 63",
    ),
)
"""Rules of the whole object, as NAME."""

POOL_NAME = (
    # The API server checks names itself. This rule is for `allranks validate`.
    Rule(
        rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
        message="metadata.name: must be lower-case letters, digits, '-' and '.', begin and end with a letter or digit",
    ),
)

SWEEP_NAME = (
    Rule(
        rule="size(self.metadata.name) <= 34",
        message="metadata.name: at most 34 characters: the jobs are named {name}-{trial}-r{run}, and the name of a job "
        "has at most 42",
    ),
    NAME[1],
)
"""Rules of the whole object, as NAME."""

RANGE = (Rule(rule="self.min < self.max", message="must be larger than min", field=".max"),)
_NEW_SWEEP = "cannot be changed in an existing sweep: create a new sweep"
SWEEP = (
    Rule(
        rule="self.algorithm == 'Grid' || has(self.trials)",
        message="is required for this algorithm: how many trials to run",
        field=".trials",
    ),
    Rule(
        rule="has(self.objective) || (self.algorithm != 'TPE' && !has(self.stop))",
        message="is required for algorithm TPE and for stop, which compare trials: for example "
        "{metric: loss, goal: Minimize}",
        field=".objective",
    ),
    # Rules of the field itself do not see that it comes or goes.
    Rule(rule="has(self.objective) == has(oldSelf.objective)", message=_NEW_SWEEP, field=".objective"),
)
FROZEN = (Rule(rule="self == oldSelf", message=_NEW_SWEEP),)

LABEL_EXPRESSION = (
    Rule(
        rule="(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
        message="In and NotIn need values, Exists and DoesNotExist have none",
        field=".values",
    ),
)

ENVIRONMENT = (
    Rule(
        rule="!has(self.env) || self.env.all(e, !e.name.startsWith('ALLRANKS_') || "
        "e.name.startsWith('ALLRANKS_PARAM_'))",
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
    Rule(
        rule="!has(self.subPath) || !self.subPath.matches('^/|(^|/)[.][.](/|$)')",
        message="must be a relative path that does not lead upwards",
        field=".subPath",
    ),
)

TOPOLOGY = (
    Rule(rule="has(self.required) != has(self.preferred)", message="set exactly one of required and preferred"),
)

SCHEDULING = (
    Rule(
        rule="!has(self.topology) || !has(self.topologyKey)",
        message="is the older form of topology: remove it, and write topology: {required: KEY}",
        field=".topologyKey",
    ),
)

CODE = (
    Rule(
        rule="[has(self.configMap), has(self.claim), has(self.image)].filter(x, x).size() == 1",
        message="set exactly one of configMap, claim and image",
    ),
    Rule(
        rule="has(self.configMap) == has(self.sha256)",
        message="configMap and sha256 belong together: let allranks submit --code DIR write both",
        field=".sha256",
    ),
    Rule(
        rule="!has(self.subPath) || !has(self.configMap)",
        message="is for a claim or an image",
        field=".subPath",
    ),
    Rule(
        rule="!has(self.subPath) || !self.subPath.matches('^/|(^|/)[.][.](/|$)')",
        message="must be a relative path that does not lead upwards",
        field=".subPath",
    ),
    Rule(
        rule="self.path != '/' && !self.path.matches('(^|/)[.][.]?(/|$)') && !self.path.contains(':')",
        message="must be a directory below /, without ':' and without . or .. as a part",
        field=".path",
    ),
)

PACKAGES = (
    Rule(
        rule="self.all(p, p.matches('^[A-Za-z0-9]'))",
        message="must be requirements such as timm==1.0, without options of pip: set those by variables such as "
        "PIP_INDEX_URL",
    ),
)

_DATA_PATH = (
    Rule(
        rule="self.path != '/' && !self.path.matches('(^|/)[.][.]?(/|$)') && !self.path.contains(':')",
        message="must be a directory below /, without ':' and without . or .. as a part",
        field=".path",
    ),
)

_STREAM = "has(self.mode) && self.mode == 'Stream'"

ADDRESSES = (
    Rule(
        rule="!self.from.matches('://[^/]*@|[?&](X-Amz-|sig=|token=)')",
        message="must not contain credentials, which everybody who can read the job could use: name a Secret with them "
        "in secret",
        field=".from",
    ),
    Rule(
        rule="!self.from.matches('^(claim|s3|gs|az|hf)://') || !self.from.matches('/[.][.]?(/|$)')",
        message="must not have . or .. as a part",
        field=".from",
    ),
)
"""Rules of an input, and of resumeFrom."""

INPUT = (
    Rule(
        rule=f"!has(self.path) || ({_DATA_PATH[0].rule})",
        message=_DATA_PATH[0].message,
        field=".path",
    ),
    Rule(
        rule=f"has(self.path) || ({_STREAM})",
        message="must be set: the directory in which the pods find the data",
        field=".path",
    ),
    Rule(
        rule=f"!has(self.path) || !({_STREAM})",
        message="mode: Stream has no directory: remove path. The program reads the address from ALLRANKS_INPUT_NAME",
        field=".path",
    ),
    Rule(
        rule="self.from.matches('^((s3|gs|az)://[^/]+(/.+)?|https?://[^/]+/.+|git[+]https?://[^/]+/.+|"
        "hf://((datasets|models)/)?[^/]+/.+|claim://[^/]+(/.+)?|image://.+)$')",
        message="must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, https://HOST/FILE, "
        "hf://datasets/OWNER/NAME, hf://models/OWNER/NAME, git+https://HOST/REPOSITORY, claim://CLAIM/DIRECTORY or "
        "image://REFERENCE",
        field=".from",
    ),
    *ADDRESSES,
    Rule(
        rule="!has(self.mode) || (self.mode == 'Mount') == self.from.matches('^(claim|image)://')",
        message="must be Mount for claim:// and image://, which are volumes, and Copy or Stream for all others",
        field=".mode",
    ),
    Rule(
        rule=f"!({_STREAM}) || !self.from.startsWith('git+')",
        message="must be Copy for git+https://, whose files cannot be read one by one",
        field=".mode",
    ),
    Rule(
        rule=f"!({_STREAM}) || !has(self.sha256)",
        message="cannot be checked with mode: Stream, because the program reads the data itself: set revision instead",
        field=".sha256",
    ),
    Rule(
        rule="!self.from.matches('^(claim|image)://') || !(has(self.secret) || has(self.revision) || has(self.sha256))",
        message="claim:// and image:// are volumes, which have no secret, revision or sha256: remove these",
        field=".from",
    ),
    Rule(
        rule=f"!has(self.unpack) || !self.unpack || !(({_STREAM}) || self.from.matches('^(claim|image)://'))",
        message="archives are unpacked when they are fetched, with mode: Copy only: remove it",
        field=".unpack",
    ),
    Rule(
        rule="!(has(self.revision) && has(self.sha256))",
        message="set revision or sha256, not both: each of them determines the data",
        field=".sha256",
    ),
)

INPUT_CACHE = (
    Rule(
        rule=f"!has(self.hostPath) || ({_DATA_PATH[0].rule.replace('self.path', 'self.hostPath')})",
        message=_DATA_PATH[0].message,
        field=".hostPath",
    ),
)
"""Rules of `spec.inputCache` of a TrainingPool."""

OUTPUT = (
    *_DATA_PATH,
    Rule(
        rule="self.to.matches('^((s3|gs|az)://[^/]+/.+|claim://[^/]+(/.+)?)$')",
        message="must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or claim://CLAIM/DIRECTORY",
        field=".to",
    ),
    Rule(
        rule="!self.to.matches('/[.][.]?(/|$)')",
        message="must not have . or .. as a part",
        field=".to",
    ),
)

CHECKPOINT_OUTPUTS = (
    Rule(
        rule="!has(self.outputs) || self.outputs.all(o, o.when != 'Checkpoint' || "
        "(has(self.checkpoint) && o.path == self.checkpoint.path && (has(self.progress) || has(self.hang))))",
        message="when: Checkpoint uploads the checkpoints that the program reports: set checkpoint, and progress or "
        "hang, and choose the path of checkpoint",
        field=".outputs",
    ),
)
"""Rules of the spec of a job."""

DATA_NAMES = (
    Rule(
        rule="self.all(a, self.exists_one(b, b.name == a.name))",
        message="two of them have the same name: choose another one",
    ),
)

EACH_ONCE = (Rule(rule="self.all(a, self.exists_one(b, b == a))", message="must have each value once"),)

REMOVE_ANY = "remove any of "
"""Stands before a list of variables in a message. `allranks validate` names only those that are set."""

_FIXED_IN_CONTAINER = ("image", "command", "args", "env", "resources", "workingDir", "template")
_FIXED_IN_SPEC = (
    "pool",
    "elastic",
    "success",
    "managedBy",
    "checkpoint",
    "resumeFrom",
    "hang",
    "preflight",
    "progress",
    "compatibility",
    "podSecurity",
    "packages",
    "inputs",
    "outputs",
)
"""Fields that cannot be changed in an existing job, besides those that have the rule FIXED themselves. All others can:
suspend, replicas, the ConfigMap with the code, activeDeadlineSeconds, ttlSecondsAfterFinished, the limits and times of
restart, notify, utilization."""
_NEW_JOB = "cannot be changed in an existing job: create a new job"

FIXED = (Rule(rule="self == oldSelf", message=_NEW_JOB),)
"""For a field that is always present."""


def _fixed(*names: str) -> tuple[Rule, ...]:
    """Return rules that belong to the object with these fields, not to the spec.

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


CODE_PLACE = _fixed("path", "claim", "image", "subPath")
RESTART = _fixed("backoffSeconds", "scope", "rules")
ROLE = _fixed(*_FIXED_IN_CONTAINER, "pool")


ROLES = (
    Rule(
        rule="self.exists(r, self[r].replicas > 0)",
        message="the job has no pods: set the replicas of at least one role",
    ),
    Rule(
        rule="self.all(r, r in oldSelf) && oldSelf.all(r, r in self)",
        message="the roles of an existing job cannot be changed: create a new job",
    ),
)
"""The rules of `spec.roles`."""


def _of_role(role: str, framework: Framework, path: str, field: str) -> Iterable[Rule]:
    """Yield one framework's limits and reserved variables for one of its roles. `path`: the role in CEL."""
    most = framework.roles[role].max_replicas
    if most is not None:
        yield Rule(
            rule=f"{path}.replicas <= {most}",
            message=f"{framework.name} has at most {most} {role}",
            field=f"{field}.replicas",
        )
    if not framework.any_role:
        yield _reserved(framework, path, f"{field}.env")


def _reserved(framework: Framework, path: str, field: str) -> Rule:
    return Rule(
        rule=f"!has({path}.env) || {path}.env.all(e, !(e.name in {_list(framework.reserved_env)}))",
        message="variables by which the ranks find one another are set by allranks: "
        + REMOVE_ANY
        + ", ".join(sorted(framework.reserved_env)),
        field=field,
    )


def _of_every_role(framework: Framework) -> Rule:
    """Return the reserved variables of a framework with roles of any name."""
    inside = _reserved(framework, "self.roles[r]", ".roles")
    return inside.model_copy(update={"rule": f"self.roles.all(r, {inside.rule})"})


def _roles(frameworks: Mapping[str, Framework]) -> list[str]:
    return sorted({role for framework in frameworks.values() for role in framework.roles})


def spec(frameworks: Mapping[str, Framework]) -> tuple[Rule, ...]:
    """Return the rules of `spec`: `self` is the spec."""
    return (
        *(rule for framework in frameworks.values() for rule in _of_framework(framework)),
        *(rule for role in _roles(frameworks) for rule in _not_of_every(role, frameworks)),
        *_unknown_roles(frameworks),
        Rule(
            rule="has(self.image) || has(self.template) || "
            "self.roles.all(r, has(self.roles[r].image) || has(self.roles[r].template))",
            message="an image is needed, here or in every role",
            field=".image",
        ),
        Rule(
            rule="!has(self.success) || self.success in ['All', 'all'] || "
            "(self.success in self.roles && self.roles[self.success].replicas > 0)",
            message="names a role that this job does not have: use one of its roles, or All",
            field=".success",
        ),
        Rule(
            rule="!has(self.resumeFrom) || has(self.checkpoint)",
            message="needs checkpoint: the folder of this job, into which the checkpoints are copied",
            field=".resumeFrom",
        ),
        *(
            rule.model_copy(
                update={
                    "rule": f"!has(self.resumeFrom) || ({rule.rule.replace('self.from', 'self.resumeFrom')})",
                    "field": ".resumeFrom",
                }
            )
            for rule in ADDRESSES
        ),
        *CHECKPOINT_OUTPUTS,
        *_elastic(frameworks),
        Rule(rule="has(self.code) == has(oldSelf.code)", message=_NEW_JOB, field=".code"),
        *_fixed(*_FIXED_IN_SPEC, *_FIXED_IN_CONTAINER, *frameworks),
    )


def _of_framework(framework: Framework) -> Iterable[Rule]:
    """Yield rules for one framework: its options, its own rules, and the limits of its roles."""
    yield Rule(
        rule=f"!has(self.{framework.name}) || self.framework == '{framework.name}'",
        message="does not match framework: remove it or change framework",
        field=f".{framework.name}",
    )
    of_roles = [
        rule.model_copy(update={"rule": f"!has(self.roles.{role}) || {rule.rule}"})
        for role in framework.roles
        # The API server estimates the cost of `self.roles.worker.env` without the bound of the list.
        for rule in _of_role(role, framework, f"self.roles['{role}']", f".roles.{role}")
    ]
    if framework.any_role:
        of_roles.append(_of_every_role(framework))
    for rule in (_reserved(framework, "self", ".env"), *of_roles, *framework.rules):
        yield rule.model_copy(update={"rule": f"self.framework != '{framework.name}' || ({rule.rule})"})


def _not_of_every(role: str, frameworks: Mapping[str, Framework]) -> Iterable[Rule]:
    able = [framework.name for framework in frameworks.values() if framework.any_role or role in framework.roles]
    if len(able) < len(frameworks):
        yield Rule(
            rule=f"!has(self.roles.{role}) || self.framework in {_list(able)}",
            message=f"is a role of {joined(able, 'and')} only: remove it or change framework",
            field=f".roles.{role}",
        )


def _unknown_roles(frameworks: Mapping[str, Framework]) -> Iterable[Rule]:
    """Yield the rules against unknown roles. `allranks validate` reports each one by its name before."""
    roles = _roles(frameworks)
    for framework in frameworks.values():
        if not framework.any_role:
            yield Rule(
                rule=f"self.framework != '{framework.name}' || self.roles.all(r, r in {_list(roles)})",
                message=f"has an unknown role: {framework.name} has {joined(framework.roles, 'and')}",
                field=".roles",
            )


def _elastic(frameworks: Mapping[str, Framework]) -> Iterable[Rule]:
    able = [framework.name for framework in frameworks.values() if framework.elastic]
    yield Rule(
        rule=f"!has(self.elastic) || self.framework in {_list(able)}",
        message=f"is supported by {joined(able, 'and')} only: remove it. A change of replicas then restarts all ranks",
        field=".elastic",
    )
    absorb = [framework.name for framework in frameworks.values() if framework.elastic == "absorbs"]
    yield Rule(
        rule=f"!has(self.elastic) || !has(self.compatibility) || !(self.framework in {_list(absorb)})",
        message="cannot be set in an elastic job whose hosts change while it runs: its variables would name others",
        field=".compatibility",
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
    """Return the rules of a TrainingPool's `spec`. A pool may serve jobs of every framework."""
    reserved: set[str] = set()
    rules = []
    for framework in frameworks.values():
        names = framework.reserved_env - reserved
        reserved |= names
        if names:
            rules.append(
                Rule(
                    rule=f"!has(self.env) || self.env.all(e, !(e.name in {_list(names)}))",
                    message=f"variables by which the ranks of {framework.name} find one another are set by allranks: "
                    + REMOVE_ANY
                    + ", ".join(sorted(names)),
                    field=".env",
                )
            )
    return tuple(rules)


def _list(names: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in sorted(names)) + "]"
