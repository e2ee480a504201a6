"""Where a field of a pod template belongs that stands at the wrong level."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from allranks.cli.checks import quantities

_TRAINER = "containers, in the container named trainer"


def in_template(name: str, kind: str, fields: Callable[[str], Mapping[str, str]]) -> str | None:
    """`belongs under ...` for a field that `kind` does not have; None if Kubernetes has it at no other usual place.

    `fields`: the fields of a type of Kubernetes.
    """
    match kind:
        case "PodTemplateSpec":
            if name in ("labels", "annotations"):
                return f"belongs under metadata.{name} of the template"
            if name in fields("PodSpec"):
                return f"belongs under spec.{name} of the template"
            if name in fields("Container"):
                return f"belongs under spec.{_TRAINER}"
        case "PodSpec":
            if name in ("labels", "annotations"):
                return f"belongs under metadata.{name} of the template, beside its spec"
            if name in fields("Container"):
                return f"belongs to a container: under {_TRAINER}"
        case "Container":
            if name in fields("ResourceRequirements"):
                return f"belongs under resources.{name}"
            if name in fields("PodSpec"):
                return f"belongs to the pod: under spec.{name} of the template, beside containers"
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
