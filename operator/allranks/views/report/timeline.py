"""Divides the time of a job into attempts and segments, from its status. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from pydantic import ConfigDict

from allranks.api.status import FINISHED, WITHOUT_PODS, Failure, PastAttempt, Status
from allranks.core.accounting.time_accounting import restarted
from allranks.core.facts.naming import replica_key
from allranks.local.run_directories import INTERRUPTED
from allranks.views.format.json_form import CONFIG
from allranks.views.format.outcome import ended_how, next_begin

FORGOTTEN = "forgotten"
"""Kind of the time of attempts that were dropped from the status, which keeps ten."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of an attempt, or of the time between attempts."""

    kind: str
    """queued, starting, productive, lost, uploading, or forgotten for attempts that the status no longer has."""
    begin: float
    """Seconds since the creation of the job."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an attempt ended, or a replica was restarted: the first failure."""

    reason: str
    who: str
    """The replica, as ROLE-INDEX."""
    rank: int | None
    node: str
    how: str
    """`exit code 1`, `signal 9 (SIGKILL)`."""
    exit_code: int | None
    signal: int | None
    last_line: str
    """Of its log."""
    verdict: str
    """Whose fault it is: the `verdict` of the failure. Empty in statuses of older versions."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt. Only the last one can be running (`over` is false)."""

    __pydantic_config__: ClassVar[ConfigDict] = CONFIG

    number: int
    begin: float
    """Seconds since the creation of the job."""
    end: float
    """Seconds since the creation of the job."""
    over: bool
    reason: str
    counted: bool
    """It counts toward restart.maxRestarts."""
    waited: bool
    """The job was suspended after it, or waited in a queue."""
    first_step: int | None
    last_step: int | None
    segments: tuple[Segment, ...]
    cause: Cause | None
    next_began: str = ""
    """How the attempt after it began: in the same pods, or why it has new ones; empty if that is not recorded."""


