"""Detects hangs: no rank completed a step for `hang.timeoutSeconds`, or no first step within `startupDeadlineSeconds`.

Only messages are evidence: half of the ranks must say that there was no step, for silence is usually a fault of the
network (`report_loss`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import Failure, ProgressStatus, Status
from allranks.core.diagnosis import report_loss, stalled_ranks
from allranks.core.diagnosis.stalled_ranks import Suspects
from allranks.core.facts.rank_reports import Collectives, RankReport, Reports
from allranks.text import joined

REASON = "Hang"
NO_FIRST_STEP = "NoFirstStep"
NO_REPORTS = "NoReports"
"""Reason of an Event and of the condition Running: `hang` is set, and no rank reports."""
STACK_DUMP_WAIT = timedelta(seconds=10)
"""Time for stack dumps: ranks receive the request with the answer to their next report, within 5 s."""
_JITTER = timedelta(seconds=2)
"""Ranks report ages, so the same step gives slightly different times."""
_SILENCE_FACTOR, _SILENCE_LEAST = 10, timedelta(hours=1)
"""Silence counts as a hang after ten timeouts, at least an hour: a program that holds the interpreter lock, or that is
frozen, sends nothing."""


@dataclass(frozen=True, slots=True)
class StallWindow:
    """The time since the last progress of any rank, and when it becomes a hang."""

    moved_at: datetime
    """Time of the last step, or of the start if there was none."""
    since: datetime
    """Start of the stall as far as it was observed: not before the report server started to listen, nor before reports
    that were lost arrived again."""
    stuck_at: datetime
    """From this time on ranks are asked for stack dumps."""
    due_at: datetime
    """From this time on the stall is a failure."""
    stack_dump_id: str
    """Differs between stalls, and is the same after a restart of the operator."""
    heard_at: datetime
    """Until this time, messages of at least half of the ranks say that there was no step."""
    silent_due_at: datetime
    """From this time on silence is a failure, if ranks of other jobs of the namespace report."""

    @property
    def confirmed(self) -> bool:
        """Ranks themselves said that there was no step for the whole timeout."""
        return self.heard_at >= self.stuck_at


def detect_stall(job: Job, status: Status, reports: Reports | None) -> StallWindow | None:
    """Return the current stall.

    None if no progress is expected: all ranks are done, the program does not report steps, or `hang` is not set and the
    program has stepped.
    """
    if reports is None or status.attempt_time is None or not reports.ranks:
        return None
    if all(rank.done for rank in reports.ranks):
        return None
    first = status.progress.first_step_time if status.progress else None
    if job.spec.hang is None and (first or not _announces_steps(reports.ranks)):
        return None
    if first:
        assert job.spec.hang
        moves = [rank.stepped_at for rank in reports.ranks if rank.stepped_at]
        moved_at = max([first, *moves])
        limit = timedelta(seconds=job.spec.hang.timeout_seconds)
    elif status.running_time:
        # Imports, data loading and rendezvous have no steps that would distinguish a slow start from a hang.
        moved_at = status.running_time
        limit = timedelta(seconds=job.spec.startup_deadline_seconds)
    else:
        return None
    since = max(moved_at, reports.since)
    stack_dump_id = f"{status.attempt}-{max(rank.step or 0 for rank in reports.ranks)}"
    heard_at = _heard_at(reports, since)
    since = max(since, report_loss.resumed_at(status, heard_at) or since)
    heard_at = max(heard_at, since)
    stuck_at = since + limit
    silent_due_at = heard_at + max(_SILENCE_FACTOR * limit, _SILENCE_LEAST)
    return StallWindow(moved_at, since, stuck_at, stuck_at + STACK_DUMP_WAIT, stack_dump_id, heard_at, silent_due_at)


def _heard_at(reports: Reports, since: datetime) -> datetime:
    ranks = report_loss.active(reports)
    if not ranks and reports.any_job_at is not None:
        return max(since, reports.any_job_at)
    return report_loss.heard_at(ranks, since)


def _announces_steps(ranks: Sequence[RankReport]) -> bool:
    """Return whether ranks of a program that reports its steps wait for the first one.

    It has reported their number, or that it measures them, and nothing else yet. A `logPattern` that never matches, a
    program that reports epochs or metrics only, and the status of a trainer do not count.
    """
    announced = False
    for rank in ranks:
        if not rank.heartbeat:
            return False
        values = (rank.step, rank.epoch, rank.samples_per_second, rank.checkpoint_step)
        if rank.metrics or any(value is not None for value in values):
            return False
        announced = announced or rank.total_steps is not None or rank.waiting is not None
    return announced


# --- a job whose ranks do not report ----------------------------------------------------------------------------------

COLLECTIVES_STOPPED = "CollectivesStopped"
"""Reason of an Event and of the condition Running: `hang` is set, no rank reports, and NCCL says that no rank launches
collectives."""
_NOT_REPORTED = "hang: no rank has reported yet"
UNREPORTED = (
    f"{_NOT_REPORTED}; a hang cannot be detected without reports (call report(step=...) in the program, "
    "or set progress.logPattern)"
)


def unreported_at(job: Job, status: Status, reports: Reports | None) -> datetime | None:
    """Return when to report that `hang` has no effect, because no rank reports; None if ranks report or need not."""
    if job.spec.hang is None or reports is None or reports.ranks or status.running_time is None:
        return None
    if status.progress is not None and status.progress.reporting:
        return None  # a restarted operator has not received their reports yet
    return max(status.running_time, reports.since) + timedelta(seconds=job.spec.hang.timeout_seconds)


def stopped_note(job: Job, reports: Reports | None, now: datetime) -> tuple[str, datetime | None]:
    """Return (message, None) if collectives have stopped for `hang.timeoutSeconds`, and ("", time) before that.

    The message replaces `UNREPORTED`. It is no evidence of a hang, so nothing restarts.
    """
    collectives = reports.collectives if reports else None
    if collectives is None or job.spec.hang is None or not collectives_recent(collectives, now):
        return "", None
    stopped_at = collectives.moved_at + timedelta(seconds=job.spec.hang.timeout_seconds)
    if now < stopped_at:
        return "", stopped_at
    since = f"no rank has launched a collective since {collectives.moved_at:%H:%M:%S} UTC"
    return f"{_NOT_REPORTED}; {since}; NCCL: {collectives_sentence(collectives)}", None


# --- what is said about a hang ----------------------------------------------------------------------------------------


def path_works(reports: Reports, now: datetime) -> bool:
    """Return whether ranks of any job of the namespace report."""
    return reports.any_job_at is not None and now - reports.any_job_at < report_loss.SILENCE


def failure(job: Job, status: Status, reports: Reports, stall: StallWindow, now: datetime) -> Failure:
    """Return the hang as a failure of the rank for which the others wait; of no rank if nothing distinguishes one."""
    suspects = stalled_ranks.suspects(reports.ranks)
    began = status.running_time or status.attempt_time or now
    hang = Failure(
        attempt=status.attempt,
        reason=REASON if status.progress and status.progress.first_step_time else NO_FIRST_STEP,
        message=_message(job, reports, suspects, stall) + collectives_explanation(reports, stall.moved_at, now),
        time=stall.moved_at,
        ran_seconds=max(0.0, (now - began).total_seconds()),
    )
    ranks = suspects.ranks or _behind_for_nccl(reports, stall.moved_at, now)
    if not ranks:
        return hang
    first = ranks[0]
    return replace(hang, role=first.role, index=first.index, rank=first.rank, pod=first.pod, node=first.node)


def silence_failure(failure: Failure, stall: StallWindow) -> Failure:
    """Return the failure when ranks are silent, instead of reporting that there was no step."""
    message = (
        f"no report since {stall.heard_at:%H:%M:%S} UTC, although other ranks report: "
        "the processes are frozen, or hold the interpreter lock"
    )
    return replace(failure, message=message)


def already_recorded(status: Status, stall: StallWindow) -> bool:
    """Return whether `status.lastFailure` is this stall. With action `Ignore` it is recorded only once."""
    last = status.last_failure
    return last is not None and last.reason in (REASON, NO_FIRST_STEP) and last.time >= stall.moved_at - _JITTER


def _message(job: Job, reports: Reports, suspects: Suspects, stall: StallWindow) -> str:
    active = [rank for rank in reports.ranks if not rank.done]
    if all(rank.step is None for rank in active):
        limit = job.spec.startup_deadline_seconds
        problem = f"no rank completed a first step within {limit} s"
        reporting = f"ranks that report: {stalled_ranks.named(active)}"
        details = f"{reporting}; {suspects.sentence}" if suspects.ranks else reporting
        return f"{problem} (startupDeadlineSeconds: raise it if the start takes longer); {details}"
    stalled = _stalled(stall.moved_at)
    if not suspects.ranks and not any(rank.heartbeat for rank in active):
        furthest = max(rank.step or 0 for rank in active)
        return f"{stalled}: the trainer of {stalled_ranks.named(active)} has sent no status after step {furthest}"
    return f"{stalled}: {suspects.sentence}"


def _stalled(moved_at: datetime) -> str:
    return f"no rank has completed a step since {moved_at:%H:%M:%S} UTC"


STILL = timedelta(seconds=30)
"""Time without a step after which it is said for what the ranks wait."""
_STEPS = 20
"""The time is also at least the time of this many steps."""
_LONGEST = 2048
"""Characters, as in the CRD."""


def stall_sentence(before: ProgressStatus, after: ProgressStatus, reports: Reports, now: datetime) -> str | None:
    """Return for which rank the others wait, or for what all wait, also in a job without `hang`; nothing restarts.

    For example `no rank has completed a step since 14:03:12 UTC (usually one in 0.05 s): rank 1 ...`; None if the job
    makes steps, has made all of them, or a rank may be at work for which none waits. During a stall the first sentence
    stays.
    """
    if after.last_report is None or after.first_step_time is None or _complete(after):
        return None
    if before.stalled and before.step == after.step:
        return before.stalled
    usual = max((rank.step_seconds for rank in reports.ranks if rank.step_seconds), default=0.0)
    if now - after.last_report < max(STILL, _STEPS * timedelta(seconds=usual)):
        return None
    suspects = stalled_ranks.suspects(reports.ranks)
    if not suspects.awaited and not stalled_ranks.all_idle(reports.ranks):
        return None
    if report_loss.heard_at(report_loss.active(reports), after.last_report) < after.last_report + STILL:
        return None  # ranks that are silent may make steps
    pace = f" (usually one in {usual:.2g} s)" if usual else ""
    return f"{_stalled(after.last_report)}{pace}: {suspects.sentence}"[:_LONGEST]


def _complete(progress: ProgressStatus) -> bool:
    return progress.total_steps is not None and (progress.step or 0) >= progress.total_steps


# --- what NCCL says ---------------------------------------------------------------------------------------------------

COLLECTIVES_RECENT = timedelta(seconds=90)
"""Rank 0 asks every 30 s."""


def collectives_recent(collectives: Collectives, now: datetime) -> bool:
    return now - collectives.received_at <= COLLECTIVES_RECENT


def collectives_explanation(reports: Reports, since: datetime, now: datetime) -> str:
    """Return the end of the message of a hang that began at `since`: `; NCCL: ...`, or an empty text."""
    collectives = reports.collectives
    if collectives is None or not collectives_recent(collectives, now) or collectives.received_at < since:
        return ""
    return f"; NCCL: {collectives_sentence(collectives)}"


def _behind_for_nccl(reports: Reports, since: datetime, now: datetime) -> tuple[RankReport, ...]:
    """Return the ranks that NCCL cannot reach or that have not launched what others have, if it numbers all ranks of
    the job."""
    collectives = reports.collectives
    if (
        collectives is None
        or collectives.size != len(reports.ranks)
        or not collectives_explanation(reports, since, now)
    ):
        return ()
    numbers = sorted({*collectives.missing, *collectives.behind})
    by_number = {rank.rank: rank for rank in reports.ranks}
    return tuple(by_number[number] for number in numbers if number in by_number)


def collectives_sentence(collectives: Collectives) -> str:
    """Return a sentence such as `rank 5 of 8 has not launched AllReduce 6650, which others have`."""
    parts = []
    size = collectives.size
    if collectives.missing_count:
        parts.append(f"{_some_ranks(collectives.missing, collectives.missing_count, size)} cannot be reached")
    if collectives.operation:
        behind = _some_ranks(collectives.behind, collectives.behind_count, size)
        verb = "has" if collectives.behind_count == 1 else "have"
        parts.append(f"{behind} {verb} not launched {collectives.operation} {collectives.number}, which others have")
    return ", and ".join(parts) or f"all {size} ranks of its largest group have launched the same collectives"


def _some_ranks(named: tuple[int, ...], count: int, size: int) -> str:
    """Return `rank 5 of 8`, `ranks 1, 3 and 7 of 8`, or `ranks 0, 1, 2 and 9 more of 64`."""
    numbers = [str(rank) for rank in named]
    if count > len(named):
        numbers.append(f"{count - len(named)} more")
    listed = joined(numbers, "and") if numbers else "some"
    return f"{'rank' if count == 1 else 'ranks'} {listed} of {size}"
