"""The stages of a job: each has its own rules."""

from __future__ import annotations

from enum import Enum, auto

from allranks.api.job import MANAGED_BY
from allranks.api.status import FINISHED
from allranks.core.facts.model import Observed
from allranks.core.facts.uploads import uploading_since


class Stage(Enum):
    """The stage of a job. Its rules, its sync and its finish follow from it."""

    ELSEWHERE = auto()
    """It is being deleted, or another controller manages it."""
    BEGINNING = auto()
    """A small job whose first pods are created before its first status is persisted (`beginning`)."""
    ACTIVE = auto()
    SUSPENDED = auto()
    QUEUED = auto()
    UPLOADING = auto()
    """Its program has completed, and it waits for its outputs."""
    FINISHED = auto()


def stage_of(o: Observed) -> Stage:
    """Return the stage of an observed job."""
    if o.job.metadata.deletion_timestamp or (o.job.spec.managed_by or MANAGED_BY) != MANAGED_BY:
        return Stage.ELSEWHERE
    if o.persisted.phase in FINISHED:
        return Stage.FINISHED
    if o.persisted.start_time is None and o.current.start_time is not None:
        return Stage.BEGINNING
    if o.persisted.phase == "Queued":
        return Stage.QUEUED
    if o.persisted.phase == "Suspended":
        return Stage.SUSPENDED
    return Stage.UPLOADING if uploading_since(o.persisted) else Stage.ACTIVE
