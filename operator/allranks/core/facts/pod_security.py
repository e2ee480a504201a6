"""The security context of pods: its level, the defaults that follow from it, and contexts that contradict themselves.

The defaults only fill in what pool and job leave out. What a namespace admits is checked by the API server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from allranks.api.job import Job
from allranks.core.facts import naming
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.strategic_merge import merge

Level = Literal["Restricted", "Baseline", "Image"]
LEVELS: tuple[Level, ...] = ("Restricted", "Baseline", "Image")
"""From the most to the least restricted one."""
AUTO = "Auto"
ANNOTATION = "allranks.dev/pod-security"
"""Of a pod: its level, and why it has this level."""
ENFORCE = "pod-security.kubernetes.io/enforce"
_OPENSHIFT = "openshift.io/sa.scc.uid-range"
"""The annotation of a Namespace by which OpenShift gives its pods their users."""
NOT_READ = "the operator has not read whether the namespace enforces restricted pods"

RESTRICTED: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""The context of a container that the Pod Security Standard restricted admits, in a pod that does not run as root."""
_NOT_NEEDED = ("MKNOD", "NET_RAW")
"""Of the capabilities that runtimes give by default, which `baseline` admits: apt, chown and sshd do not need them."""


class Choice(NamedTuple):
    """The level of a job's pods."""

    level: Level
    reason: str
    """Empty if no namespace was asked for."""


