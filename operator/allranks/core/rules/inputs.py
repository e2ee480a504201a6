"""Inputs that a cluster fetches: the status has what was fetched, or its revision, before pods of ranks exist."""

from __future__ import annotations

from allranks.api.data import InputStatus
from allranks.core import transitions
from allranks.core.facts.model import INPUT_FAILED, Event
from allranks.core.facts.status_update import changed
from allranks.core.outcomes import Outcome, write
from allranks.core.snapshot import Snapshot
from allranks.core.transfers import pods as transfers


def receive(snapshot: Snapshot) -> Outcome:
    """Records the revisions of inputs that are ready, or fails a job with an input that cannot be fetched."""
    o = snapshot.observed
    if not transfers.unready(o):
        return None
    inputs, errors = transfers.received(o)
    if errors:
        message = "; ".join(errors)
        failed = transitions.fail(o.job, changed(o.current, inputs=inputs), INPUT_FAILED, message, o.now)
        return write(failed, Event(INPUT_FAILED, message, warning=True))
    news = [new for old, new in zip(o.current.inputs, inputs, strict=True) if old.state != new.state]
    if not news:
        return None
    return write(changed(o.current, inputs=inputs), *(_event(each) for each in news))


def _event(each: InputStatus) -> Event:
    what = f"{each.bytes} bytes, revision {each.revision}"
    if each.location in ("Node", "Pod"):
        return Event("RevisionFound", f"input {each.name} is fetched by each {each.location.lower()}: {what}")
    return Event("Fetched", f"input {each.name} is ready: {what}")


def fail_in_pods(snapshot: Snapshot) -> Outcome:
    """Fails a job if a pod says that its inputs cannot be fetched."""
    o = snapshot.observed
    pod = next((pod for pod in snapshot.pods.values() if pod.waiting_reason == INPUT_FAILED), None)
    if pod is None:
        return None
    message = f"{pod.waiting_message} (pod {pod.name} on node {pod.node})"
    failed = transitions.fail(o.job, snapshot.summarised, INPUT_FAILED, message, o.now)
    return write(failed, Event(INPUT_FAILED, message, warning=True))
