"""Where a job's time goes: every second of it is queued, starting, productive or lost (docs/reference/semantics.md).

`status.times` holds what is accounted for up to `since`, and what the time from then on counts as. It is brought up to
date when that changes, and whenever the status is written anyway; in between, anybody can add the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

from allranks.api.job import Job
from allranks.api.status import FINISHED, PastAttempt, Status, TimeKind, Times
from allranks.core.model import Pod


def account(
    job: Job,
    before: Status,
    seen: Status,
    after: Status,
    pods: Iterable[Pod],
    refused: Collection[Any],
    listened: bool,
    now: datetime,
) -> Status:
    """`after` with its times. `before` is the persisted status, `seen` the same with what ranks have reported since,
    `pods` are those of the present attempt, `listened` says whether reports come in at all.

    The same object when nothing else changed and the time still counts as the same.
    """
    if after.start_time is None or (before.times and before.times.state == "over"):
        return after
    times = before.times or _opened(job, after, now)
    if not times.measured and _reports(seen):
        times = _measured(seen, times, now)
    if before.attempt_time is not None and _ended(before, after):
        times, past = _thrown_away(before, seen, after, times, now)
        after = after.model_copy(update={"history": [*after.history[:-1], past]})
    measures = listened and (job.spec.hang is not None or after.progress is not None)
    present = list(pods) if after.attempt == before.attempt else []
    state, moment = _state(after, present, refused, measures, now)
    if state == times.state and times == before.times and after == before:
        return after
    moment = min(max(moment, times.since), now)
    reason = _blamed(after)
    times = _advanced(_advanced(times, moment, reason).model_copy(update={"state": state}), now, reason)
    if state != "productive":
        times = times.model_copy(update={"productive_since": None})
    elif times.productive_since is None:
        times = times.model_copy(update={"productive_since": moment})
    return after.model_copy(update={"times": times, "goodput": goodput(times)})


def up_to(status: Status, now: datetime) -> Times | None:
    """The times as they are now."""
    return _advanced(status.times, now, _blamed(status)) if status.times else None


def goodput(times: Times) -> float | None:
    """productive / (all but queued); None before there is any."""
    used = times.starting + times.productive + times.lost
    return round(times.productive / used, 4) if used > 0 else None


def _opened(job: Job, status: Status, now: datetime) -> Times:
    """A job is as old as its creation: who was not there to see it was waited for."""
    return Times(state="queued", since=min(job.metadata.creation_timestamp or now, status.start_time or now, now))


def _state(
    status: Status, pods: list[Pod], refused: Collection[Any], measures: bool, now: datetime
) -> tuple[TimeKind, datetime]:
    """What the time counts as, and since when."""
    if status.phase in FINISHED:
        return "over", status.completion_time or now
    if status.phase == "Suspended":
        return "queued", now
    first_step = status.progress.first_step_time if status.progress else None
    if first_step:
        return "productive", first_step
    if status.running_time and not measures:
        return "productive", status.running_time
    placed = [pod.placed_at or now for pod in pods if pod.node]
    if _restarted(status):
        waits = bool(pods or refused) and not placed
        unplaceable = bool(refused) or any(pod.waiting_reason == "Unschedulable" for pod in pods)
        return ("queued", now) if waits and unplaceable else ("lost", now)
    return ("starting", min(placed)) if placed else ("queued", now)


def _restarted(status: Status) -> bool:
    """The attempt began because another one ended, not because somebody resumed the job."""
    return bool(status.history) and status.history[-1].reason != "Suspended"


def _blamed(status: Status) -> str:
    return status.history[-1].reason if status.history else ""


def _ended(before: Status, after: Status) -> bool:
    """The attempt was over with this decision."""
    if after.phase in (*FINISHED, "Suspended"):
        return before.phase not in (*FINISHED, "Suspended")
    return after.attempt != before.attempt and before.phase != "Suspended"


def _reports(status: Status) -> bool:
    return status.progress is not None and bool(status.progress.reporting or status.progress.first_step_time)


def _thrown_away(before: Status, seen: Status, after: Status, times: Times, now: datetime) -> tuple[Times, PastAttempt]:
    """An attempt is over: what it did since its last checkpoint is lost, unless the job is over with it. Without
    reports nobody knows, and all of it counts as kept."""
    past, progress = after.history[-1], seen.progress
    times = _advanced(times, now, _blamed(before))
    update: dict[str, Any] = {}
    if progress:
        update = {"first_step": progress.first_step, "last_step": progress.step}
    if (began := times.productive_since) is not None:
        lost = 0.0
        if times.measured and after.phase not in FINISHED:
            saved = (progress.checkpoint_time if progress else None) or began
            lost = min(_seconds(max(saved, began), now), times.productive)
        times = _moved(times, "productive", "lost", lost, past.reason)
        update |= {"productive_seconds": _exact(max(0.0, _seconds(began, now) - lost)), "lost_seconds": _exact(lost)}
    return times.model_copy(update={"productive_since": None}), past.model_copy(update=update)


def _measured(status: Status, times: Times, now: datetime) -> Times:
    """The first report of a job that seemed to be one without: until its first step it was not productive."""
    times = times.model_copy(update={"measured": True})
    if times.state != "productive" or times.productive_since is None:
        return times
    times = _advanced(times, now, _blamed(status))
    first = status.progress.first_step_time if status.progress else None
    too_early = min(_seconds(times.productive_since or now, min(first or now, now)), times.productive)
    kind: TimeKind = "lost" if _restarted(status) else "starting"
    moved = _moved(times, "productive", kind, too_early, _blamed(status))
    return moved.model_copy(update={"productive_since": first, **({} if first else {"state": kind})})


def _advanced(times: Times, until: datetime, reason: str) -> Times:
    """The time until then counts as what it has counted as."""
    seconds = _seconds(times.since, until)
    if times.state == "over" or seconds <= 0:
        return times
    return _added(times.model_copy(update={"since": until}), times.state, seconds, reason)


def _moved(times: Times, source: TimeKind, target: TimeKind, seconds: float, reason: str) -> Times:
    left = times.model_copy(update={source: _exact(max(0.0, getattr(times, source) - seconds))})
    return _added(left, target, seconds, reason)


def _added(times: Times, kind: TimeKind, seconds: float, reason: str) -> Times:
    if seconds <= 0:
        return times
    update: dict[str, Any] = {kind: _exact(getattr(times, kind) + seconds)}
    if kind == "lost" and (reason in times.by_reason or len(times.by_reason) < 64):
        update["by_reason"] = {**times.by_reason, reason: _exact(times.by_reason.get(reason, 0.0) + seconds)}
    return times.model_copy(update=update)


def _seconds(begin: datetime, end: datetime) -> float:
    return max(timedelta(0), end - begin).total_seconds()


def _exact(seconds: float) -> float:
    """To the microsecond, as times are: sums of floats would drift."""
    return round(seconds, 6)
