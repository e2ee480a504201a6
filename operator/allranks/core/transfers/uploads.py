"""The uploads of outputs: their state in the status, what is observed of them, and the condition `OutputsUploaded`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from allranks.api.data import MESSAGE_LENGTH, OutputStatus
from allranks.api.job import Job
from allranks.api.status import FINISHED, Status
from allranks.core.facts import status_summary
from allranks.core.facts.model import Event, Observed, Plan
from allranks.core.facts.uploads import Upload, checkpoint_of, uploading_since
from allranks.core.outcomes import Act, WaitUntil, write
from allranks.core.snapshot import Snapshot
from allranks.text import size

FAILED = "OutputFailed"
"""Reason of the condition Failed."""
UPLOADING = "UploadingOutputs"
UPLOAD_RETRYING = "UploadRetrying"
"""Reasons of the condition Running."""
NO_CHECKPOINT = "the program has reported no checkpoint: call report(step=..., checkpoint=True) after it is stored"
CHECKPOINT_NOT_UPLOADED = "CheckpointNotUploaded"
"""Reason of an Event."""
_SAVED_AGAIN = timedelta(seconds=5)
"""A checkpoint of the same step counts as another one if it is so much newer: times of reports vary a little."""


def uploading(status: Status) -> bool:
    """Return whether the program has completed and the job waits for its outputs."""
    return uploading_since(status) is not None


def follow_checkpoints(o: Observed) -> Status:
    """Return the status with the newest checkpoints of outputs that are uploaded while the job runs, and their uploads.

    An upload that fails decides nothing: the next checkpoint is another try.
    """
    followed, progress = _followed(o.job), o.current.progress
    if not followed or o.current.phase in FINISHED:
        return o.current
    outputs = []
    for output in o.current.outputs:
        new = _observed(o, output) if output.name in followed else output
        if output.name in followed and progress and progress.checkpoint_step is not None and progress.checkpoint_time:
            step, time = progress.checkpoint_step, progress.checkpoint_time
            last = new.checkpoint_time
            if last is None or time > last + (timedelta(0) if step != new.step else _SAVED_AGAIN):
                new = replace(new, state="Uploading", step=step, checkpoint_time=time, message=None)
        outputs.append(new)
    return o.current if outputs == o.current.outputs else replace(o.current, outputs=outputs)


def with_checkpoints(o: Observed) -> Observed:
    """Add the newest checkpoints, and the state of their uploads, to the current status."""
    return o.with_current(follow_checkpoints(o))


def with_checkpoint_events(snapshot: Snapshot, plan: Plan) -> Plan:
    """Add an Event for each change of an upload of a checkpoint since the persisted status."""
    events = _checkpoint_events(snapshot.observed)
    return replace(plan, events=(*plan.events, *events)) if events else plan


def _checkpoint_events(o: Observed) -> list[Event]:
    followed, events = _followed(o.job), []
    before = {output.name: output for output in o.persisted.outputs}
    for new in o.current.outputs if o.current.phase not in FINISHED else ():
        old = before.get(new.name)
        if old is None or new.name not in followed or new == old:
            continue
        if new.uploaded_step != old.uploaded_step or (new.state, old.state) == ("Uploaded", "Uploading"):
            text = f"output {new.name}: the checkpoint of step {new.uploaded_step} is uploaded"
            events.append(Event("CheckpointUploaded", text))
        if new.message and (new.state != old.state or not old.message):
            reason = UPLOAD_RETRYING if new.state == "Uploading" else CHECKPOINT_NOT_UPLOADED
            problem = "" if new.step is None else f"the checkpoint of step {new.step} is not uploaded yet: "
            text = f"output {new.name}: {problem}{new.message}"
            events.append(Event(reason, text, warning=True))
    return events


def _followed(job: Job) -> set[str]:
    return {output.name for output in job.spec.outputs or () if output.when == "Checkpoint"}


def began(status: Status) -> bool:
    """Return whether the program of a failed job may have written something. The program of an invalid job never
    ran."""
    return bool(status.ever_ran or status.last_failure)


def upload_error(o: Observed, output: OutputStatus) -> str:
    """Return the full error message of an upload; the status holds its beginning."""
    upload = upload_of(o, output)
    return (_message(upload) if upload else "") or output.message or "unknown reason"


def upload_of(o: Observed, output: OutputStatus) -> Upload | None:
    """Return the observed upload of an output if it has the state of `output`, which may be a new one."""
    before = next((item for item in o.current.outputs if item.name == output.name), output)
    upload = _upload(o, before) if before.state == "Uploading" else o.uploads.get(output.name)
    return upload if upload and upload.state == output.state else None


def _message(upload: Upload) -> str:
    failed = upload.state == "Failed" and upload.where
    return f"{upload.message}; the files are in {upload.where}" if failed else upload.message


def observed(o: Observed) -> list[OutputStatus]:
    """Return `status.outputs` with the results of uploads. An upload that is overdue has failed."""
    return [_observed(o, output) for output in o.current.outputs]


def _observed(o: Observed, output: OutputStatus) -> OutputStatus:
    if output.state != "Uploading" or (upload := _upload(o, output)) is None:
        return output
    step = upload.checkpoint[0] if upload.checkpoint and upload.state == "Uploaded" else output.uploaded_step
    if upload.state != "Uploading" and upload.checkpoint != checkpoint_of(output):
        return replace(output, uploaded_step=step)  # an earlier checkpoint: the newest one follows
    return replace(
        output,
        state=upload.state,
        uploaded_step=step,
        bytes=output.bytes if upload.bytes is None else upload.bytes,
        files=output.files if upload.files is None else upload.files,
        message=_message(upload)[:MESSAGE_LENGTH] or None,
    )


def _upload(o: Observed, output: OutputStatus) -> Upload | None:
    """Return the observed upload. It has failed if it is overdue."""
    if output.start_time and output.step is None and output.name in _followed(o.job):
        return Upload("Failed", message=NO_CHECKPOINT)
    reported, deadline = o.uploads.get(output.name), _deadline(o, output)
    if (
        reported
        and reported.state == "Failed"
        and not reported.final
        and output.start_time
        and output.name in _followed(o.job)
    ):
        reported = replace(reported, state="Uploading", message="")
    upload = reported or Upload("Uploading")
    if deadline is None or o.now < deadline or upload.state != "Uploading":
        return reported
    problem = f": {upload.message}" if upload.message else ""
    message = f"not within deadlineSeconds ({_seconds(o, output)}){problem}"
    return replace(upload, state="Failed", message=message, checkpoint=checkpoint_of(output), overdue=True)


def _seconds(o: Observed, output: OutputStatus) -> int | None:
    return next((spec.deadline_seconds for spec in o.job.spec.outputs or () if spec.name == output.name), None)


def _deadline(o: Observed, output: OutputStatus) -> datetime | None:
    seconds = _seconds(o, output)
    return output.start_time + timedelta(seconds=seconds) if output.start_time and seconds else None


def next_deadline(o: Observed) -> WaitUntil | None:
    """Return when the next upload is overdue."""
    deadlines = [_deadline(o, output) for output in o.current.outputs if output.state == "Uploading"]
    first = min((time for time in deadlines if time and time > o.now), default=None)
    return WaitUntil(first) if first else None


def to_upload(job: Job, status: Status) -> list[str]:
    """Return the names of the outputs whose upload was decided."""
    names = {output.name for output in job.spec.outputs or ()}
    return [output.name for output in status.outputs if output.state == "Uploading" and output.name in names]


def upload_first(snapshot: Snapshot) -> Act | None:
    """Begin the upload of a job whose program has completed; return None if there is nothing to upload.

    It waits for the last checkpoint, and tries again if that could not be uploaded.
    """
    now, followed = snapshot.observed.now, _followed(snapshot.observed.job)
    waiting = {
        output.name
        for output in snapshot.current.outputs
        if output.state in ("Pending", "Uploading") or (output.state == "Failed" and output.name in followed)
    }
    if not waiting:
        return None
    names = ", ".join(output.name for output in snapshot.current.outputs if output.name in waiting)
    begun = [
        replace(output, state="Uploading", start_time=now, message=None) if output.name in waiting else output
        for output in snapshot.current.outputs
    ]
    message = f"the program has completed; its outputs are uploaded: {names}"
    status = status_summary.with_phase(replace(snapshot.summarised, outputs=begun), "Running", now, UPLOADING, message)
    return write(status, Event(UPLOADING, message))


CONDITION: Literal["OutputsUploaded"] = "OutputsUploaded"
REASON_UPLOADED, REASON_UPLOADING, REASON_FAILED = "Uploaded", "Uploading", "Failed"
REASON_OVERDUE = "DeadlineExceeded"
REASON_JOB_FAILED = "JobFailed"
REASON_CHECKPOINT_UPLOADED = "CheckpointUploaded"
"""Reasons of the condition; the last is the reason of an Event as well."""
_DUE = ("Uploading", "Uploaded", "Failed")


def with_condition(snapshot: Snapshot, plan: Plan) -> Plan:
    """Set the condition `OutputsUploaded` in the status that the plan writes.

    It is absent until an upload is due, and True only when nothing is uploaded any more. No rule decides by it.
    """
    o, persisted = snapshot.observed, snapshot.persisted
    after = plan.next or o.current
    if not after.outputs:
        return plan
    before, unchanged = persisted.condition(CONDITION), persisted.outputs == after.outputs
    if unchanged and before is None and persisted.phase in FINISHED:
        return plan  # an earlier version finished this job
    verdict = _verdict(o, after)
    if verdict is None:
        return plan
    reason, message = verdict
    if before and reason == before.reason and ((unchanged and reason in _WHOLE) or message == before.message):
        return plan  # the pod with the whole message may be gone
    status = status_summary.with_condition(after, CONDITION, reason == REASON_UPLOADED, reason, message, o.now)
    return plan if status == after else replace(plan, next=status)  # a long message is cut


_WHOLE = (REASON_FAILED, REASON_OVERDUE, CHECKPOINT_NOT_UPLOADED)
"""Reasons whose message has more than `status.outputs`."""


def _verdict(o: Observed, status: Status) -> tuple[str, str] | None:
    """Return (reason, message); None before an upload is due."""
    finished = status.phase in FINISHED
    due = [output for output in status.outputs if output.state in _DUE]
    left = [output for output in status.outputs if output not in due]
    if not due and not (finished and began(status)):
        return None
    states = {output.state for output in due}
    last = finished or uploading(status)
    if last and "Failed" in states:
        reason = REASON_OVERDUE if _overdue(o, status, due) else REASON_FAILED
    elif "Uploading" in states:
        reason = UPLOAD_RETRYING if _is_retried(o, due) else REASON_UPLOADING
    elif last:
        reason = REASON_JOB_FAILED if left else REASON_UPLOADED
    else:
        reason = CHECKPOINT_NOT_UPLOADED if "Failed" in states else REASON_CHECKPOINT_UPLOADED
    return reason, "; ".join(_texts(o, status, finished))


def _overdue(o: Observed, status: Status, due: list[OutputStatus]) -> bool:
    before = status.condition(CONDITION)
    late = (upload_of(o, output) for output in due if output.state == "Failed")
    return any(upload and upload.overdue for upload in late) or (before is not None and before.reason == REASON_OVERDUE)


def _is_retried(o: Observed, due: list[OutputStatus]) -> bool:
    uploads = (upload_of(o, output) for output in due if output.state == "Uploading")
    return any(upload and upload.message for upload in uploads)


def _texts(o: Observed, status: Status, finished: bool) -> Iterator[str]:
    """Yield a sentence about each output."""
    specs = {item.name: item for item in o.job.spec.outputs or ()}
    for output in status.outputs:
        if (spec := specs.get(output.name)) is None:
            continue
        subject = output.name if output.step is None else f"{output.name}, the checkpoint of step {output.step},"
        match output.state:
            case "Uploaded":
                files = f": {_files(output.files)}, {size(output.bytes or 0)}" if output.files is not None else ""
                yield f"{subject} is in {spec.to}{files}"
            case "Uploading":
                yield f"{subject} is being uploaded to {spec.to}{_progress(o, output)}"
            case "Failed":
                yield f"{subject} is not uploaded: {upload_error(o, output)}"
            case _ if finished and spec.when == "Success":
                yield f"{subject} is not uploaded, because the job failed; with when: Always it is uploaded also then"
            case _ if finished:
                yield f"{subject} is not uploaded: {NO_CHECKPOINT}"
            case _:
                yield f"{subject} follows when the program has completed"


def _progress(o: Observed, output: OutputStatus) -> str:
    upload = upload_of(o, output)
    if upload is None:
        return ""
    sent = ""
    if upload.sent and upload.files and upload.bytes is not None:
        files, done = upload.sent
        sent = f": {files} of {_files(upload.files)}, {size(done)} of {size(upload.bytes)}"
    return sent + (f": {upload.message}" if upload.message else "")


def _files(count: int) -> str:
    return f"{count} file{'s' * (count != 1)}"
