"""Rules of pods that their types do not express, checked in one layer of a pod template as it is written.

Source: ValidatePodTemplateSpec in pkg/apis/core/validation of Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from allranks.cli.checks.problem import Problem, below

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
CONTAINER_LISTS = ("initContainers", "containers")
"""In the order in which the kubelet starts them."""


def problems(template: Any, path: str) -> Iterator[Problem]:
    """Problems of a template at `path`. Parts of a wrong type are skipped; the schema reports them."""
    if not isinstance(template, dict):
        return
    yield from _labels(template.get("metadata"), "labels", f"{path}.metadata")
    spec = template.get("spec")
    if not isinstance(spec, dict):
        return
    path = f"{path}.spec"
    yield from _labels(spec, "nodeSelector", path)
    named = [(f"{path}.{kind}", item) for kind in CONTAINER_LISTS for item in _items(spec, kind)]
    yield from _duplicates(named, "name", "container")
    for kind in CONTAINER_LISTS:
        for number, container in _items(spec, kind):
            yield from _container(container, f"{path}.{kind}[{number}]")
    yield from _volumes(spec, path)
    yield from tolerations(spec, path)
    for field in ("serviceAccountName", "priorityClassName", "runtimeClassName"):
        if (name := spec.get(field)) and isinstance(name, str) and not _SUBDOMAIN.fullmatch(name):
            yield Problem(f"{path}.{field}", f"{name!r} is not a name: use lower-case letters, digits, '-' and '.'")


def tolerations(spec: dict[str, Any], path: str) -> Iterator[Problem]:
    """Problems of the tolerations in `spec`, the spec of a pod or of a pool, at `path`."""
    for number, toleration in _items(spec, "tolerations"):
        yield from _toleration(toleration, f"{path}.tolerations[{number}]")


def _items(part: dict[str, Any], name: str) -> list[tuple[int, dict[str, Any]]]:
    """(index, item) of the mappings in a list."""
    found = part.get(name)
    return [(n, item) for n, item in enumerate(found) if isinstance(item, dict)] if isinstance(found, list) else []


def _duplicates(items: Iterable[tuple[str, tuple[int, dict[str, Any]]]], key: str, what: str) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for path, (number, item) in items:
        value, at = item.get(key), f"{path}[{number}]"
        if not isinstance(value, str):
            continue
        if value in first:
            yield Problem(
                f"{at}.{key}", f"another {what} has the same {key}, {value} ({first[value]}): rename one of them"
            )
        first.setdefault(value, at)


def _labels(part: Any, field: str, path: str) -> Iterator[Problem]:
    labels = part.get(field) if isinstance(part, dict) else None
    for name, value in labels.items() if isinstance(labels, dict) else ():
        at = below(f"{path}.{field}", str(name))
        if not _LABEL_NAME.fullmatch(str(name)):
            yield Problem(at, f"{name!r} is not the name of a label: use letters, digits, '-', '_', '.' and one '/'")
        if isinstance(value, str) and not _LABEL_VALUE.fullmatch(value):
            rule = "at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
            annotation = "; an annotation can have any text" if field == "labels" else ""
            yield Problem(at, f"{value!r} is not the value of a label: {rule}{annotation}")


def _container(container: dict[str, Any], path: str) -> Iterator[Problem]:
    yield from _dns_label(container, path)
    mounts = [(f"{path}.volumeMounts", item) for item in _items(container, "volumeMounts")]
    yield from _duplicates(mounts, "mountPath", "mount")
    ports = [(f"{path}.ports", item) for item in _items(container, "ports")]
    yield from _duplicates(ports, "name", "port")
    variables = [(f"{path}.env", item) for item in _items(container, "env")]
    for problem in _duplicates(variables, "name", "variable"):
        yield problem._replace(message="is set twice: the last value applies; remove one of them", severity="warning")
    for number, variable in _items(container, "env"):
        if variable.get("value") and variable.get("valueFrom"):
            yield Problem(f"{path}.env[{number}]", "has either value or valueFrom, not both")


def _dns_label(item: dict[str, Any], path: str) -> Iterator[Problem]:
    name = item.get("name")
    if isinstance(name, str) and not _LABEL.fullmatch(name):
        yield Problem(f"{path}.name", f"{name!r} is not a name: use at most 63 lower-case letters, digits and '-'")


def _volumes(spec: dict[str, Any], path: str) -> Iterator[Problem]:
    volumes = _items(spec, "volumes")
    yield from _duplicates([(f"{path}.volumes", item) for item in volumes], "name", "volume")
    for number, volume in volumes:
        yield from _dns_label(volume, f"{path}.volumes[{number}]")


def _toleration(toleration: dict[str, Any], path: str) -> Iterator[Problem]:
    operator, value, effect = (toleration.get(name) for name in ("operator", "value", "effect"))
    if operator == "Exists" and value:
        yield Problem(f"{path}.value", "must be empty with operator Exists: remove it, or use operator Equal")
    if not toleration.get("key") and operator in (None, "", "Equal"):
        yield Problem(f"{path}.key", "is required, except with operator Exists, which then tolerates every taint")
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        yield Problem(f"{path}.effect", "must be NoExecute when tolerationSeconds is set")
