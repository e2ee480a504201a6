"""The gang scheduling backends: Kubernetes itself, Coscheduling of scheduler-plugins, Volcano, and Kueue."""

from __future__ import annotations

import re
from collections.abc import Mapping

from allranks.api.job import Job
from allranks.api.scheduling import Topology
from allranks.core.facts import naming, quantity
from allranks.core.facts.model import Manifest
from allranks.core.facts.optional_kinds import (
    COSCHEDULING_POD_GROUP,
    NATIVE_POD_GROUP,
    VOLCANO_POD_GROUP,
    WORKLOAD,
    Object,
)
from allranks.core.objects.gangs.base import Backend, Gang, PodPart
from allranks.fields import GangBackend

DEFAULT_SCHEDULER = "default-scheduler"
_SCHEDULED = ("PodGroupInitiallyScheduled", "PodGroupScheduled")
"""The condition that the scheduler writes, in 1.37 and in 1.36."""


class Native(Backend):
    """PodGroups of scheduling.k8s.io, with the feature gate GenericWorkload: v1beta1 in 1.37, v1alpha2 in 1.36.

    Without the gate, the API server does not serve PodGroups, and drops `spec.schedulingGroup` of pods without a word.
    """

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

    def problem(self, group: Object) -> str:
        conditions = (group.get("status") or {}).get("conditions") or ()
        placed = next((c for c in conditions if c.get("type") in _SCHEDULED), None)
        if placed is None or placed.get("status") == "True":
            return ""
        return str(placed.get("message") or placed.get("reason") or "")


COSCHEDULING_LABEL = "scheduling.x-k8s.io/pod-group"


class Coscheduling(Backend):
    """PodGroups of scheduling.x-k8s.io, with the types of scheduler-plugins 0.34.

    The administrator chooses the name of the scheduler.
    """

    name = "Coscheduling"
    kind = COSCHEDULING_POD_GROUP
    cure = "install the scheduler and the CustomResourceDefinitions of scheduler-plugins"

    def pod_group_spec(self, gang: Gang, version: str) -> Manifest | None:
        # No minResources: a group that fails this check is tried again only when a pod is created, or after five
        # minutes (EventsToRegister in pkg/coscheduling/coscheduling.go), and not when another gang ends. Without it,
        # the plugin gives the nodes of the whole group back as soon as one pod finds none.
        return {"minMember": gang.min_count, "scheduleTimeoutSeconds": gang.timeout_seconds}

    def pod_part(self, gang: Gang, role: str) -> PodPart:
        named = gang.templates[role]["spec"].get("schedulerName")
        return PodPart(
            labels={COSCHEDULING_LABEL: gang.name}, spec={} if named else {"schedulerName": gang.scheduler_name}
        )

    def problem(self, group: Object) -> str:
        return "the pods wait for nodes" if (group.get("status") or {}).get("phase") == "Failed" else ""


class Kueue(Backend):
    """The job gets the quota for all of its pods or for none (`queueing`).

    The scheduler still places the pods one by one, so `contention` remains in force. With topology-aware scheduling,
    Kueue selects the node of each rank.
    """

    name = "Kueue"
    kind = WORKLOAD
    cure = "install Kueue"

    def pod_group_spec(self, gang: Gang, version: str) -> Manifest | None:
        return None

    def pod_part(self, gang: Gang, role: str) -> PodPart:
        return PodPart()


def topology_request(job: Job, sizes: Mapping[str, int]) -> Manifest | None:
    """Return the `topologyRequest` of each pod set: neighbours by the index of the ranks. `sizes`: role -> pods.

    Only for `gang: Kueue`, because a queue without topology-aware scheduling admits no job with such a request.
    """
    topology = job.spec.scheduling.topology
    if topology is None or job.spec.scheduling.gang != "Kueue":
        return None
    where = {"required": topology.required} if topology.required else {"preferred": topology.preferred}
    # Kueue places two pod sets together if one of them is a leader, which gets the first place.
    together = {"podSetGroupName": job.name} if len(sizes) == 2 and 1 in sizes.values() else {}
    return {**where, "podIndexLabel": naming.INDEX_LABEL, **together}


VOLCANO_SCHEDULER = "volcano"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_TASK = "volcano.sh/task-spec"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
_TIER = re.compile(r"volcano\.sh/tier-([1-9][0-9]{0,2})")
"""A topology key for a tier of Volcano's HyperNodes. Any other key is a label of nodes, for pod affinity."""


class Volcano(Backend):
    """PodGroups of scheduling.volcano.sh, with the types of volcano.sh/apis 1.12, and pods of Volcano's scheduler."""

    name = "Volcano"
    kind = VOLCANO_POD_GROUP
    cure = "install Volcano"
    scheduler_names = (VOLCANO_SCHEDULER,)

    def pod_group_spec(self, gang: Gang, version: str) -> Manifest | None:
        # Without minResources, Volcano admits the group to its queue however full the queue is.
        spec: Manifest = {
            "minMember": gang.min_count,
            "minTaskMember": dict(gang.min_by_role),
            "minResources": quantity.gang_requests(gang.min_by_role, gang.templates),
        }
        if queue := _volcano_queue(gang):
            spec["queue"] = queue
        if gang.priority_class_name:
            spec["priorityClassName"] = gang.priority_class_name
        if gang.topology and (tier := _TIER.fullmatch(gang.topology.required or gang.topology.preferred or "")):
            mode = "hard" if gang.topology.required else "soft"
            spec["networkTopology"] = {"mode": mode, "highestTierAllowed": int(tier[1])}
        return spec

    def pod_part(self, gang: Gang, role: str) -> PodPart:
        named = gang.templates[role]["spec"].get("schedulerName")
        return PodPart(
            annotations={VOLCANO_GROUP: gang.name, VOLCANO_TASK: role},
            spec={} if named else {"schedulerName": VOLCANO_SCHEDULER},
        )

    def places_close(self, topology: Topology) -> bool:
        return bool(_TIER.fullmatch(topology.required or topology.preferred or ""))

    def problem(self, group: Object) -> str:
        status = group.get("status") or {}
        waits = [c for c in status.get("conditions") or () if c.get("type") == "Unschedulable"]
        if status.get("phase") in ("Running", "Completed") or not waits or waits[-1].get("status") != "True":
            return ""
        return str(waits[-1].get("message") or waits[-1].get("reason") or "")


def _volcano_queue(gang: Gang) -> str:
    """Return the Volcano queue that the template of a role names; empty for Volcano's default queue."""
    for role in gang.min_by_role:
        annotations = gang.templates[role]["metadata"].get("annotations") or {}
        if queue := annotations.get(VOLCANO_QUEUE):
            return str(queue)
    return ""


BACKENDS: Mapping[GangBackend, Backend] = {
    backend.name: backend for backend in (Native(), Kueue(), Volcano(), Coscheduling())
}


def requested(job: Job) -> Backend | None:
    """Return the backend that the job names; None if it leaves the choice to the operator, or wants none."""
    gang = job.spec.scheduling.gang
    return BACKENDS.get(gang) if gang else None
