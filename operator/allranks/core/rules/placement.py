"""Nodes on which an attempt does not run, because earlier attempts failed there."""

from __future__ import annotations

from datetime import timedelta

from allranks.core import transitions
from allranks.core.diagnosis import restart_policy
from allranks.core.facts.model import UNSCHEDULABLE, Event
from allranks.core.outcomes import Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot

WAIT = timedelta(seconds=300)
"""Time for the other nodes to get room: the pods of the attempt before end there, or an autoscaler adds one."""


def accept_excluded_nodes(snapshot: Snapshot) -> Outcome:
    """Give the excluded nodes up for the preference of others, if the pods of an attempt find no room without them."""
    o, status = snapshot.observed, snapshot.current
    nodes = restart_policy.excluded_nodes(status)
    if not nodes or status.running_time is not None or status.attempt_time is None:
        return None
    if not any(pod.node is None and pod.waiting_reason == UNSCHEDULABLE for pod in snapshot.pods.values()):
        return None
    due = max(status.restart_time or status.attempt_time, status.attempt_time) + WAIT
    if o.now < due:
        return WaitUntil(due)
    reason = (
        f"no room on other nodes than {', '.join(nodes)} for {WAIT.seconds} s: the pods may run there again, "
        "although earlier attempts failed there"
    )
    begun = transitions.give_up(o.job, snapshot.summarised, restart_policy.NO_OTHER_NODES, reason, timedelta(0), o.now)
    return write(begun, Event(restart_policy.NO_OTHER_NODES, reason, warning=True))
