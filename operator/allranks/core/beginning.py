"""The beginning of a job: mistakes are refused, and a small job creates its pods before its first status is written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core import transitions
from allranks.core.facts import limits, topology
from allranks.core.facts.model import Event, Observed, Platform
from allranks.core.facts.queue import queue_of
from allranks.core.facts.stage import Stage, stage_of
from allranks.core.objects import pods as pod_manifests
from allranks.core.objects.gangs import backends
from allranks.core.objects.gangs import choice as gang_choice
from allranks.core.outcomes import Outcome, write
from allranks.core.transfers import data
from allranks.core.transfers import pods as transfers


def reject(job: Job, status: Status, now: datetime, platform: Platform) -> Outcome:
    """Fail a job that has mistakes which the CRD's schema cannot find, or that exceeds a limit of the platform team."""
    reason, problems = "InvalidSpec", pod_manifests.problems(job, platform)
    if not problems and not platform.local:
        problems = data.problems_on_clusters(job, platform)
    if not problems:
        reason, problems = limits.REASON, limits.violations(job, platform)
    return refuse(job, status, now, reason, problems)


def refuse(job: Job, status: Status, now: datetime, reason: str, problems: Sequence[tuple[str, str]]) -> Outcome:
    """Fail the job if there are problems, which are (field path, message)."""
    if not problems:
        return None
    message = "; ".join(f"{path}: {text}" for path, text in problems)
    return write(transitions.fail(status, reason, message, now), Event(reason, message, warning=True))


SMALL_JOB_PODS = 256
"""A job of at most this many pods begins with their creation: the API server needs about a second for them, and the
job's first status follows."""


def begin_small(observed: Observed) -> Observed:
    """Give a small job that has no status yet its first one, from which its pods follow at once.

    That write would cost as much as three pods. A crash in between is harmless because pod names are computed, unless
    the spec changed meanwhile (generation > 1): then a pod may have been created for another size, and the first
    attempt that is persisted is number 1 (`transitions.begin`).
    """
    job, status = observed.job, observed.persisted
    if stage_of(observed) is not Stage.ACTIVE or status.start_time:
        return observed
    if job.metadata.generation != 1 or job.spec.suspend or queue_of(job) or job.spec.resume_from:
        return observed
    begun = transfers.with_checks(observed, transitions.begin(job, status, observed.now))
    if transfers.unready(observed.with_current(begun)):
        return observed  # inputs are fetched, and destinations are checked, before pods are created
    if backends.requested(job) or gang_choice.choose(job, begun, observed.platform, observed.optional):
        return observed  # pods are made for a backend that is persisted
    small = sum(topology.sizes(job, begun).values()) <= SMALL_JOB_PODS
    refused = not small or reject(job, begun, observed.now, observed.platform)
    return observed if refused else observed.with_current(begun)
