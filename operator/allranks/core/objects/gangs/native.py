"""Gang scheduling of Kubernetes itself: the PodGroup of group scheduling.k8s.io, with feature gate GenericWorkload.

1.37 serves it as v1beta1, 1.36 as v1alpha2. Without the gate, the API server does not serve PodGroups, and it drops
`spec.schedulingGroup` of pods without a word.
"""

from __future__ import annotations

from allranks.api.scheduling import Topology
from allranks.core.facts.model import Manifest
from allranks.core.facts.optional_kinds import NATIVE_POD_GROUP, Object
from allranks.core.objects.gangs.base import Backend, Gang, PodPart

DEFAULT_SCHEDULER = "default-scheduler"
_PLACED = ("PodGroupInitiallyScheduled", "PodGroupScheduled")
"""The condition that the scheduler writes, in 1.37 and in 1.36."""


class Native(Backend):
    name = "Native"
    kind = NATIVE_POD_GROUP
    cure = (
        "enable the feature gate GenericWorkload and the API scheduling.k8s.io/v1beta1 (Kubernetes 1.36: v1alpha2) in "
        "the API server, and the gate in the scheduler"
    )
    reads_back_pods = True
    scheduler_names = (DEFAULT_SCHEDULER, "")

    def pod_group_spec(self, gang: Gang, version: str) -> Manifest | None:
        spec: Manifest = {"schedulingPolicy": {"gang": {"minCount": gang.min_count}}}
        if gang.topology and gang.topology.required:
            # A single constraint is allowed, and all of them are required ones.
            spec["schedulingConstraints"] = {"topology": [{"key": gang.topology.required}]}
        if gang.all_or_nothing:
            spec["disruptionMode"] = "PodGroup" if version == "v1alpha2" else {"all": {}}
        if gang.priority_class_name:
            spec["priorityClassName"] = gang.priority_class_name
        return spec

    def pod_part(self, gang: Gang, role: str) -> PodPart:
        return PodPart(spec={"schedulingGroup": {"podGroupName": gang.name}})

    def places_close(self, topology: Topology) -> bool:
        return topology.required is not None

    def trouble(self, group: Object) -> str:
        conditions = (group.get("status") or {}).get("conditions") or ()
        placed = next((c for c in conditions if c.get("type") in _PLACED), None)
        if placed is None or placed.get("status") == "True":
            return ""
        return str(placed.get("message") or placed.get("reason") or "")
