"""Gang admission by Kueue: the job gets the quota for all of its pods or for none.

The Workload is made by the rules for queues. Nothing is added to the pods, and the scheduler still places them one by
one, so `contention` remains in force. With topology-aware scheduling, Kueue selects the node of each rank.
"""

from __future__ import annotations

from collections.abc import Mapping

from allranks.api.job import Job
from allranks.core.facts import naming
from allranks.core.facts.model import Manifest
from allranks.core.facts.optional_kinds import WORKLOAD
from allranks.core.objects.gangs.base import Backend, Gang, PodPart


class Kueue(Backend):
    name = "Kueue"
    kind = WORKLOAD
    cure = "install Kueue"

    def pod_group_spec(self, gang: Gang, version: str) -> Manifest | None:
        return None

    def pod_part(self, gang: Gang, role: str) -> PodPart:
        return PodPart()


def topology_request(job: Job, sizes: Mapping[str, int]) -> Manifest | None:
    """The `topologyRequest` of each pod set: neighbours by the index of the ranks. `sizes`: role -> pods.

    Only for `gang: Kueue`, because a queue without topology-aware scheduling admits no job with such a request.
    """
    topology = job.spec.scheduling.topology
    if topology is None or job.spec.scheduling.gang != "Kueue":
        return None
    where = {"required": topology.required} if topology.required else {"preferred": topology.preferred}
    # Kueue places two pod sets together if one of them is a leader, which gets the first place.
    together = {"podSetGroupName": job.name} if len(sizes) == 2 and 1 in sizes.values() else {}
    return {**where, "podIndexLabel": naming.INDEX_LABEL, **together}
