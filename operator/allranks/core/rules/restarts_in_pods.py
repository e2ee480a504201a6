"""An attempt that begins in the pods of the one before, and cannot: it gets new pods."""

from __future__ import annotations

from allranks.core import transitions
from allranks.core.facts.model import Event
from allranks.core.outcomes import Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot
from allranks.core.sync import orders


def fall_back(snapshot: Snapshot) -> Outcome:
    """Give the attempt new pods when one of its pods is lost before all ranks ran, or a helper does not answer in time.

    It is the same attempt, so that it counts no second time.
    """
    status, now = snapshot.current, snapshot.observed.now
    if status.pods_of_attempt is None or status.running_time is not None:
        return None
    lost = orders.lost_pod(snapshot)
    if not lost and now < (deadline := orders.deadline(snapshot)):
        return WaitUntil(deadline)
    reason = lost or orders.unanswered(snapshot)
    message = f"attempt {status.attempt} begins with new pods: {reason}"
    return write(transitions.fall_back(status, reason, now), Event("NewPods", message, warning=True))
