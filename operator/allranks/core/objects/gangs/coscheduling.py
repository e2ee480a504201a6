"""Gang scheduling by the plugin Coscheduling of scheduler-plugins: a PodGroup of group scheduling.x-k8s.io.

The types are those of scheduler-plugins 0.34. The scheduler's name is the cluster administrator's choice.
"""

from __future__ import annotations

from allranks.core.facts.model import Manifest
from allranks.core.facts.optional_kinds import COSCHEDULING_POD_GROUP, Object
from allranks.core.objects.gangs.base import Backend, Gang, PodPart

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"


class Coscheduling(Backend):
    name = "Coscheduling"
    kind = COSCHEDULING_POD_GROUP
    cure = "install the scheduler and the CustomResourceDefinitions of scheduler-plugins"

    def pod_group_spec(self, gang: Gang, version: str) -> Manifest | None:
        # No minResources: a group that fails this check is tried again only when a pod is created, or after five
        # minutes (EventsToRegister in pkg/coscheduling/coscheduling.go), and not when another gang ends. Without it,
        # the plugin gives the nodes of the whole group back as soon as one pod finds none.
        return {"minMember": gang.min_count, "scheduleTimeoutSeconds": gang.timeout_seconds}

    def pod_part(self, gang: Gang, role: str) -> PodPart:
        own = gang.templates[role]["spec"].get("schedulerName")
        return PodPart(labels={GROUP_LABEL: gang.name}, spec={} if own else {"schedulerName": gang.scheduler_name})

    def trouble(self, group: Object) -> str:
        return "the pods wait for nodes" if (group.get("status") or {}).get("phase") == "Failed" else ""
