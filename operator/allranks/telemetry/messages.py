"""The message of a rank, its sender, and the response to it.

Decoding is strict, but unknown fields are ignored: programs may be newer than the operator. A process that only speaks
HTTP imports this module and not the store, and so stays small.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

BODY_BYTES = 8192
"""A longer message is rejected before it is read."""
LOCAL_RANKS = 128
"""Ranks of one pod that may report. Sized by the cores of a machine, not by its GPUs."""
METRICS = 32
"""Metrics in a message."""

_LARGEST = sys.float_info.max
_LAST = 2**53
"""Larger integers are not exact in readers of JSON that use floats."""

Count = Annotated[int, Meta(ge=0, le=_LAST)]
Rate = Annotated[float, Meta(ge=0, le=1e15)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Value = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_./-]{1,63}\Z")]


class BadMessage(ValueError):
    """Invalid message. Nothing of it is stored."""


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    step: Count | None = None
    ago: Seconds = 0.0
    seconds: Seconds | None = None


class TrainerMetric(msgspec.Struct, frozen=True):
    name: str = ""
    value: Any = None
    """A number as text. Its sender cannot be changed, so a value that is none is dropped, not rejected."""


class TrainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What `transformers` and Kubeflow's SDK send to Kubeflow Trainer. See `trainer_status`."""

    progress_percentage: Annotated[float, Meta(ge=0, le=100)] | None = None
    metrics: list[TrainerMetric] | None = None


NCCL_RANKS = 8
"""Ranks that a message about collectives names."""
_Rank = Annotated[int, Meta(ge=0, lt=2**24)]


class Nccl(msgspec.Struct, frozen=True, rename="camel"):
    """What rank 0 learned from NCCL about the collectives of all ranks. See `allranks.report.nccl`."""

    launched: Count
    size: _Rank
    operation: Annotated[str, Meta(pattern=r"^[A-Za-z0-9]{0,32}\Z")] = ""
    number: Count = 0
    behind: Annotated[list[_Rank], Meta(max_length=NCCL_RANKS)] = []
    behind_count: _Rank = 0
    missing: Annotated[list[_Rank], Meta(max_length=NCCL_RANKS)] = []
    missing_count: _Rank = 0


_Text = Annotated[str, Meta(max_length=200)]


class Position(msgspec.Struct, frozen=True):
    """Where the main thread of a rank is that makes no progress. See `allranks.core.facts.rank_reports.Position`."""

    where: _Text = ""
    function: _Text = ""
    call: _Text = ""
    collective: bool = False
    activity: Literal["", "data", "debugger", "input", "read", "write"] = ""
    file: _Text = ""
    stuck: bool = False
    callers: Annotated[list[Annotated[str, Meta(max_length=60)]], Meta(max_length=12)] = []
    raising: _Text = ""


CHECKPOINTS = 5
"""Checkpoints that a message names."""


class StoredCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint in the directory of the job. See `allranks.report.checkpoints`."""

    step: Annotated[int, Meta(ge=0, lt=2**31)]
    path: Annotated[str, Meta(max_length=256)] = ""
    ago: Seconds = 0.0
    complete: bool | None = None
    verified: bool | None = None
    bytes: Count | None = None


VALUES = 32
"""Values of a metric in a message."""


class MetricRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A metric since the start of the process, and its values since the last message. A value that is not finite is
    null. See `allranks.report.record`."""

    first: tuple[Count, Value | None]
    """(step, value)"""
    lowest: tuple[Count, Value] | None = None
    highest: tuple[Count, Value] | None = None
    not_finite: Count | None = None
    """The step of the first value that is not finite."""
    values: Annotated[list[tuple[Count, Value | None, Seconds]], Meta(max_length=VALUES)] = []
    """(step, value, seconds ago)"""
    count: Count = 0
    """Number of finite values since the last message, if `values` are only some of them."""
    mean: Value | None = None
    """Of these finite values."""


class Message(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The state of one rank. Durations are measured by its own clock."""

    attempt: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    """The attempt of the process; libraries before restarts in pods send none."""
    rank: Annotated[int, Meta(ge=0, lt=2**24)] | None = None
    local_rank: Annotated[int, Meta(ge=0, lt=LOCAL_RANKS)] = 0
    step: Count | None = None
    total_steps: Count | None = None
    epoch: Count | None = None
    metrics: Annotated[dict[Name, Value], Meta(max_length=METRICS)] = {}
    not_finite: Annotated[dict[Name, Count], Meta(max_length=METRICS)] = {}
    record: Annotated[dict[Name, MetricRecord], Meta(max_length=METRICS)] = {}
    samples_per_second: Rate | None = None
    step_seconds: Seconds | None = None
    busy_seconds: Seconds | None = None
    load_seconds: Seconds | None = None
    checkpoint: Checkpoint | None = None
    saves_on_request: bool = False
    handled_request: Count = 0
    due_step: Count | None = None
    idle: Seconds | None = None
    done: bool = False
    waiting: bool | None = None
    position: Position | None = None
    trainer_status: TrainerStatus | None = None
    """Sent instead of all other fields."""
    nccl: Nccl | None = None
    """Likewise."""
    checkpoints: Annotated[list[StoredCheckpoint], Meta(max_length=CHECKPOINTS)] | None = None
    """Likewise."""
    damage_elsewhere: bool = False
    """With `checkpoints`: the exception that ends the program is about a file that is not in their directory."""


_decode = msgspec.json.Decoder(Message).decode


def message(body: bytes) -> Message:
    """Decode a message. Raises BadMessage with an explanation for the sender."""
    try:
        return _decode(body)
    except (ValueError, RecursionError) as error:
        raise BadMessage(str(error)[:200]) from error


@dataclass(frozen=True, slots=True)
class ReportSource:
    """The pod of a token. Nothing of it comes from the message."""

    job: tuple[str, str]
    """(namespace, name)"""
    job_uid: str
    pod: str
    pod_uid: str
    role: str
    index: int
    attempt: int
    """The attempt that runs in the pod: the one that it was created for, or a later one that restarts in it."""
    restart: int
    """How often the replica was restarted alone in the attempt, before the process that runs in the pod."""
    node: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` is the HTTP code. What the sender does then: 400 drop the message, 409 stop, 429 and 503 retry later."""

    status: int
    body: Mapping[str, Any]
    retry_after: float = 0.0


class Denied(Exception):
    """401: invalid token. 403: not the token of a rank. 503: try again, or another replica. The message is for the
    sender."""

    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.answer = Answer(status, {"error": message}, retry_after)
