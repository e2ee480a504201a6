"""Jobs that somebody develops with `allranks dev`: their failures wait for other code."""

from __future__ import annotations

from datetime import datetime, timedelta

from allranks.api.job import GROUP, Job
from allranks.api.status import CodeStatus, Status

ANNOTATION = f"{GROUP}/developed-until"
"""On a job, written with the right to change it: a time that `allranks dev` renews while it is attached. It ends by
itself if the machine of the developer sleeps."""
ATTACHED_SECONDS = 300
"""A job is developed for this long after the last renewal: longer than a short loss of the network."""
RENEWAL_SECONDS = 60.0


def attached_until(now: datetime) -> str:
    """Return the value of the annotation of a job that is developed from now on."""
    return (now + timedelta(seconds=ATTACHED_SECONDS)).isoformat(timespec="seconds")


def until(job: Job, now: datetime) -> datetime | None:
    """Return until when `allranks dev` is attached; None if it is not."""
    try:
        end = datetime.fromisoformat(job.metadata.annotations.get(ANNOTATION, ""))
    except ValueError:
        return None
    return end if end.tzinfo and end > now else None


def code_changed(job: Job, status: Status) -> bool:
    """Return whether the job has other code than its current attempt."""
    code = job.spec.code
    if code is None or code.sha256 is None or status.code is None or status.code.sha256 is None:
        return False
    return code.sha256 != status.code.sha256


def awaits_code(status: Status, now: datetime) -> bool:
    """Return whether the ranks of the current attempt wait for other code."""
    waits = status.code is not None and bool(status.code.awaits_change)
    return waits and status.restart_time is not None and now < status.restart_time


def code_of_attempt(job: Job, before: CodeStatus | None, now: datetime) -> CodeStatus | None:
    """Return the code of an attempt that begins now, after one with the code `before`."""
    code = job.spec.code
    if code is None or (code.sha256 is None and code.commit is None):
        return None
    same = before is not None and before.sha256 == code.sha256 and before.commit == code.commit
    time = before.time if before is not None and same else now
    return CodeStatus(config_map=code.config_map, sha256=code.sha256, commit=code.commit, dirty=code.dirty, time=time)


def short(sha256: str) -> str:
    """Return the beginning of a hash, for messages."""
    return sha256[:12]