class Timeline:
    """Reconstructs the segments of each attempt."""

    def __init__(
        self,
        status: Status,
        began: datetime,
        until: datetime,
        times: Mapping[str, float],
        *,
        interrupted: bool = False,
    ) -> None:
        """`interrupted`: nothing runs the job any more, although it has not finished."""
        self._status, self._began, self._until, self._interrupted = status, began, until, interrupted
        # The status has only the sum of the queued time: it is assigned to the earliest attempts.
        self._queued = times.get("queued", 0.0)
        self._uploading = times.get("uploading", 0.0)
        """At the end of the last attempt."""

    def attempts(self) -> Iterator[Attempt]:
        status = self._status
        self._queued -= sum(self._seconds(a, b) for a, b in self._suspended())
        for position, past in enumerate(status.history):
            begin = past.start_time or past.end_time
            before = status.history[:position]
            uploading = self._uploading if past.attempt == status.attempt else 0.0
            parts = self._parts(before, past.attempt, begin, past.end_time, *self._worked(past), uploading)
            yield Attempt(
                number=past.attempt,
                begin=self._at(begin),
                end=self._at(past.end_time),
                over=True,
                reason=past.reason,
                counted=past.counted,
                waited=_waited(past),
                first_step=past.first_step if past.first_step is not None else self._step(past, "first_step"),
                last_step=past.last_step if past.last_step is not None else self._step(past, "step"),
                segments=tuple(parts),
                cause=cause_of(past.failure) if past.failure else None,
                next_began=next_begin(past),
            )
        if self._has_running_attempt():
            begin = status.attempt_time or self._began
            since = status.times.productive_since if status.times else status.running_time
            productive = max(0.0, self._seconds(since, self._until) - self._uploading) if since else 0.0
            parts = self._parts(status.history, status.attempt, begin, self._until, productive, 0.0, self._uploading)
            progress = status.progress
            yield Attempt(
                number=status.attempt,
                begin=self._at(begin),
                end=self._at(self._until),
                over=self._interrupted,
                reason=INTERRUPTED if self._interrupted else "",
                counted=False,
                waited=False,
                first_step=progress.first_step if progress else None,
                last_step=progress.step if progress else None,
                segments=tuple(parts),
                cause=None,
            )

    def between(self, attempts: tuple[Attempt, ...]) -> Iterator[Segment]:
        """Yield the time that belongs to no attempt."""
        place = 0.0
        for number, attempt in enumerate(attempts):
            if attempt.begin > place and not attempt.number:
                yield Segment("queued", place, attempt.begin - place)
            elif attempt.begin > place:
                kind = "queued" if attempts[number - 1].waited else "lost"
                kind = kind if number else FORGOTTEN
                yield Segment(kind, place, attempt.begin - place)
            place = max(place, attempt.end)
        if (end := self._at(self._until)) > place and self._status.phase not in FINISHED:
            yield Segment("queued", place, end - place)

    def _parts(
        self,
        before: list[PastAttempt],
        number: int,
        begin: datetime,
        end: datetime,
        productive: float,
        lost: float,
        uploading: float,
    ) -> Iterator[Segment]:
        """Segments of one attempt: queued, then starting (lost after a failure), productive, lost, uploading."""
        place, whole = self._at(begin), max(0.0, self._seconds(begin, end) - uploading)
        front = max(0.0, whole - productive - lost)
        early = place if not number else 0.0
        queued = min(front, max(0.0, self._queued - early)) if before or not number else 0.0
        self._queued = max(0.0, self._queued - early - queued)
        again = restarted(before) if before else number > 0
        kinds = (("queued", queued), ("lost" if again else "starting", front - queued))
        for kind, seconds in (*kinds, ("productive", productive), ("lost", lost), ("uploading", uploading)):
            if seconds > 0:
                yield Segment(kind, place, seconds)
                place += seconds

    def _worked(self, past: PastAttempt) -> tuple[float, float]:
        """Return (productive, lost) seconds of a past attempt."""
        if past.productive_seconds is not None:
            return past.productive_seconds, past.lost_seconds or 0.0
        status, since = self._status, past.running_time if self._status.times is None else None
        if past.attempt == status.attempt and status.phase in FINISHED:
            # The last attempt of the job: no restart discarded its work.
            first = status.progress.first_step_time if status.progress else None
            since = first if status.times and status.times.measured else past.running_time
        return (max(0.0, self._seconds(since, past.end_time) - self._uploading) if since else 0.0), 0.0

    def _step(self, past: PastAttempt, name: str) -> int | None:
        progress = past.attempt == self._status.attempt and self._status.progress
        return getattr(progress, name) if progress else None

    def _suspended(self) -> Iterator[tuple[datetime, datetime]]:
        """Yield (end of a suspended attempt, begin of the next one)."""
        history = self._status.history
        begins = [past.start_time for past in history[1:]]
        begins.append(self._status.attempt_time if self._has_running_attempt() else self._until)
        for past, begin in zip(history, begins, strict=False):
            if _waited(past) and begin:
                yield past.end_time, begin

    def _has_running_attempt(self) -> bool:
        status = self._status
        recorded = bool(status.history) and status.history[-1].attempt >= status.attempt
        return bool(status.attempt_time) and not recorded and status.phase not in FINISHED | WITHOUT_PODS

    def _at(self, time: datetime) -> float:
        return self._seconds(self._began, min(time, self._until))

    @staticmethod
    def _seconds(begin: datetime, end: datetime) -> float:
        return max(0.0, (end - begin).total_seconds())


def _waited(past: PastAttempt) -> bool:
    """Return whether the job had no pods after the attempt until the next one."""
    return past.reason == "Suspended" or bool(past.requeued)


def cause_of(failure: Failure) -> Cause:
    """Return the failure in the form of the report."""
    lines = [line.strip() for line in failure.message.splitlines() if line.strip()]
    return Cause(
        reason=failure.reason,
        who=replica_key(failure.role, failure.index),
        rank=failure.rank,
        node=failure.node or "",
        how=ended_how(failure.exit_code, failure.signal, failure.reason),
        exit_code=failure.exit_code,
        signal=failure.signal,
        last_line=lines[-1] if lines else "",
        verdict=failure.verdict or "",
    )
