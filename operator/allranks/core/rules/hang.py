"""Restarts all ranks when they say that none of them makes progress, unless a rule of the user says otherwise."""

from __future__ import annotations

from allranks.core import transitions
from allranks.core.diagnosis import hang_detection, report_loss, restart_policy
from allranks.core.facts.model import Event
from allranks.core.facts.status_update import changed
from allranks.core.outcomes import Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot


def handle_hang(snapshot: Snapshot) -> Outcome:
    """Waits for the two ends of the stall window: `sync_objects` requests stack dumps at the first, this rule acts at
    the second."""
    o, stall = snapshot.observed, snapshot.stall_window
    if stall is None or o.reports is None:
        return None
    if o.now < stall.due_at:
        return WaitUntil(stall.stuck_at if o.now < stall.stuck_at else stall.due_at)
    if not stall.confirmed:
        if o.job.spec.hang is None:
            return None  # silence alone is no reason to end ranks of a job without `hang`
        if o.now < stall.silent_due_at:
            return WaitUntil(stall.silent_due_at)  # A message causes a reconcile before that.
        if not hang_detection.path_works(o.reports, o.now):
            return WaitUntil(o.now + report_loss.SILENCE)
    failure = hang_detection.failure(o.job, o.current, o.reports, stall, o.now)
    if not stall.confirmed:
        failure = hang_detection.silence_failure(failure, stall)
    decision = restart_policy.decide_after_hang(o.job, o.current, failure, o.platform)
    event = Event(failure.reason, f"{failure.message}: {decision.why}", warning=True)
    if decision.action == "Fail":
        failed = transitions.fail(o.job, snapshot.summarised, decision.reason, failure.message, o.now, failure)
        return write(failed, event)
    if decision.action == "Ignore":
        recorded = hang_detection.already_recorded(o.current, stall)
        return None if recorded else write(changed(o.current, last_failure=failure), event)
    counted = decision.action == "Restart"
    restarted = transitions.restart(o.job, o.current, failure, counted, decision.why, o.now)
    return write(restarted, event, Event("Restarting", decision.why))
