"""Stack dumps that users request, with an annotation of the job that the operator passes on to the ranks. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from allranks.api.job import GROUP

ANNOTATION = f"{GROUP}/dump-stacks"
"""On a job, written with the right to change it. Its value is a request."""
_FORM = re.compile(r"(?P<attempt>0|[1-9]\d{0,8})-(?P<time>\d{8}T\d{6})-[0-9a-f]{4}")
_TIME = "%Y%m%dT%H%M%S"


def new_request(attempt: int, now: datetime, number: int) -> str:
    """A request to the ranks of one attempt: `2-20261125T074500-9f3a`. `now` has a time zone; `number`, below 65536,
    distinguishes requests of the same second."""
    return f"{attempt}-{now.astimezone(UTC).strftime(_TIME)}-{number:04x}"


def requested_at(request: str) -> datetime | None:
    """When it was made; None if the text is no request."""
    found = _FORM.fullmatch(request)
    try:
        return datetime.strptime(found["time"], _TIME).replace(tzinfo=UTC) if found else None
    except ValueError:
        return None


def stack_dump_id(request: str, attempt: int) -> str:
    """What the ranks are sent; empty if the text is no request, or one to the ranks of another attempt."""
    found = _FORM.fullmatch(request)
    if not found or requested_at(request) is None or int(found["attempt"]) != attempt:
        return ""
    return f"{REQUESTED} {request}"


REQUESTED = "requested"
"""The first word of the ID of a dump that a user requests (`allranks.report.client.why`)."""
