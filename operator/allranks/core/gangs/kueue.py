"""Gang admission by Kueue: the job gets the quota for all of its pods or for none.

The Workload is made by the rules for queues. Nothing is added to the pods, and the scheduler still places them one by
one, so `contention` remains in force.
"""

from __future__ import annotations

from allranks.core.gangs.base import Backend, Gang, PodPart
from allranks.core.model import Manifest
from allranks.core.optional_kinds import WORKLOAD


class Kueue(Backend):
    name = "Kueue"
    kind = WORKLOAD
    cure = "install Kueue"

    def pod_group_spec(self, gang: Gang, version: str) -> Manifest | None:
        return None

    def pod_part(self, gang: Gang, role: str) -> PodPart:
        return PodPart()
