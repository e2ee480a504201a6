"""Gang scheduling by Volcano: a PodGroup of group scheduling.volcano.sh, and pods of its scheduler.

The types are those of volcano.sh/apis 1.12.
"""

from __future__ import annotations

import re

from allranks.api.scheduling import Topology
from allranks.core.facts.model import Manifest
from allranks.core.facts.optional_kinds import VOLCANO_POD_GROUP, Object
from allranks.core.objects.gangs import requests
from allranks.core.objects.gangs.base import Backend, Gang, PodPart

SCHEDULER = "volcano"
GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
TASK_ANNOTATION = "volcano.sh/task-spec"
QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"
_TIER = re.compile(r"volcano\.sh/tier-([1-9][0-9]{0,2})")
"""A topology key for a tier of Volcano's HyperNodes. Any other key is a label of nodes, for pod affinity."""


class Volcano(Backend):
    name = "Volcano"
    kind = VOLCANO_POD_GROUP
    cure = "install Volcano"
    scheduler_names = (SCHEDULER,)

    def pod_group_spec(self, gang: Gang, version: str) -> Manifest | None:
        # Without minResources, Volcano admits the group to its queue however full the queue is.
        spec: Manifest = {
            "minMember": gang.min_count,
            "minTaskMember": dict(gang.min_by_role),
            "minResources": requests.of_gang(gang.min_by_role, gang.templates),
        }
        if queue := _queue(gang):
            spec["queue"] = queue
        if gang.priority_class_name:
            spec["priorityClassName"] = gang.priority_class_name
        if gang.topology and (tier := _TIER.fullmatch(gang.topology.required or gang.topology.preferred or "")):
            mode = "hard" if gang.topology.required else "soft"
            spec["networkTopology"] = {"mode": mode, "highestTierAllowed": int(tier[1])}
        return spec

    def pod_part(self, gang: Gang, role: str) -> PodPart:
        own = gang.templates[role]["spec"].get("schedulerName")
        return PodPart(
            annotations={GROUP_ANNOTATION: gang.name, TASK_ANNOTATION: role},
            spec={} if own else {"schedulerName": SCHEDULER},
        )

    def places_close(self, topology: Topology) -> bool:
        return bool(_TIER.fullmatch(topology.required or topology.preferred or ""))

    def trouble(self, group: Object) -> str:
        status = group.get("status") or {}
        waits = [c for c in status.get("conditions") or () if c.get("type") == "Unschedulable"]
        if status.get("phase") in ("Running", "Completed") or not waits or waits[-1].get("status") != "True":
            return ""
        return str(waits[-1].get("message") or waits[-1].get("reason") or "")


def _queue(gang: Gang) -> str:
    """The Volcano queue that the template of a role names; empty: Volcano's default queue."""
    for role in gang.min_by_role:
        annotations = gang.templates[role]["metadata"].get("annotations") or {}
        if queue := annotations.get(QUEUE_ANNOTATION):
            return str(queue)
    return ""
