"""Accounts for every second of a job: queued, starting, productive, lost, or uploading (docs/reference/semantics.md).

`status.times` holds the totals up to `since`, and the state in which time accumulates from then on. It is updated when
that state changes and with every other write of the status; in between, any reader can add the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from allranks.api.job import Job
from allranks.api.status import FINISHED, WITHOUT_PODS, PastAttempt, Status, TimeKind, Times
from allranks.core.facts.model import Plan, Pod
from allranks.core.facts.uploads import uploading_since
from allranks.core.snapshot import Snapshot


def account(snapshot: Snapshot, after: Status) -> Status:
    """Return `after` with updated times; the same object if nothing else changed and the state is the same."""
    o, before, current = snapshot.observed, snapshot.persisted, snapshot.current
    if after.start_time is None or (before.times and before.times.category == "Finished"):
        return after
    times = before.times or _opened(o.job, after, o.now)
    if not times.measured and _reports(current):
        times = _measured(current, times, o.now)
    if before.attempt_time is not None and _ended(before, after):
        times, past = _close_attempt(before, current, after, times, o.now)
        after = replace(after, history=[*after.history[:-1], past])
    measures = o.reports is not None and (o.job.spec.hang is not None or after.progress is not None)
    pods = list(snapshot.pods.values()) if after.attempt == before.attempt else []
    category, moment = _category(after, pods, o.refused, measures, o.now)
    if category == times.category and times == before.times and after == before:
        return after
    if after.attempt == before.attempt:
        times = _with_stall(times, before, after)
    moment = min(max(moment, times.since), o.now)
    times = _advanced(times, moment, _lost_reason(before))
    times = _advanced(replace(times, category=category), o.now, _lost_reason(after))
    if category == "Productive" and times.productive_since is None:
        times = replace(times, productive_since=moment)
    elif category not in ("Productive", "Uploading") and not _stalled_since(after):  # an attempt ends after its upload
        times = replace(times, productive_since=None)
    return replace(after, times=times, goodput=goodput(times) if times.measured else None)


def up_to(status: Status, now: datetime) -> Times | None:
    """Return the times up to now."""
    return _advanced(status.times, now, _lost_reason(status)) if status.times else None


def last_update(status: Status) -> datetime | None:
    """Return the latest moment in a status; None before there is any."""
    moments = [status.start_time, status.attempt_time, status.running_time, status.completion_time]
    moments += [status.history[-1].end_time if status.history else None, status.times.since if status.times else None]
    moments += [condition.last_transition_time for condition in status.conditions]
    if status.progress:
        moments += [status.progress.last_report, *(point.time for point in status.progress.curve)]
    return max((moment for moment in moments if moment), default=None)


def goodput(times: Times) -> float | None:
    """Return the productive share of the time in which the job was neither queued nor uploading; None at the start."""
    used = times.starting + times.productive + times.lost
    return round(times.productive / used, 4) if used > 0 else None


def _opened(job: Job, status: Status, now: datetime) -> Times:
    """Return times that start at creationTimestamp: time before the operator observed the job counts as queued."""
    return Times(category="Queued", since=min(job.metadata.creation_timestamp or now, status.start_time or now, now))


def _category(
    status: Status, pods: list[Pod], refused: Collection[Any], measures: bool, now: datetime
) -> tuple[TimeKind, datetime]:
    """Return the current state, and when it began."""
    if status.phase in FINISHED:
        return "Finished", status.completion_time or now
    if status.phase in WITHOUT_PODS:
        return "Queued", now
    if since := uploading_since(status):
        return "Uploading", since
    if since := _stalled_since(status):
        return "Lost", since
    if status.progress and status.progress.first_step_time:
        return "Productive", status.progress.first_step_time
    if status.running_time and not measures:
        return "Productive", status.running_time
    placed = [pod.placed_at or now for pod in pods if pod.node]
    if restarted(status.history):
        unplaced = bool(pods or refused) and not placed
        unplaceable = bool(refused) or any(pod.waiting_reason == "Unschedulable" for pod in pods)
        return ("Queued", now) if unplaced and unplaceable else ("Lost", now)
    return ("Starting", min(placed)) if placed else ("Queued", now)


def restarted(before: Iterable[PastAttempt]) -> bool:
    """Return whether an attempt replaces an earlier one that ran, instead of resuming a suspended job."""
    ran = [past.reason for past in before if past.reason != "GangTimeout"]
    return bool(ran) and ran[-1] != "Suspended"


STALLED = "Stalled"
"""The reason of lost time in which ranks waited for another rank, or for data."""


def _lost_reason(status: Status) -> str:
    return STALLED if _stalled_since(status) else _last_reason(status)


def _last_reason(status: Status) -> str:
    return status.history[-1].reason if status.history else ""


def _stalled_since(status: Status) -> datetime | None:
    """Return the time of the last step before the present stall; None if the job is not stalled."""
    running = status.phase not in FINISHED | WITHOUT_PODS
    return status.progress.last_report if running and status.progress and status.progress.stalled else None


def _with_stall(times: Times, before: Status, after: Status) -> Times:
    """Count the time since the last step as lost when a stall is noticed, and keep its length when it is over."""
    begun, over = _stalled_since(after), _stalled_since(before)
    if begun and not over and times.category == "Productive":
        return _moved(times, "Productive", "Lost", min(_seconds(begun, times.since), times.productive), STALLED)
    if _checkpoint(before) != _checkpoint(after):
        times = replace(times, stalled=None)
    began, step = times.productive_since, after.progress.last_report if after.progress else None
    if over and not begun and began and step:
        length = _seconds(over, step)
        stalled = _exact((times.stalled or 0.0) + length)
        times = _advanced(times, step, STALLED)
        return replace(times, productive_since=began + timedelta(seconds=length), stalled=stalled)
    return times


def _checkpoint(status: Status) -> datetime | None:
    return status.progress.checkpoint_time if status.progress else None


def _ended(before: Status, after: Status) -> bool:
    """Return whether this decision ends the attempt."""
    if after.phase in FINISHED | WITHOUT_PODS:
        return before.phase not in FINISHED | WITHOUT_PODS
    return after.attempt != before.attempt and before.phase not in WITHOUT_PODS


def _reports(status: Status) -> bool:
    return status.progress is not None and bool(status.progress.reporting or status.progress.first_step_time)


def _close_attempt(
    before: Status, reported: Status, after: Status, times: Times, now: datetime
) -> tuple[Times, PastAttempt]:
    """End an attempt: its work since the last checkpoint is lost, unless the job finished.

    Without progress reports all of its work counts as kept.
    """
    past, progress = after.history[-1], reported.progress
    times = _advanced(times, now, _lost_reason(before))
    if progress:
        past = replace(
            past,
            first_step=progress.first_step,
            last_step=progress.step,
            checkpoint_step=progress.checkpoint_step,
        )
    if (began := times.productive_since) is not None:
        lost, stall = 0.0, _seconds(_stalled_since(before) or now, now)
        if times.measured and after.phase not in FINISHED:
            saved = _seconds(_checkpoint(reported) or began, now) - (times.stalled or 0.0)
            lost = min(max(0.0, min(saved, _seconds(began, now))), times.productive + stall)
            times = _renamed(times, min(stall, lost), past.reason)
        times = _moved(times, "Productive", "Lost", lost - min(stall, lost), past.reason)
        kept = _exact(max(0.0, _seconds(began, uploading_since(before) or now) - max(stall, lost)))
        past = replace(past, productive_seconds=kept, lost_seconds=_exact(lost))
    return replace(times, productive_since=None, stalled=None), past


def _measured(status: Status, times: Times, now: datetime) -> Times:
    """Handle the first report of a job that counted as productive without reports: it was not, before its first
    step."""
    times = replace(times, measured=True)
    if times.category != "Productive" or times.productive_since is None:
        return times
    times = _advanced(times, now, _lost_reason(status))
    first = status.progress.first_step_time if status.progress else None
    too_early = min(_seconds(times.productive_since or now, min(first or now, now)), times.productive)
    kind: TimeKind = "Lost" if restarted(status.history) else "Starting"
    moved = _moved(times, "Productive", kind, too_early, _last_reason(status))
    return replace(moved, productive_since=first) if first else replace(moved, productive_since=None, category=kind)


def _renamed(times: Times, seconds: float, reason: str) -> Times:
    """Count time that was lost in a stall to the restart that ended it."""
    left = _exact(max(0.0, times.by_reason.get(STALLED, 0.0) - seconds))
    by_reason = {name: lost for name, lost in {**times.by_reason, STALLED: left}.items() if lost}
    return _added(replace(times, lost=_exact(times.lost - seconds), by_reason=by_reason), "Lost", seconds, reason)


def _advanced(times: Times, until: datetime, reason: str) -> Times:
    """Add the time until then to the current state."""
    seconds = _seconds(times.since, until)
    if times.category == "Finished" or seconds <= 0:
        return times
    return _added(replace(times, since=until), times.category, seconds, reason)


def _moved(times: Times, source: TimeKind, target: TimeKind, seconds: float, reason: str) -> Times:
    left = _with_total(times, source, max(0.0, _total(times, source) - seconds))
    return _added(left, target, seconds, reason)


def _added(times: Times, kind: TimeKind, seconds: float, reason: str) -> Times:
    if seconds <= 0:
        return times
    if kind == "Lost" and (reason in times.by_reason or len(times.by_reason) < 64):
        of_reason = _exact(times.by_reason.get(reason, 0.0) + seconds)
        times = replace(times, by_reason={**times.by_reason, reason: of_reason})
    return _with_total(times, kind, _total(times, kind) + seconds)


def _total(times: Times, kind: TimeKind) -> float:
    totals = {"Queued": times.queued, "Starting": times.starting, "Productive": times.productive, "Lost": times.lost}
    return totals.get(kind, times.uploading or 0.0)


def _with_total(times: Times, kind: TimeKind, seconds: float) -> Times:
    match kind:
        case "Queued":
            return replace(times, queued=_exact(seconds))
        case "Starting":
            return replace(times, starting=_exact(seconds))
        case "Productive":
            return replace(times, productive=_exact(seconds))
        case "Lost":
            return replace(times, lost=_exact(seconds))
        case "Uploading":
            return replace(times, uploading=_exact(seconds))
        case "Finished":
            raise ValueError("no time accumulates after the end of a job")


def _seconds(begin: datetime, end: datetime) -> float:
    return max(timedelta(0), end - begin).total_seconds()


def _exact(seconds: float) -> float:
    """Round to microseconds, the resolution of times: sums of floats would drift."""
    return round(seconds, 6)


def with_times(snapshot: Snapshot, plan: Plan) -> Plan:
    """Add progress and times to the status that the plan writes; there is none if nothing has changed."""
    status = account(snapshot, plan.next or snapshot.current)
    return replace(plan, next=status if status != snapshot.persisted else None)
