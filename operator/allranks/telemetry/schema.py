"""A message of a rank, decoded strictly: whatever is not exactly as it must be is no message.

Unknown fields are skipped, so that programs may be newer than the operator.
"""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
from msgspec import Meta

BODY_BYTES = 8192
"""A longer message is refused before it is read."""
LOCAL_RANKS = 128
"""Ranks of one pod that may report: as many as a machine has cores, rather than GPUs."""
METRICS = 32
"""Metrics in a message."""

_LARGEST = sys.float_info.max
_LAST = 2**53
"""Beyond that a float, which other readers of JSON make of it, is another number."""

Count = Annotated[int, Meta(ge=0, le=_LAST)]
Rate = Annotated[float, Meta(ge=0, le=1e15)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Value = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_./-]{1,63}\Z")]


class BadMessage(ValueError):
    """Nothing of it was kept."""


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    step: Count | None = None
    ago: Seconds = 0.0


class Message(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The state of one rank; durations are by its own clock."""

    rank: Annotated[int, Meta(ge=0, lt=2**24)] | None = None
    local_rank: Annotated[int, Meta(ge=0, lt=LOCAL_RANKS)] = 0
    step: Count | None = None
    total_steps: Count | None = None
    epoch: Count | None = None
    metrics: Annotated[dict[Name, Value], Meta(max_length=METRICS)] = {}
    samples_per_second: Rate | None = None
    step_seconds: Seconds | None = None
    busy_seconds: Seconds | None = None
    checkpoint: Checkpoint | None = None
    idle: Seconds | None = None
    done: bool = False
    waiting: bool | None = None


_decode = msgspec.json.Decoder(Message).decode


def message(body: bytes) -> Message:
    """Raises BadMessage, with a sentence for whoever sent it."""
    try:
        return _decode(body)
    except (ValueError, RecursionError) as error:
        raise BadMessage(str(error)[:200]) from error
