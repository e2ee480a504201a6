"""Says for which rank the others wait while no rank makes a step, also in a job without `hang`. Nothing restarts."""

from __future__ import annotations

from datetime import datetime, timedelta

from allranks.api.status import ProgressStatus
from allranks.core.diagnosis import report_loss, stalled_ranks
from allranks.core.facts.rank_reports import Reports

GONE, PRESENT = timedelta(minutes=1), timedelta(minutes=5)
"""Time without a step after which a rank is named that is gone, or that may still come."""
_STEPS = 10
"""It is also at least the time of this many steps."""
_LONGEST = 2048
"""Characters, as in the CRD."""


def sentence(before: ProgressStatus, after: ProgressStatus, reports: Reports, now: datetime) -> str | None:
    """Return `no rank has completed a step since 14:03:12 UTC: rank 1 ...`; None if the job makes steps, has made all
    of them, or no rank waits for another one.

    During a stall the first sentence stays.
    """
    if after.last_report is None or after.first_step_time is None or _complete(after):
        return None
    if before.stalled and before.step == after.step:
        return before.stalled
    durations = [rank.step_seconds for rank in reports.ranks if rank.step_seconds]
    still = now - after.last_report - _STEPS * timedelta(seconds=max(durations, default=0.0))
    if still < GONE:
        return None
    suspects = stalled_ranks.suspects(reports.ranks)
    if not suspects.awaited or still < (GONE if suspects.gone else PRESENT):
        return None
    if report_loss.heard_at(report_loss.active(reports), after.last_report) < after.last_report + GONE:
        return None  # ranks that are silent may make steps
    return f"no rank has completed a step since {after.last_report:%H:%M:%S} UTC: {suspects.sentence}"[:_LONGEST]


def _complete(progress: ProgressStatus) -> bool:
    return progress.total_steps is not None and (progress.step or 0) >= progress.total_steps
