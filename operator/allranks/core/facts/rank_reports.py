"""What ranks have reported, as decisions see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class RankReport:
    """The newest state of one rank. Times are converted to the server's clock: ranks report ages."""

    role: str
    index: int
    local_rank: int
    rank: int | None
    pod: str
    node: str | None
    received_at: datetime
    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples_per_second: float | None = None
    step_seconds: float | None = None
    """Mean duration of the steps since the previous report."""
    busy_seconds: float | None = None
    """Share of `step_seconds` without waiting for other ranks; None if the program does not measure it."""
    load_seconds: float | None = None
    """Share of `step_seconds` in which the program waits for data; None if it does not measure it."""
    checkpoint_step: int | None = None
    checkpoint_at: datetime | None = None
    saves_on_request: bool = False
    """The program asks whether a checkpoint is requested, and stores one then."""
    handled_request: int = 0
    """Number of the newest request for a checkpoint that this rank is done with; another rank may have stored it."""
    stepped_at: datetime | None = None
    """Time of the last completed step."""
    first_step_at: datetime | None = None
    done: bool = False
    waiting: bool | None = None
    """The rank finished its own work of the next step and waits for others; None if the program does not report it."""
    heartbeat: bool = True
    """Whether messages also arrive between two steps. If not, silence of the rank means that there was no step."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """What NCCL said about the collectives of all ranks, in the communicator whose ranks differ, or the largest one."""

    received_at: datetime
    moved_at: datetime
    """Since then, no rank has launched a collective."""
    launched: int
    """Collectives that all ranks have launched together."""
    size: int
    """Ranks of the communicator. If these are all ranks of the job, they have the same numbers there."""
    operation: str = ""
    """The collective that some ranks have launched and others have not, such as AllReduce; empty if there is none."""
    number: int = 0
    """How many of them the furthest rank has launched."""
    behind: tuple[int, ...] = ()
    behind_count: int = 0
    missing: tuple[int, ...] = ()
    """Ranks that NCCL cannot reach."""
    missing_count: int = 0


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of the current attempt."""

    since: datetime
    """Start of listening, or the end of the last silence of all ranks. Missing reports from before this time mean
    nothing."""
    ranks: tuple[RankReport, ...] = ()
    any_job_at: datetime | None = None
    """Time of the last report of any job: evidence that reports can arrive."""
    collectives: Collectives | None = None
    """From NCCL, if rank 0 could ask it while it reported no step."""


URL, TOKEN_FILE = "ALLRANKS_REPORT_URL", "ALLRANKS_REPORT_TOKEN_FILE"
