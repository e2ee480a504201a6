"""An attempt, or one replica, that begins in the pods of the one before, and cannot: it gets new pods."""

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


def fall_back_alone(snapshot: Snapshot) -> Outcome:
    """Give a replica a new pod that could not restart alone in its pod. That restart counts no second time."""
    now, late, times = snapshot.observed.now, dict[str, str](), []
    for key, place, entry in orders.restarting_in_pods(snapshot):
        end = orders.deadline_alone(snapshot, entry)
        if reason := orders.lost_alone(snapshot, place) or (f"{key} did not start in time" if end <= now else ""):
            late[key] = reason
        else:
            times.append(min(moment for moment in (entry.restart_time, end) if moment and moment > now))
    if late:
        events = [Event("NewPods", f"a new pod for {key}: {reason}", warning=True) for key, reason in late.items()]
        return write(transitions.replace_pods(snapshot.current, late, now), *events)
    return WaitUntil(min(times)) if times else None
