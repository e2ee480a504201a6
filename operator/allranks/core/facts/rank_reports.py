"""Reports of ranks, and the stack dumps that users request from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from allranks.api.job import GROUP
from allranks.api.status import MetricRecord, StoredCheckpoint


@dataclass(frozen=True, slots=True)
class Position:
    """Where the main thread of a rank is."""

    where: str = ""
    """Line of the program: `train.py:88`."""
    function: str = ""
    """The function of the program that has this line."""
    call: str = ""
    """The function that it calls there: `all_reduce`; `ended` if the main thread has ended."""
    collective: bool = False
    """The call is one of a library of collectives."""
    activity: Literal["", "data", "debugger", "input", "read", "write"] = ""
    """It waits for a batch, in a debugger, for input from a terminal, or for a file."""
    file: str = ""
    """The file that it reads or writes."""
    stuck: bool = False
    """The kernel waits for a device, such as a disk (state D)."""
    callers: tuple[str, ...] = ()
    """The functions through which the program came there, the innermost first."""
    raising: str = ""
    """The exception that it handles meanwhile, in a `finally` for example; or the one that ended the main thread."""


Windows = tuple[tuple[float | None, float | None], ...]
"""(step_seconds, busy_seconds) of the last reports with new steps, the newest last."""
WINDOWS = 3
"""Reports with new steps in all of which a rank must be slow: an evaluation or a start makes one of them long."""


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
    not_finite: Mapping[str, int] = field(default_factory=dict)
    """Metrics whose newest value is NaN or infinite -> the step since which it is."""
    samples_per_second: float | None = None
    step_seconds: float | None = None
    """Mean duration of the steps since the previous report."""
    busy_seconds: float | None = None
    """Share of `step_seconds` without waiting for other ranks; None if the program does not measure it."""
    load_seconds: float | None = None
    """Share of `step_seconds` in which the program waits for data; None if it does not measure it."""
    windows: Windows | None = None
    """At most WINDOWS; None: only the newest times are recorded."""
    checkpoint_step: int | None = None
    checkpoint_at: datetime | None = None
    saves_on_request: bool = False
    """The program asks whether a checkpoint is requested, and stores one then."""
    handled_request: int = 0
    """Number of the newest request for a checkpoint that this rank is done with; another rank may have stored it."""
    save_seconds: float | None = None
    """How long the step waited for this checkpoint, if it was due."""
    due_step: int | None = None
    """The newest step after which this rank is to store a checkpoint, 0 before that; None if it never asks."""
    stepped_at: datetime | None = None
    """Time of the last completed step."""
    first_step_at: datetime | None = None
    done: bool = False
    waiting: bool | None = None
    """The rank finished its own work of the next step and waits for others; None if the program does not report it."""
    position: Position | None = None
    """Sent after a request for stacks, and after 45 s without a step, until the next step."""
    heartbeat: bool = True
    """True if messages also arrive between two steps. If not, silence of the rank means that there was no step."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """NCCL's view of the collectives of all ranks, in the communicator whose ranks differ, or the largest one."""

    received_at: datetime
    moved_at: datetime
    """Time since which no rank has launched a collective."""
    launched: int
    """Collectives that all ranks have launched together."""
    size: int
    """Ranks of the communicator. If these are all ranks of the job, they have the same numbers there."""
    operation: str = ""
    """The collective that some ranks have launched and others have not, such as AllReduce; empty if there is none."""
    number: int = 0
    """Number of collectives that the furthest rank has launched."""
    behind: tuple[int, ...] = ()
    behind_count: int = 0
    missing: tuple[int, ...] = ()
    """Ranks that NCCL cannot reach."""
    missing_count: int = 0


@dataclass(frozen=True, slots=True)
class MetricValues:
    """Values of a metric between two messages: all of them, or the first, lowest, highest and last."""

    name: str
    values: tuple[tuple[datetime, int, float | None], ...]
    """(time, step, value) in the order of their times; None is a value that is not finite."""
    count: int
    """Number of all finite values."""
    mean: float | None
    """Of all finite values; None if `values` are all of them."""


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of the current attempt."""

    since: datetime
    """Start of listening, or the end of the last silence of all ranks. Missing reports from before this time mean
    nothing."""
    ranks: tuple[RankReport, ...] = ()
    any_job_at: datetime | None = None
    """Time of the last report of any job of the namespace: evidence that reports can arrive. Reports of other
    namespaces prove nothing: a NetworkPolicy, or a fault of DNS, may concern one of them."""
    collectives: Collectives | None = None
    """From NCCL, if rank 0 could ask it while it reported no step."""
    checkpoints: tuple[StoredCheckpoint, ...] | None = None
    """The newest checkpoints in the directory of the job, the oldest first; None if no rank has listed them."""
    damage_elsewhere: frozenset[str] = frozenset()
    """Pods in which an exception about a file that is no checkpoint ended the program."""
    interval: float = 5.0
    """Seconds between two reports of a rank."""
    metrics: Mapping[str, MetricRecord] = field(default_factory=dict)
    """What the rank with the lowest number that reports metrics says about each since its start."""


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """What the answers to reports say about the next checkpoint."""

    step: int
    agreed: bool
    """All ranks have received the step: only then do they store a checkpoint after it."""


URL, TOKEN_FILE = "ALLRANKS_REPORT_URL", "ALLRANKS_REPORT_TOKEN_FILE"


STACKS_ANNOTATION = f"{GROUP}/dump-stacks"
"""On a job, written with the right to change it. Its value is a request."""
_FORM = re.compile(r"(?P<attempt>0|[1-9]\d{0,8})-(?P<time>\d{8}T\d{6})-[0-9a-f]{4}")
_TIME = "%Y%m%dT%H%M%S"


def new_stack_request(attempt: int, now: datetime, number: int) -> str:
    """Return a request to the ranks of one attempt: `2-20261125T074500-9f3a`.

    `now` has a time zone; `number`, below 65536, distinguishes requests of the same second.
    """
    return f"{attempt}-{now.astimezone(UTC).strftime(_TIME)}-{number:04x}"


def stacks_requested_at(request: str) -> datetime | None:
    """Return the time of a request; None if the text is no request."""
    match = _FORM.fullmatch(request)
    try:
        return datetime.strptime(match["time"], _TIME).replace(tzinfo=UTC) if match else None
    except ValueError:
        return None


def stack_dump_id(request: str, attempt: int) -> str:
    """Return the ID that the ranks are sent; empty if the text is no request to the ranks of this attempt."""
    match = _FORM.fullmatch(request)
    if not match or stacks_requested_at(request) is None or int(match["attempt"]) != attempt:
        return ""
    return f"{STACKS_REQUESTED} {request}"


STACKS_REQUESTED = "requested"
"""The first word of the ID of a dump that a user requests (`allranks.report.client.reason_for`)."""
