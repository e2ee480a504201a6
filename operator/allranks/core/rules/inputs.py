"""Inputs that a cluster fetches: the status has what was fetched before pods of ranks exist, which read it."""

from __future__ import annotations

from allranks.core import transfers, transitions
from allranks.core.model import Event
from allranks.core.rules import Outcome, write
from allranks.core.snapshot import Snapshot
from allranks.core.status_update import changed

FAILED = "InputFailed"
"""Reason of the condition Failed."""


def receive(snapshot: Snapshot) -> Outcome:
    """Records the revisions of inputs that are ready, or fails a job with an input that cannot be fetched."""
    o = snapshot.observed
    if not transfers.unready(o):
        return None
    inputs, errors = transfers.received(o)
    if errors:
        message = "; ".join(errors)
        failed = transitions.fail(o.job, changed(o.status, inputs=inputs), FAILED, message, o.now)
        return write(failed, Event(FAILED, message, warning=True))
    news = [new for old, new in zip(o.status.inputs, inputs, strict=True) if old.state != new.state]
    if not news:
        return None
    texts = (f"input {each.name} is ready: {each.bytes} bytes, revision {each.revision}" for each in news)
    return write(changed(o.status, inputs=inputs), *(Event("Fetched", text) for text in texts))
