"""Nodes on which an attempt does not run, because earlier attempts failed there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from allranks.core import transitions
from allranks.core.facts import bad_nodes
from allranks.core.facts.forgiveness import newly_forgiven
from allranks.core.facts.model import UNSCHEDULABLE, Event
from allranks.core.outcomes import Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot

WAIT = timedelta(seconds=300)
"""Time for the other nodes to get room: the pods of the attempt before end there, or an autoscaler adds one."""


FORGIVEN = "NodesForgiven"
"""Reason of an Event, and of an attempt whose pods wait for other nodes when a user forgives some."""


def forgive_nodes(snapshot: Snapshot) -> Outcome:
    """Stop to avoid nodes that a user forgives. Pods that wait for other nodes are created again."""
    o, status = snapshot.observed, snapshot.current
    nodes = newly_forgiven(o.job, status)
    if not nodes:
        return None
    text = f"{', '.join(nodes)}: later pods may run there"
    event = Event(FORGIVEN, text)
    if status.running_time is None and _finds_no_node(snapshot):
        summary = snapshot.summarised
        return write(transitions.give_up(o.job, summary, FORGIVEN, text, timedelta(0), o.now), event)
    left = [node for node in status.avoided_nodes if node not in nodes]
    return write(replace(status, avoided_nodes=left), event)


def _finds_no_node(snapshot: Snapshot) -> bool:
    return any(pod.node is None and pod.waiting_reason == UNSCHEDULABLE for pod in snapshot.pods.values())


def accept_excluded_nodes(snapshot: Snapshot) -> Outcome:
    """Give the excluded nodes up for the preference of others, if the pods of an attempt find no room without them."""
    o, status = snapshot.observed, snapshot.current
    nodes = bad_nodes.excluded_nodes(status)
    if not nodes or status.running_time is not None or status.attempt_time is None:
        return None
    if not _finds_no_node(snapshot):
        return None
    due = max(status.restart_time or status.attempt_time, status.attempt_time) + WAIT
    if o.now < due:
        return WaitUntil(due)
    reason = (
        f"no room on other nodes than {', '.join(nodes)} for {WAIT.seconds} s: the pods may run there again, "
        "although earlier attempts failed there"
    )
    begun = transitions.give_up(o.job, snapshot.summarised, bad_nodes.NO_OTHER_NODES, reason, timedelta(0), o.now)
    return write(begun, Event(bad_nodes.NO_OTHER_NODES, reason, warning=True))