def why_restricted(namespace: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """Return why the pods of a namespace must be restricted; empty if they need not be."""
    if labels.get(ENFORCE) == "restricted":
        return f"namespace {namespace} enforces the Pod Security Standard restricted"
    if _OPENSHIFT in annotations:
        return f"OpenShift chooses the user of pods in namespace {namespace}"
    return ""


def choice(job: Job, platform: Platform) -> Choice:
    """Return the level of the job's pods, as far as the platform allows."""
    policy = platform.policy
    asked = job.spec.pod_security or policy.default_pod_security
    source = "spec.podSecurity" if job.spec.pod_security else policy.source("default_pod_security")
    if asked != AUTO:
        chosen = Choice(_level(asked), f"{source} is {asked}")
    elif platform.why_restricted == "":
        chosen = Choice("Baseline", f"namespace {job.namespace} does not enforce restricted pods")
    else:
        chosen = Choice("Restricted", platform.why_restricted or "")
    if exceeds(chosen.level, policy.max_pod_security):
        allowed = _level(policy.max_pod_security)
        return Choice(allowed, f"{policy.source('max_pod_security')} allows no more than {allowed}")
    return chosen


def _level(name: str) -> Level:
    return next(level for level in LEVELS if level == name)


def exceeds(level: str, most: str) -> bool:
    """Return whether a level is less restricted than the platform allows."""
    return LEVELS.index(_level(level)) > LEVELS.index(_level(most))


def with_defaults(pod_spec: Manifest, chosen: Choice, user: int | None) -> Manifest:
    """Return the pod spec with the defaults of a level. `user`: the platform's default of `runAsUser`.

    A default never contradicts what the template says: a container that runs as root has no `runAsNonRoot`, and a
    privileged one no `allowPrivilegeEscalation: false`.
    """
    level, written = chosen.level, pod_spec.get("securityContext") or {}
    defaults: Manifest = {} if level == "Image" else {"seccompProfile": {"type": "RuntimeDefault"}}
    if user is not None and level != "Image":
        defaults["runAsUser"] = user
    only_default = level == "Restricted" and "runAsNonRoot" not in written and not _is_root(written)
    if only_default:
        defaults["runAsNonRoot"] = True
    out = dict(pod_spec)
    if context := merge(defaults, written):
        out["securityContext"] = context
    for kind in ("initContainers", "containers"):
        if kind in out:
            out[kind] = [_container(item, context, level, only_default) for item in out[kind]]
    return out


def _container(container: Manifest, pod: Manifest, level: Level, only_default: bool) -> Manifest:
    """Return a container with the defaults. `pod`: the context of its pod. `only_default`: `runAsNonRoot` is in it only
    by default."""
    written = container.get("securityContext") or {}
    is_trainer = container["name"] == naming.TRAINER
    as_root = _is_root({**pod, **written})
    defaults: Manifest = {}
    # Containers beside the program may set themselves up as root, and what has no image belongs to one of allranks.
    if is_trainer or (level == "Restricted" and container.get("image") and not as_root):
        defaults = _defaults(level, written)
    if only_default and as_root:
        defaults = {**defaults, "runAsNonRoot": False}
    context = merge(defaults, written)
    return {**container, "securityContext": context} if context else container


def _defaults(level: Level, written: Manifest) -> Manifest:
    """Return the defaults of a container whose context is `written`."""
    added = _added(written)
    if level == "Image" or written.get("privileged") is True:
        return {}
    if level == "Restricted":
        out = dict(RESTRICTED)
    else:
        names = {name.upper().removeprefix("CAP_") for name in added}
        dropped = [name for name in _NOT_NEEDED if not {name, "ALL"} & names]
        out = {"allowPrivilegeEscalation": False, **({"capabilities": {"drop": dropped}} if dropped else {})}
    if _ADMIN in added:
        del out["allowPrivilegeEscalation"]
    return out


_ADMIN = "CAP_SYS_ADMIN"
"""The API server refuses it beside `allowPrivilegeEscalation: false`, by this name only."""


def _added(context: Mapping[str, Any]) -> list[str]:
    capabilities = context.get("capabilities")
    added = capabilities.get("add") if isinstance(capabilities, Mapping) else None
    return [name for name in added if isinstance(name, str)] if isinstance(added, list) else []


def _is_root(context: Mapping[str, Any]) -> bool:
    user = context.get("runAsUser")
    return user == 0 and not isinstance(user, bool)


def problems(template: Manifest, layers: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield (field path, message) of contexts that the kubelet or the API server refuses.

    `template`: of a role, complete. `layers`: path -> the template that the job has there, the role's first.
    """
    pod = template["spec"].get("securityContext") or {}
    for kind in ("initContainers", "containers"):
        for container in template["spec"].get(kind) or ():
            context = container.get("securityContext") or {}
            place = f"{kind}[{container['name']}].securityContext"
            both = {**pod, **context}
            if _is_root(both) and both.get("runAsNonRoot") is True:
                where = f"{place}.runAsUser" if "runAsUser" in context else "securityContext.runAsUser"
                cure = "remove runAsNonRoot, or choose another user"
                text = f"0 is root, and runAsNonRoot is true: the kubelet does not start container {container['name']}"
                yield _path(layers, where), f"{text}: {cure}"
            if context.get("allowPrivilegeEscalation") is False:
                where = _path(layers, f"{place}.allowPrivilegeEscalation")
                if context.get("privileged") is True:
                    yield where, "must not be false beside privileged: true, the API server refuses the pod: remove it"
                elif _ADMIN in _added(context):
                    yield where, f"must not be false beside the capability {_ADMIN}: remove it"


def _path(layers: Mapping[str, Mapping[str, Any]], below: str) -> str:
    """Return the path of a field of the pod spec, in the layer that has it."""
    context, _, field = below.rpartition(".")
    for path, template in layers.items():
        spec: Any = template.get("spec") or {}
        if field in (_context(spec, context) or {}):
            return f"{path}.spec.{below}"
    return f"{next(iter(layers), 'spec.template')}.spec.{below}"


def _context(spec: Mapping[str, Any], place: str) -> Mapping[str, Any] | None:
    if place == "securityContext":
        return spec.get("securityContext")
    kind, _, rest = place.partition("[")
    name = rest.partition("]")[0]
    return next((c.get("securityContext") for c in spec.get(kind) or () if c["name"] == name), None)
