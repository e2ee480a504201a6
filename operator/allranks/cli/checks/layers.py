"""Finds the place in a manifest that a part of a finished pod comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from allranks.api.job import Job
from allranks.cli.checks.problem import below
from allranks.core.facts.naming import TRAINER

_FROM_POOL = "spec.pool"
"""The path of what no layer of the job has."""


@dataclass(frozen=True, slots=True)
class Layers:
    """What the pods of one role are merged from, the layer that wins first."""

    templates: list[tuple[str, Mapping[str, Any]]]
    """(path, template)"""
    resources: list[tuple[str, Mapping[str, Any]]]
    """(path, resources of the training container)"""

    @classmethod
    def of(cls, job: Job, role: str) -> Layers:
        """The layers of the job and of the role; a pool is not part of the job's manifest."""
        parts = [(f"spec.roles.{role}", job.spec.roles[role]), ("spec", job.spec)]
        templates: list[tuple[str, Mapping[str, Any]]] = [
            (f"{path}.template", part.template) for path, part in parts if part.template
        ]
        own = [(f"{path}.resources", part.resources) for path, part in parts if part.resources]
        return cls(templates, [(path, of.model_dump(exclude_none=True)) for path, of in own])

    def container(self, kind: str, name: str) -> str:
        """The path of a container. `kind`: `containers` or `initContainers`."""
        return next((path for path, _ in self._containers(kind, name)), _FROM_POOL)

    def mount(self, kind: str, container: str, path: str) -> str:
        """The path of the mount at `path` of a container."""
        for where, found in self._containers(kind, container):
            for number, mount in enumerate(found.get("volumeMounts") or ()):
                if mount.get("mountPath") == path:
                    return f"{where}.volumeMounts[{number}]"
        return _FROM_POOL

    def volume(self, name: str) -> str:
        """The path of a volume."""
        for path, template in self.templates:
            for number, volume in enumerate((template.get("spec") or {}).get("volumes") or ()):
                if volume.get("name") == name:
                    return f"{path}.spec.volumes[{number}]"
        return _FROM_POOL

    def request(self, kind: str, container: str, resource: str) -> str:
        """The path of the amount that a container requests of a resource."""
        own = self.resources if container == TRAINER else []
        inside = [(f"{path}.resources", c.get("resources") or {}) for path, c in self._containers(kind, container)]
        for path, resources in (*own, *inside):
            if resource in (resources.get("requests") or {}):
                return below(f"{path}.requests", resource)
        return _FROM_POOL

    def _containers(self, kind: str, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for path, template in self.templates:
            for number, container in enumerate((template.get("spec") or {}).get(kind) or ()):
                if container.get("name") == name:
                    yield f"{path}.spec.{kind}[{number}]", container
