"""Lines of logs as REST and pages show them."""

from __future__ import annotations

from pydantic import BaseModel, Field

from allranks.control_sequences import clean


class LogLine(BaseModel):
    """A line of a log, in the form of `allranks logs -o json`."""

    time: str | None = Field(description="UTC, with nanoseconds; null if the log has no times.")
    role: str
    index: int
    rank: int | None = Field(description="null for earlier attempts, which may have had another number of ranks.")
    attempt: int
    line: str


def shown(line: bytes) -> str:
    """The line as a terminal shows it: the last state of a redrawn line, without control sequences."""
    return clean(line.rstrip(b"\r").rpartition(b"\r")[2], colour=False)
