"""Kinds of API groups that a cluster may or may not serve, such as Kueue's, and the objects of them that the operator
reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Object = dict[str, Any]
"""A Kubernetes object as its JSON. It is read-only."""
ObjectKey = tuple[str, str, str]
"""(id of the kind, namespace, name). The namespace of a cluster-scoped object is empty."""


@dataclass(frozen=True, slots=True)
class OptionalKind:
    """A kind, and the versions of it that allranks can handle."""

    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]
    """The preferred one first."""
    namespaced: bool = True
    labelled: bool = False
    """The operator watches only the objects with the label of a job."""
    dropped: tuple[str, ...] = ()
    """Paths of fields, such as `spec.podSets.template`, that the operator does not keep because of their size."""

    @property
    def id(self) -> str:
        """`Workload.kueue.x-k8s.io`: several groups have kinds of the same name."""
        return f"{self.kind}.{self.group}"


@dataclass(frozen=True, slots=True)
class OptionalObjects:
    """The objects of optional kinds that the operator can read, for the reconcile of one job."""

    versions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Id of a kind -> its `apiVersion`, for the kinds that the cluster serves and the operator may use."""
    problems: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Id of a kind -> why the operator cannot use it, as a sentence for users."""
    of_job: tuple[Object, ...] = ()
    """Objects that the job controls."""
    shared: Mapping[ObjectKey, Object] = field(default_factory=lambda: MappingProxyType({}))
    """All objects that the operator has read."""

    def api_version(self, kind: OptionalKind) -> str:
        """Return the version that the cluster serves; empty if the kind cannot be used."""
        return self.versions.get(kind.id, "")

    def find(self, kind: OptionalKind, name: str, namespace: str = "") -> Object | None:
        return self.shared.get((kind.id, namespace if kind.namespaced else "", name))

    def all(self, kind: OptionalKind) -> Iterator[Object]:
        return (item for key, item in self.shared.items() if key[0] == kind.id)

    def owned(self, kind: OptionalKind) -> tuple[Object, ...]:
        """Return objects of that kind that the job controls."""
        return tuple(item for item in self.of_job if kind_of(item) == kind.id)


def kind_of(manifest: Mapping[str, Any]) -> str:
    """Return the id of the kind of an object."""
    group, _, _ = manifest.get("apiVersion", "").rpartition("/")
    return f"{manifest['kind']}.{group}"


_KUEUE = ("v1beta2", "v1beta1")

WORKLOAD = OptionalKind(
    "kueue.x-k8s.io",
    "Workload",
    "workloads",
    _KUEUE,
    labelled=True,
    dropped=("spec.podSets.template",),
)
LOCAL_QUEUE = OptionalKind("kueue.x-k8s.io", "LocalQueue", "localqueues", _KUEUE, dropped=("status",))
RESOURCE_FLAVOR = OptionalKind("kueue.x-k8s.io", "ResourceFlavor", "resourceflavors", _KUEUE, namespaced=False)
WORKLOAD_PRIORITY_CLASS = OptionalKind(
    "kueue.x-k8s.io", "WorkloadPriorityClass", "workloadpriorityclasses", _KUEUE, namespaced=False
)
PRIORITY_CLASS = OptionalKind("scheduling.k8s.io", "PriorityClass", "priorityclasses", ("v1",), namespaced=False)

QUEUES: tuple[OptionalKind, ...] = (WORKLOAD, LOCAL_QUEUE, RESOURCE_FLAVOR, WORKLOAD_PRIORITY_CLASS, PRIORITY_CLASS)
"""The kinds that the operator's setting `queues` needs."""

NATIVE_POD_GROUP = OptionalKind("scheduling.k8s.io", "PodGroup", "podgroups", ("v1beta1", "v1alpha2"), labelled=True)
VOLCANO_POD_GROUP = OptionalKind("scheduling.volcano.sh", "PodGroup", "podgroups", ("v1beta1",), labelled=True)
COSCHEDULING_POD_GROUP = OptionalKind("scheduling.x-k8s.io", "PodGroup", "podgroups", ("v1alpha1",), labelled=True)

GANGS: tuple[OptionalKind, ...] = (NATIVE_POD_GROUP, VOLCANO_POD_GROUP, COSCHEDULING_POD_GROUP)
"""The kinds that the operator's setting `gangs` needs."""

BY_ID: Mapping[str, OptionalKind] = MappingProxyType({kind.id: kind for kind in (*QUEUES, *GANGS)})
