"""Errors of the server as problem details (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field

from allranks.archive.store import ArchiveError
from allranks.control_sequences import clean_text
from allranks.errors import AllranksError, ClusterError, InvalidManifest

MEDIA_TYPE = "application/problem+json"


class ProblemDetails(BaseModel):
    """The body of every answer with an error."""

    type: str = Field("about:blank", description="about:blank: the status says what kind of problem it is.")
    title: str = Field(description="The meaning of the status.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What is wrong, and what to do.")


class Problem(AllranksError):
    """A request that cannot be answered. `status` is the HTTP status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def details(error: Exception) -> ProblemDetails:
    """Return the problem of any error. The text of an unexpected error stays in the log of the server."""
    status = status_of(error)
    text = str(error) if isinstance(error, AllranksError) else "the server met an error: its terminal shows it"
    return ProblemDetails(title=HTTPStatus(status).phrase, status=status, detail=clean_text(text, colour=False))


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, Problem):
        return error.status
    if isinstance(error, ClusterError):
        if error.status in (400, 403, 404, 409, 422):
            return error.status
        # Without a status and a reason, a rule of a command was broken, such as to suspend a finished job.
        return 503 if error.status or error.reason else 409
    if isinstance(error, InvalidManifest):
        return 422
    if isinstance(error, ArchiveError):
        return 503
    return 409 if isinstance(error, AllranksError) else 500


RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {"description": "A problem (RFC 9457).", "model": ProblemDetails},
}
"""For the OpenAPI document."""
