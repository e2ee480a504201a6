"""The gang scheduling backends by their names in `scheduling.gang`."""

from __future__ import annotations

from collections.abc import Mapping

from allranks.api.job import Job
from allranks.core.objects.gangs.base import Backend
from allranks.core.objects.gangs.coscheduling import Coscheduling
from allranks.core.objects.gangs.kueue import Kueue
from allranks.core.objects.gangs.native import Native
from allranks.core.objects.gangs.volcano import Volcano
from allranks.fields import GangBackend

BACKENDS: Mapping[GangBackend, Backend] = {each.name: each for each in (Native(), Kueue(), Volcano(), Coscheduling())}


def requested(job: Job) -> Backend | None:
    """The backend that the job names; None: it leaves the choice to the operator, or wants none."""
    gang = job.spec.scheduling.gang
    return BACKENDS.get(gang) if gang else None
