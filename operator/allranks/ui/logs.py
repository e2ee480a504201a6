"""Parts of logs as REST and pages show them: which lines are requested, the lines, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pydantic import BaseModel, Field

from allranks.control_sequences import clean
from allranks.core.facts.naming import TRAINER
from allranks.ui.entries import Entry
from allranks.ui.problems import Problem

MOST_LINES = 10_000
POLL_SECONDS = 1.0
"""Interval in which a follower looks for new pods or files, and its wait for the last lines after a job has ended."""


class LogLine(BaseModel):
    """A line of a log, in the form of `allranks logs -o json`."""

    time: str | None = Field(description="UTC, with nanoseconds; null if the log has no times.")
    role: str
    index: int
    rank: int | None = Field(description="null for earlier attempts, which may have had another number of ranks.")
    attempt: int
    line: str


@dataclass(frozen=True)
class LogQuery:
    """The requested lines. None: any rank, the current attempt."""

    rank: int | None = None
    replica: str | None = None
    """ROLE-INDEX, for replicas without a rank."""
    attempt: int | None = None
    tail: int = 500
    search: str = ""
    after: str = ""
    """`after` of an earlier answer: only newer lines."""
    container: str = TRAINER


@dataclass(frozen=True)
class LogTail:
    """The last lines, and sentences about what is missing."""

    lines: list[LogLine]
    notes: list[str] = field(default_factory=list)
    after: str = ""
    """Where a follower continues."""


def with_replica(entry: Entry, query: LogQuery) -> LogQuery:
    """Return the query with the replica of its rank. Raises Problem if the job has no such rank."""
    if query.rank is None:
        return query
    replica = next((key for key, rank in entry.ranks.items() if rank == query.rank), None)
    if replica is None:
        raise Problem(404, f"{entry.job} has no rank {query.rank}")
    return replace(query, rank=None, replica=replica)


def shown(line: bytes) -> str:
    """Return the line as a terminal shows it: the last state of a redrawn line, without control sequences."""
    return clean(line.rstrip(b"\r").rpartition(b"\r")[2], colour=False)
