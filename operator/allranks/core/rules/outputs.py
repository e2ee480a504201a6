"""Outputs: uploaded when the program has completed, and the job succeeds when they are there.

The upload is a state of a running job: `status.outputs` says so, ahead of the upload, and no rule about failures
applies any more. What carries out the plans uploads when no pod runs any more, and observes the results.
"""

from __future__ import annotations

from allranks.core import transitions
from allranks.core.facts.model import Event
from allranks.core.facts.status_update import changed
from allranks.core.outcomes import Outcome, write
from allranks.core.snapshot import Snapshot
from allranks.core.transfers import outputs as uploads
from allranks.core.transfers import pods as transfers

UNCHECKED = "OutputUnchecked"
"""Reason of an Event."""


def receive_checks(snapshot: Snapshot) -> Outcome:
    """Records that files can be written to the destinations, or fails a job with one that they cannot."""
    o = snapshot.observed
    if not transfers.unready(o):
        return None
    outputs, errors, notes = transfers.checked(o)
    if errors:
        message = "; ".join(errors)
        failed = transitions.fail(o.job, changed(o.current, outputs=outputs), uploads.FAILED, message, o.now)
        return write(failed, Event(uploads.FAILED, message, warning=True))
    if outputs == o.current.outputs:
        return None
    return write(changed(o.current, outputs=outputs), *(Event(UNCHECKED, note, warning=True) for note in notes))


def finish(snapshot: Snapshot) -> Outcome:
    """Ends a job whose outputs are all uploaded, or of which one cannot be uploaded."""
    o = snapshot.observed
    outputs = uploads.observed(o)
    if any(output.state == "Uploading" for output in outputs):
        return uploads.next_deadline(o)
    status = changed(snapshot.summarised_at_end, outputs=outputs)
    failed = [output for output in outputs if output.state == "Failed"]
    if not failed:
        return write(transitions.succeed(o.job, status, o.now), Event("Succeeded", "training completed"))
    message = "the program completed, but " + "; ".join(
        f"output {output.name} is not uploaded: {uploads.why(o, output)}" for output in failed
    )
    return write(
        transitions.fail(o.job, status, uploads.FAILED, message, o.now), Event(uploads.FAILED, message, warning=True)
    )


def upload_after_failure(snapshot: Snapshot) -> Outcome:
    """Begins the upload of outputs of a failed job that are wanted always, and records its result. A checkpoint whose
    upload was due before is uploaded as well."""
    o = snapshot.observed
    if o.current.phase != "Failed":
        return None
    always = {
        output.name for output in o.job.spec.outputs or () if uploads.began(o.current) and output.when == "Always"
    }
    outputs = [
        changed(output, state="Uploading", start_time=o.now)
        if (output.state == "Pending" and output.name in always)
        or (output.state == "Uploading" and output.start_time is None)
        else output
        for output in uploads.observed(o)
    ]
    if outputs == o.current.outputs:
        return uploads.next_deadline(o)
    events = [
        Event(uploads.FAILED, f"output {new.name} is not uploaded: {uploads.why(o, new)}", warning=True)
        for old, new in zip(o.current.outputs, outputs, strict=True)
        if (old.state, new.state) == ("Uploading", "Failed")
    ]
    return write(changed(o.current, outputs=outputs), *events)
