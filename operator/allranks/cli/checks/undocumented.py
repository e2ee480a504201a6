"""Rules for single types that the API server enforces and its OpenAPI document does not contain.

Source: pkg/apis/core/validation/validation.go of Kubernetes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from allranks.cli.checks.problem import Problem

REQUIRED = {
    "ConfigMapEnvSource": ("name",),
    "ConfigMapKeySelector": ("name",),
    "ConfigMapProjection": ("name",),
    "ConfigMapVolumeSource": ("name",),
    "ExecAction": ("command",),
    "SecretEnvSource": ("name",),
    "SecretKeySelector": ("name",),
    "SecretProjection": ("name",),
    "SecretVolumeSource": ("secretName",),
}
"""Type -> further required fields."""
VALUES = {("LabelSelectorRequirement", "operator"): "DoesNotExist|Exists|In|NotIn"}
"""(type, field) -> the values of a string, in the notation of the schema."""
MAY_BE_EMPTY = frozenset({"value"})
"""Required strings that may be empty."""
_PORTS = {
    ("ContainerPort", "containerPort"),
    ("HTTPGetAction", "port"),
    ("TCPSocketAction", "port"),
    ("GRPCAction", "port"),
}
_FIELD_PATH = re.compile(r"metadata\.(labels|annotations)(\['[^']+'\])?")
_FIELD_PATHS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_NEEDS_VALUES = ("In", "NotIn")
_NO_VALUES = ("Exists", "DoesNotExist")


def problems(value: dict[str, Any], kind: str, path: str) -> Iterator[Problem]:
    """Problems of an object of the type `kind`."""
    for name, one in value.items():
        if (kind, name) in _PORTS and isinstance(one, int) and not isinstance(one, bool) and not 1 <= one <= 65535:
            yield Problem(f"{path}.{name}", f"must be a port from 1 to 65535, not {one}")
    if kind in ("LabelSelectorRequirement", "NodeSelectorRequirement"):
        operator, values = value.get("operator"), value.get("values")
        if operator in _NEEDS_VALUES and not values:
            yield Problem(f"{path}.values", f"is required with operator {operator}")
        if operator in _NO_VALUES and values:
            yield Problem(f"{path}.values", f"must be empty with operator {operator}: remove it")
    field = value.get("fieldPath")
    if kind == "ObjectFieldSelector" and isinstance(field, str) and not _FIELD_PATH.fullmatch(field):
        yield from _field_path(field, f"{path}.fieldPath")
    resource = value.get("resource")
    if (
        kind == "ResourceFieldSelector"
        and isinstance(resource, str)
        and not resource.startswith(("limits.", "requests."))
    ):
        yield Problem(
            f"{path}.resource", f"must begin with limits. or requests., as in limits.memory, not {resource!r}"
        )


def _field_path(field: str, path: str) -> Iterator[Problem]:
    if field in _FIELD_PATHS:
        return
    if near := difflib.get_close_matches(field, _FIELD_PATHS, n=1, cutoff=0.8):
        yield Problem(path, f"{field!r} is not available to a container, did you mean {near[0]}?")
    else:
        listed = ", ".join((*_FIELD_PATHS, "metadata.labels['NAME']", "metadata.annotations['NAME']"))
        yield Problem(path, f"{field!r} is not available to a container: use one of {listed}", "warning")
