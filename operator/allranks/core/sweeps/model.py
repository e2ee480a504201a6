"""The input and the result of decisions about a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from allranks.api.notify import Notification
from allranks.api.status import Status
from allranks.api.sweep import Sweep
from allranks.api.sweep_status import SweepStatus, Trial
from allranks.core.diagnosis.reasons import is_uncounted
from allranks.core.facts.model import Event, Manifest


@dataclass(frozen=True, slots=True)
class TrialJob:
    """The job of a trial, as observed."""

    name: str
    status: Status
    owned: bool = True
    """True if it belongs to this sweep."""
    suspended: bool = False
    """`spec.suspend`."""
    deleting: bool = False

    @property
    def disrupted(self) -> bool:
        """True if the job failed for reasons outside of the program."""
        failed = self.status.condition("Failed")
        if self.status.phase != "Failed" or failed is None:
            return False
        cause = self.status.last_failure
        return is_uncounted(failed.reason) or (
            failed.reason == "NoProgress" and cause is not None and is_uncounted(cause.reason)
        )


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A request for the parameters of one trial, for an algorithm that runs outside of the core."""

    number: int
    ended: tuple[Trial, ...]
    """The trials that it learns from, by number."""


CANNOT_SUGGEST = "CannotSuggest"
"""Reason of the condition Running, and of its Event, if there are no parameters for the next trial."""


@dataclass(frozen=True, slots=True)
class SweepObserved:
    """One observation of a sweep and of its jobs."""

    sweep: Sweep
    status: SweepStatus
    jobs: Mapping[str, TrialJob]
    """By name."""
    now: datetime
    suggested: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Parameters by number of the trial, for requests of the plan before."""
    rejected: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name of a job -> (reason, message) with which the API server refused to create it."""
    unsuggested: str = ""
    """Why the request for parameters of the plan before had no answer; empty if it had."""
    notifies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Occasion -> receivers that are notified about every job. Empty: the driver sends no notifications."""
    pool_notify: Sequence[Notification] = ()
    """The receivers that the pools of the trials name."""
    notified: Mapping[str, str] = field(default_factory=dict)
    """Pending entry of `status.notifications` -> the result that its delivery had."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The next requests of a driver.

    If `write_ahead`, only the status is written, and the rest is decided again after that.
    """

    status: SweepStatus | None = None
    """The status to write; None if it is unchanged."""
    write_ahead: bool = False
    create: tuple[Manifest, ...] = ()
    stop: tuple[str, ...] = ()
    """Names of jobs to suspend."""
    resume: tuple[str, ...] = ()
    """Names of jobs whose suspension ends."""
    ask: Suggestion | None = None
    events: tuple[Event, ...] = ()

    @property
    def empty(self) -> bool:
        return self.status is None and not (self.create or self.stop or self.resume) and self.ask is None


Parameters = dict[str, str]
