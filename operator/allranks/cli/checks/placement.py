"""Where a field of a pod template belongs that stands at the wrong level."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from allranks.cli.checks import quantities

_CONTAINER = re.compile(r"\.(containers|initContainers)\[\d+\]$")


def in_template(name: str, kind: str, path: str, fields: Callable[[str], Mapping[str, str]]) -> str | None:
    """`belongs under ...` for a field that `kind`, at `path`, does not have; None if there is no other usual place.

    `fields`: the fields of a type of Kubernetes.
    """
    match kind:
        case "PodTemplateSpec":
            if name in ("labels", "annotations"):
                return f"belongs under {path}.metadata.{name}"
            if name in fields("PodSpec"):
                return f"belongs under {path}.spec.{name}"
            if name in fields("Container"):
                return f"belongs to a container: {path}.spec.containers: [{{name: trainer, {name}: ...}}]"
        case "PodSpec":
            if name in ("labels", "annotations"):
                return f"belongs under {path.removesuffix('.spec')}.metadata.{name}"
            if name in fields("Container"):
                return f"belongs to a container: {path}.containers: [{{name: trainer, {name}: ...}}]"
        case "Container":
            if name in fields("ResourceRequirements"):
                return f"belongs under {path}.resources.{name}"
            if name in fields("PodSpec"):
                return f"belongs to the pod: {_CONTAINER.sub('', path)}.{name}"
        case "ResourceRequirements":
            if quantities.is_resource(name):
                return f"put it under limits, as in limits: {{{name}: ...}}"
        case "PodSecurityContext":
            if name in fields("SecurityContext"):
                return "belongs to the securityContext of a container"
        case "SecurityContext":
            if name in fields("PodSecurityContext"):
                return "belongs to the securityContext of the pod, beside containers"
        case "VolumeMount":
            if name in fields("Volume"):
                return "describes a volume: under volumes of the pod, with the name of this mount"
        case "Volume":
            if name in fields("VolumeMount"):
                return "describes a mount: under volumeMounts of a container, with the name of this volume"
    return None
