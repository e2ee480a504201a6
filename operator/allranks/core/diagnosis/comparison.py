"""Compares a failure with the failures before it, and with the progress of the job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from allranks.api.job import Job
from allranks.api.status import Failure, Status
from allranks.core.diagnosis.patterns import is_without_device
from allranks.core.diagnosis.reasons import CANNOT_START, FAULTS, cause_line, possible_signal
from allranks.core.facts import naming, topology

NO_PROGRESS_SECONDS = 120
"""Without progress reports, an attempt that ran for less than this counts as one without progress."""
SAME_STEP_ATTEMPTS = 3
"""Attempts that fail in the same way in the same step: no fault of a machine does that."""


@dataclass(frozen=True)
class Comparison:
    """A failure beside the failures before it. `status`: of the attempt that failed, before the failure is recorded."""

    job: Job
    status: Status
    failure: Failure

    @cached_property
    def before(self) -> Failure | None:
        """The replica's previous failure in this attempt if it restarts individually; else the previous attempt's."""
        return _just_before(self.job, self.status, self.failure)

    @cached_property
    def has_trained(self) -> bool:
        """The job made progress in some attempt, so that its program exists and can be executed.

        Progress is a reported step, or two minutes since all of its pods ran for the first time.
        """
        if self.status.progress is not None and self.status.progress.step is not None:
            return True
        since = self.status.first_running_time
        running = (self.failure.time - since).total_seconds() if since else 0.0
        return max(self.failure.ran_seconds or 0.0, running) >= NO_PROGRESS_SECONDS

    @cached_property
    def twice_before_progress(self) -> bool:
        """The program failed in the same way twice in a row, both times before any progress.

        A signal that a program causes itself repeats itself only in the same replica; other signals come from outside.
        """
        before, failure = self.before, self.failure
        if before is None or made_steps(self.status) or not (_without_progress(before) and _without_progress(failure)):
            return False
        if not same_way(before, failure):
            return False
        signal, unstarted = possible_signal(failure.exit_code, failure.signal), failure.reason in CANNOT_START
        if signal in FAULTS and not unstarted:
            return (before.role, before.index) == (failure.role, failure.index)
        exited = failure.exit_code is not None and 1 <= failure.exit_code <= 127 and signal is None
        return exited or unstarted

    @cached_property
    def same_step(self) -> int:
        """The number of attempts that failed in the same way in the same step, with this one; 0 if no other one did."""
        progress = self.status.progress
        if not made_steps(self.status) or progress is None or progress.step is None or self.failure.exit_code is None:
            return 0
        attempts = 1
        for past in reversed(self.status.history):
            if past.failure is None or past.first_step is None or not same_way(past.failure, self.failure):
                break
            steps = (past.failure.step, self.failure.step)
            of_job = (past.last_step, progress.step)
            if len({*(of_job if None in steps else steps)}) > 1:
                break
            attempts += 1
        return attempts if attempts > 1 else 0

    @property
    def step(self) -> int:
        """The step in which the rank failed, or the attempt: the one after the last completed one."""
        if self.failure.step is not None:
            return self.failure.step
        progress = self.status.progress
        return (progress.step or 0) + 1 if progress else 1

    @property
    def without_device_elsewhere(self) -> bool:
        """The program found no GPU, as before on another node: neither has one, or the program hides them."""
        before, failure = self.before, self.failure
        if before is None or None in (before.node, failure.node) or before.node == failure.node:
            return False
        return is_without_device(failure.message) and is_without_device(before.message)

    @property
    def again_on_node(self) -> bool:
        """The failure repeats the previous, counted one on the same node. The next one counts again."""
        before, failure = self.before, self.failure
        if before is None or before.because != failure.because or failure.node is None or before.node != failure.node:
            return False
        alone = self.status.replica_restarts.get(naming.replica_key(failure.role, failure.index))
        if alone is not None and alone.failure is before:
            return alone.counted
        return bool(self.status.history) and self.status.history[-1].counted


def _just_before(job: Job, status: Status, failure: Failure) -> Failure | None:
    alone = status.replica_restarts.get(naming.replica_key(failure.role, failure.index))
    if alone and alone.failure and topology.scope(job, failure.role, failure.index) == "Pod":
        return alone.failure
    return status.attempt_failure


def _without_progress(failure: Failure) -> bool:
    return (failure.ran_seconds or 0.0) < NO_PROGRESS_SECONDS


Way = tuple[object, ...]


def same_way(failure: Failure, other: Failure) -> bool:
    """Return whether two failures have the same code, signal, reason and last line, except for numbers."""
    return way(failure) == way(other)


def way(failure: Failure) -> Way:
    """Return the hashable features that two failures of the same way have in common.

    Numbers in the last line are left out: addresses, times and pids differ.
    """
    last = re.sub(r"0x[0-9a-f]+|\d+", "#", cause_line(failure))[-200:]
    return failure.exit_code, failure.signal, failure.reason, last


def made_steps(status: Status) -> bool:
    """Return whether ranks reported a step in this attempt."""
    return status.progress is not None and status.progress.first_step_time is not None


def made_progress(status: Status) -> bool:
    """Return whether this attempt stored a checkpoint, or came to a step beyond all earlier attempts.

    A job that repeats its first step in each attempt makes no progress.
    """
    progress = status.progress
    if progress is None or progress.first_step_time is None or progress.step is None:
        return False
    reached = [past.last_step for past in status.history if past.first_step is not None and past.last_step is not None]
    return progress.checkpoint_time is not None or progress.step > max(reached, default=-1)


def idle_restarts(status: Status, failure: Failure, alone: bool) -> int:
    """Return the number of restarts in a row without progress, with the one that follows this failure.

    A replica that restarts `alone` has a number of its own, and its own run time is its progress: the others may train.
    """
    entry = status.replica_restarts.get(naming.replica_key(failure.role, failure.index)) if alone else None
    ran = failure.ran_seconds
    begun = entry.restart_time if entry else status.running_time
    if begun and (ran is None or not alone):
        ran = max(ran or 0.0, (failure.time - begun).total_seconds())
    reports_steps = not alone and status.progress is not None and status.progress.step is not None
    if (made_progress(status) and not alone) or (not reports_steps and (ran or 0.0) >= NO_PROGRESS_SECONDS):
        return 0
    if alone:
        return ((entry.without_progress or 0) if entry else 0) + 1
    return (status.restarts.without_progress or 0) + 1
