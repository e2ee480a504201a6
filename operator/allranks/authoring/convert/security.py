"""The user and the privileges of containers, which have other defaults here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from allranks.authoring.convert.draft import Draft

_ROOT = "It runs as root, as before: the namespace has to allow that."


def complete(draft: Draft, path: str, template: dict[str, Any]) -> None:
    """Write what follows from a user or a privilege in a template, where the defaults of allranks contradict it."""
    spec = template.get("spec") or {}
    pod: Mapping[str, Any] = spec.get("securityContext") or {}
    for place, context in _contexts(template):
        user = context.get("runAsUser", pod.get("runAsUser"))
        if user == 0 and (context.get("runAsNonRoot") or pod.get("runAsNonRoot")):
            text = "the kubelet starts no container with runAsUser: 0 and runAsNonRoot: true; false is written"
            draft.drop(f"{path}.{place}.runAsNonRoot", text)
        if context.get("runAsUser") == 0:
            context["runAsNonRoot"] = False
            draft.comment(("spec", "template"), _ROOT)
        if context.get("privileged") and context.get("allowPrivilegeEscalation") is not True:
            context["allowPrivilegeEscalation"] = True
            text = "A privileged container has allowPrivilegeEscalation: true: the API server refuses false."
            draft.comment(("spec", "template"), text)


def _contexts(template: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path in the template, securityContext) of the pod and of its containers."""
    spec = template.get("spec") or {}
    if isinstance(context := spec.get("securityContext"), dict):
        yield "spec.securityContext", context
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(kind) or ()):
            if isinstance(context := container.get("securityContext"), dict):
                yield f"spec.{kind}[{number}].securityContext", context
