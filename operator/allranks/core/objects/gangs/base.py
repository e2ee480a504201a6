"""The interface of a gang scheduling backend: the PodGroup of an attempt, and what its pods need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from allranks.api.scheduling import Topology
from allranks.core.facts.contenders import DEFAULT_TIMEOUT_SECONDS
from allranks.core.facts.model import Manifest
from allranks.core.facts.optional_kinds import Object, OptionalKind
from allranks.fields import GangBackend

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Gang:
    """The pods of one attempt that are placed together."""

    name: str
    """Name of the PodGroup."""
    min_by_role: Mapping[str, int]
    """Role -> pods that must be placed, for the roles that belong to the gang."""
    templates: Mapping[str, Manifest]
    """Role -> its pod template."""
    all_or_nothing: bool = True
    """True if the ranks can do nothing after one of them is gone: then the scheduler should preempt all or none."""
    topology: Topology | None = None
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    scheduler_name: str = ""
    """Name of the scheduler if its name depends on the installation; empty: the backend's usual one."""

    @property
    def min_count(self) -> int:
        return sum(self.min_by_role.values())

    @property
    def priority_class_name(self) -> str:
        """The priority class of the pods; empty if they have none, or not the same."""
        names = {self.templates[role]["spec"].get("priorityClassName") or "" for role in self.min_by_role}
        return names.pop() if len(names) == 1 else ""


@dataclass(frozen=True, slots=True)
class PodPart:
    """The fields of a pod that belongs to the gang. They are merged over the pod's own metadata and spec."""

    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    annotations: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    spec: Mapping[str, Any] = field(default_factory=lambda: NOTHING)


class Backend(ABC):
    """One way to place pods together. Instances are stateless."""

    name: ClassVar[GangBackend]
    kind: ClassVar[OptionalKind]
    """The kind that the cluster must serve."""
    cure: ClassVar[str]
    """Steps of a cluster administrator after which the kind is served."""
    scheduler_names: ClassVar[tuple[str, ...]] = ()
    """`Auto` selects the backend for pods that name one of these schedulers."""
    reads_back_pods: ClassVar[bool] = False
    """True if the membership is a field of the pod that an API server may drop."""

    @abstractmethod
    def pod_group_spec(self, gang: Gang, version: str) -> Manifest | None:
        """Return the spec of the PodGroup in this version of its API; None if the backend needs none."""

    @abstractmethod
    def pod_part(self, gang: Gang, role: str) -> PodPart: ...

    def places_close(self, topology: Topology) -> bool:
        """Return whether the PodGroup holds this constraint, so that the pods need no affinity."""
        return False

    def problem(self, group: Object) -> str:
        """Return why the group waits or is not heeded, from the status of its PodGroup; empty if nothing is wrong."""
        return ""
