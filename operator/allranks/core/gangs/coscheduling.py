"""Gang scheduling by the plugin Coscheduling of scheduler-plugins: a PodGroup of group scheduling.x-k8s.io.

The types are those of scheduler-plugins 0.34. The scheduler's name is the cluster administrator's choice.
"""

from __future__ import annotations

from allranks.core.gangs import requests
from allranks.core.gangs.base import Backend, Gang, PodPart
from allranks.core.model import Manifest
from allranks.core.optional_kinds import COSCHEDULING_POD_GROUP, Object

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"


class Coscheduling(Backend):
    name = "Coscheduling"
    kind = COSCHEDULING_POD_GROUP
    cure = "install the scheduler and the CustomResourceDefinitions of scheduler-plugins"

    def pod_group_spec(self, gang: Gang, version: str) -> Manifest | None:
        spec: Manifest = {"minMember": gang.min_count, "scheduleTimeoutSeconds": gang.timeout_seconds}
        # The plugin compares minResources with what is free in the whole cluster, before it reserves a node.
        if resources := requests.of_gang(gang):
            spec["minResources"] = resources
        return spec

    def pod_part(self, gang: Gang, role: str) -> PodPart:
        own = gang.templates[role]["spec"].get("schedulerName")
        return PodPart(labels={GROUP_LABEL: gang.name}, spec={} if own else {"schedulerName": gang.scheduler_name})

    def trouble(self, group: Object) -> str:
        return "the pods wait for nodes" if (group.get("status") or {}).get("phase") == "Failed" else ""
