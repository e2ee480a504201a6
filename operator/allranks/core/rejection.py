"""Jobs that are refused: mistakes that the CRD's schema cannot find, and limits of the platform team."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core import transitions
from allranks.core.facts import limits
from allranks.core.facts.model import Event, Platform
from allranks.core.objects import pods as pod_manifests
from allranks.core.outcomes import Outcome, write
from allranks.core.transfers import data


def reject(job: Job, status: Status, now: datetime, platform: Platform) -> Outcome:
    """Fails a job with mistakes that the CRD's schema cannot find, or that exceeds a limit of the platform team. Its
    size may change, so resizing checks it again."""
    reason, problems = "InvalidSpec", pod_manifests.problems(job)
    if not problems and not platform.local:
        problems = data.problems_on_clusters(job, platform)
    if not problems:
        reason, problems = limits.REASON, limits.violations(job, platform)
    return refuse(job, status, now, reason, problems)


def refuse(job: Job, status: Status, now: datetime, reason: str, problems: Sequence[tuple[str, str]]) -> Outcome:
    """Fails the job if there are problems, which are (field path, message)."""
    if not problems:
        return None
    message = "; ".join(f"{path}: {text}" for path, text in problems)
    return write(transitions.fail(job, status, reason, message, now), Event(reason, message, warning=True))
