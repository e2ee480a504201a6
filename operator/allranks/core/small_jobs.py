"""Small jobs: their pods need not wait until their first status is persisted."""

from __future__ import annotations

from allranks.core import transitions
from allranks.core.facts import topology
from allranks.core.facts.model import Observed
from allranks.core.facts.queue import queue_of
from allranks.core.facts.stage import Stage, stage_of
from allranks.core.objects.gangs import choice as gang_choice
from allranks.core.objects.gangs import registry
from allranks.core.rejection import reject
from allranks.core.transfers import pods as transfers

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
    if registry.requested(job) or gang_choice.choose(job, begun, observed.platform, observed.optional):
        return observed  # pods are made for a backend that is persisted
    small = sum(topology.sizes(job, begun).values()) <= SMALL_JOB_PODS
    refused = not small or reject(job, begun, observed.now, observed.platform)
    return observed if refused else observed.with_current(begun)
