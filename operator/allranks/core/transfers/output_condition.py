"""The condition `OutputsUploaded`: whether the outputs of a job are where the job wants them, and why not.

It follows from `status.outputs` and from what is observed of the uploads, so it is set in one place, on every plan, and
no rule decides by it. It is absent until an upload is due. It is True only when nothing is uploaded any more: while the
program runs, further checkpoints follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from allranks.api.data import OutputStatus
from allranks.api.status import FINISHED, Status
from allranks.core.facts import status_summary
from allranks.core.facts.model import Observed, Plan
from allranks.core.snapshot import Snapshot
from allranks.core.transfers import outputs
from allranks.text import size

CONDITION: Literal["OutputsUploaded"] = "OutputsUploaded"
UPLOADED, UPLOADING, FAILED = "Uploaded", "Uploading", "Failed"
OVERDUE = "DeadlineExceeded"
NOT_WANTED = "JobFailed"
CHECKPOINT_UPLOADED = "CheckpointUploaded"
"""Reasons; also those of Events about uploads that are tried again and about checkpoints (`outputs`)."""
_DUE = ("Uploading", "Uploaded", "Failed")


def with_condition(snapshot: Snapshot, plan: Plan) -> Plan:
    """Set the condition in the status that the plan writes."""
    o, persisted = snapshot.observed, snapshot.persisted
    after = plan.next or o.current
    if not after.outputs:
        return plan
    before, unchanged = persisted.condition(CONDITION), persisted.outputs == after.outputs
    if unchanged and before is None and persisted.phase in FINISHED:
        return plan  # an earlier version finished this job
    found = _found(o, after)
    if found is None:
        return plan
    reason, message = found
    if before and reason == before.reason and ((unchanged and reason in _WHOLE) or message == before.message):
        return plan  # the pod with the whole message may be gone
    status = status_summary.with_condition(after, CONDITION, reason == UPLOADED, reason, message, o.now)
    return plan if status == after else replace(plan, next=status)  # a long message is cut


_WHOLE = (FAILED, OVERDUE, outputs.CHECKPOINT_NOT_UPLOADED)
"""Reasons whose message has more than `status.outputs`."""


def _found(o: Observed, status: Status) -> tuple[str, str] | None:
    """(reason, message); None before an upload is due."""
    finished = status.phase in FINISHED
    due = [output for output in status.outputs if output.state in _DUE]
    left = [output for output in status.outputs if output not in due]
    if not due and not (finished and outputs.began(status)):
        return None
    states = {output.state for output in due}
    if finished or outputs.uploading(status):
        if "Failed" in states:
            reason = OVERDUE if _overdue(o, status, due) else FAILED
        elif "Uploading" in states:
            reason = outputs.UPLOAD_RETRYING if _trouble(o, due) else UPLOADING
        else:
            reason = NOT_WANTED if left else UPLOADED
    elif "Uploading" in states:
        reason = outputs.UPLOAD_RETRYING if _trouble(o, due) else UPLOADING
    else:
        reason = outputs.CHECKPOINT_NOT_UPLOADED if "Failed" in states else CHECKPOINT_UPLOADED
    return reason, "; ".join(_texts(o, status, finished))


def _overdue(o: Observed, status: Status, due: list[OutputStatus]) -> bool:
    before = status.condition(CONDITION)
    late = (outputs.upload_of(o, output) for output in due if output.state == "Failed")
    return any(found and found.overdue for found in late) or (before is not None and before.reason == OVERDUE)


def _trouble(o: Observed, due: list[OutputStatus]) -> bool:
    found = (outputs.upload_of(o, output) for output in due if output.state == "Uploading")
    return any(each and each.message for each in found)


def _texts(o: Observed, status: Status, finished: bool) -> Iterator[str]:
    """What has become of each output."""
    given = {each.name: each for each in o.job.spec.outputs or ()}
    for output in status.outputs:
        if (spec := given.get(output.name)) is None:
            continue
        what = output.name if output.step is None else f"{output.name}, the checkpoint of step {output.step},"
        match output.state:
            case "Uploaded":
                files = f": {_files(output.files)}, {size(output.bytes or 0)}" if output.files is not None else ""
                yield f"{what} is in {spec.to}{files}"
            case "Uploading":
                yield f"{what} is being uploaded to {spec.to}{_progress(o, output)}"
            case "Failed":
                yield f"{what} is not uploaded: {outputs.why(o, output)}"
            case _ if finished and spec.when == "Success":
                yield f"{what} is not uploaded, because the job failed; with when: Always it is uploaded also then"
            case _ if finished:
                yield f"{what} is not uploaded: {outputs.NO_CHECKPOINT}"
            case _:
                yield f"{what} follows when the program has completed"


def _progress(o: Observed, output: OutputStatus) -> str:
    found = outputs.upload_of(o, output)
    if found is None:
        return ""
    sent = ""
    if found.sent and found.files and found.bytes is not None:
        files, done = found.sent
        sent = f": {files} of {_files(found.files)}, {size(done)} of {size(found.bytes)}"
    return sent + (f": {found.message}" if found.message else "")


def _files(count: int) -> str:
    return f"{count} file{'s' * (count != 1)}"
