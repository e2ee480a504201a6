"""Inputs and outputs: ranks start when the inputs are ready, and the job succeeds when its outputs are uploaded.

`status.outputs` says that an upload begins, ahead of it. No rule about failures applies from then on."""

from __future__ import annotations

from dataclasses import replace

from allranks.api.data import InputStatus
from allranks.core import transitions
from allranks.core.facts.model import INPUT_FAILED, Event
from allranks.core.outcomes import Outcome, write
from allranks.core.snapshot import Snapshot
from allranks.core.transfers import pods as transfers
from allranks.core.transfers import uploads


def receive(snapshot: Snapshot) -> Outcome:
    """Record the revisions of inputs that are ready, or fail a job with an input that cannot be fetched."""
    o = snapshot.observed
    if not transfers.unready(o):
        return None
    inputs, errors = transfers.received(o)
    if errors:
        message = "; ".join(errors)
        failed = transitions.fail(replace(o.current, inputs=inputs), INPUT_FAILED, message, o.now)
        return write(failed, Event(INPUT_FAILED, message, warning=True))
    news = [new for old, new in zip(o.current.inputs, inputs, strict=True) if old.state != new.state]
    if not news:
        return None
    return write(replace(o.current, inputs=inputs), *(_event(state) for state in news))


def _event(state: InputStatus) -> Event:
    details = f"{state.bytes} bytes, revision {state.revision}"
    if state.location in ("Node", "Pod"):
        return Event("RevisionFound", f"input {state.name} is fetched by each {state.location.lower()}: {details}")
    return Event("Fetched", f"input {state.name} is ready: {details}")


def fail_in_pods(snapshot: Snapshot) -> Outcome:
    """Fail a job if a pod says that its inputs cannot be fetched."""
    o = snapshot.observed
    pod = next((pod for pod in snapshot.pods.values() if pod.waiting_reason == INPUT_FAILED), None)
    if pod is None:
        return None
    message = f"{pod.waiting_message} (pod {pod.name} on node {pod.node})"
    failed = transitions.fail(snapshot.summarised, INPUT_FAILED, message, o.now)
    return write(failed, Event(INPUT_FAILED, message, warning=True))


UNCHECKED = "OutputUnchecked"
"""Reason of an Event."""


def receive_checks(snapshot: Snapshot) -> Outcome:
    """Record that files can be written to the destinations, or fail a job with a destination that cannot be written."""
    o = snapshot.observed
    if not transfers.unready(o):
        return None
    outputs, errors, notes = transfers.checked(o)
    if errors:
        message = "; ".join(errors)
        failed = transitions.fail(replace(o.current, outputs=outputs), uploads.FAILED, message, o.now)
        return write(failed, Event(uploads.FAILED, message, warning=True))
    if outputs == o.current.outputs:
        return None
    return write(replace(o.current, outputs=outputs), *(Event(UNCHECKED, note, warning=True) for note in notes))


def end_uploads(snapshot: Snapshot) -> Outcome:
    """End a job whose outputs are all uploaded, or with an output that cannot be uploaded."""
    o = snapshot.observed
    outputs = uploads.observed(o)
    if any(output.state == "Uploading" for output in outputs):
        return uploads.next_deadline(o)
    status = replace(snapshot.summarised_at_end, outputs=outputs)
    failed = [output for output in outputs if output.state == "Failed"]
    if not failed:
        return write(transitions.succeed(status, o.now), Event("Succeeded", "training completed"))
    message = "the program completed, but " + "; ".join(
        f"output {output.name} is not uploaded: {uploads.upload_error(o, output)}" for output in failed
    )
    return write(transitions.fail(status, uploads.FAILED, message, o.now), Event(uploads.FAILED, message, warning=True))


def upload_after_failure(snapshot: Snapshot) -> Outcome:
    """Begin the upload of outputs of a failed job with `when: Always`, and record its result.

    A checkpoint whose upload was due before is uploaded as well.
    """
    o = snapshot.observed
    if o.current.phase != "Failed":
        return None
    always = {
        output.name for output in o.job.spec.outputs or () if uploads.began(o.current) and output.when == "Always"
    }
    outputs = [
        replace(output, state="Uploading", start_time=o.now)
        if (output.state == "Pending" and output.name in always)
        or (output.state == "Uploading" and output.start_time is None)
        else output
        for output in uploads.observed(o)
    ]
    if outputs == o.current.outputs:
        return uploads.next_deadline(o)
    events = [
        Event(uploads.FAILED, f"output {new.name} is not uploaded: {uploads.upload_error(o, new)}", warning=True)
        for old, new in zip(o.current.outputs, outputs, strict=True)
        if (old.state, new.state) == ("Uploading", "Failed")
    ]
    return write(replace(o.current, outputs=outputs), *events)
