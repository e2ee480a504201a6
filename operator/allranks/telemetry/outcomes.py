"""Assembles what the function of a rank returned or raised, which arrives in parts, within limits. No I/O.

The content stays opaque: it is a pickle, which only the user's own programs may load.
`docs/reference/reports-protocol.md` describes the protocol and its limits.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from allranks.shares import Share
from allranks.telemetry.messages import LOCAL_RANKS, Answer, ReportSource
from allranks.telemetry.rate_limit import Bucket

PART_BYTES = 16_384
"""Of the content in one message."""
BODY_BYTES = PART_BYTES + 1024
"""A message is a line of JSON, the header, and a part of the content."""
VALUE_BYTES = 1_048_576
"""Of what rank 0 returned: all that fits into a ConfigMap."""
FURTHER_VALUE_BYTES = 65_536
"""Of what each further rank returned."""
VALUE_RANKS = 64
"""Ranks whose value is stored."""
ERROR_BYTES = 131_072
"""Of an exception with its traceback."""
ERRORS = 8
"""Exceptions that are stored of an attempt; in jobs with replicas that restart alone, of each number of restarts. The
first ones, because the cause comes before its consequences."""

Kind = Literal["returned", "raised"]


class Header(msgspec.Struct, frozen=True, rename="camel"):
    """The first line of a message."""

    kind: Kind
    rank: Annotated[int, Meta(ge=0, lt=2**24)]
    size: Annotated[int, Meta(ge=1, le=VALUE_BYTES)]
    """Bytes of the whole content."""
    offset: Annotated[int, Meta(ge=0, le=VALUE_BYTES)]
    """Position of this part in it."""
    local_rank: Annotated[int, Meta(ge=0, lt=LOCAL_RANKS)] = 0
    attempt: Annotated[int, Meta(ge=0, lt=2**31)] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rank's function returned or raised."""

    kind: Kind
    rank: int
    content: bytes


@dataclass(frozen=True, slots=True)
class OutcomeLimits:
    """Seconds, numbers and bytes."""

    room_bytes: int = 32 * 1024 * 1024
    """Of all unfinished contents together. Namespaces share it."""
    of_job: int = 4
    """Unfinished contents of a job. The others wait, so that a job does not take the room of all."""
    idle_seconds: float = 60.0
    """An unfinished content without a new part for this time is dropped: its sender begins again."""
    pressed_seconds: float = 10.0
    """The same when there is no room for a new one."""
    burst: int = 256
    """Messages that a pod may send in a row: several times the messages of rank 0 and seven further ranks."""
    rate: float = 4.0
    """Messages per second of a pod after that."""
    pods: int = 16_384
    """Whose rate is remembered."""


@dataclass(slots=True)
class _Unfinished:
    namespace: str
    job: str
    header: Header
    heard_at: float
    content: bytearray = field(default_factory=bytearray)


class Outcomes:
    """`take` a message. When that returns an Outcome, store it and answer the sender with `received`."""

    def __init__(self, *, limits: OutcomeLimits | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._monotonic = limits or OutcomeLimits(), monotonic
        self._unfinished: OrderedDict[tuple[str, int], _Unfinished] = OrderedDict()
        """(UID of the pod, local rank) -> content, ordered by the time of the last part."""
        self._share = Share(self._limits.room_bytes)
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    @property
    def large(self) -> dict[str, float]:
        """Return `Share.large` of the bytes of unfinished contents."""
        return self._share.large

    def take(self, sender: ReportSource, body: bytes, full: bool = False) -> Outcome | Answer:
        """Return the content once it is complete, else the answer to the sender. If `full`, no further exceptions are
        stored."""
        moment = self._monotonic()
        if not self._has_token(sender.pod_uid, moment):
            return Answer(429, {"error": "too many messages"}, 5.0)
        line, _, part = body.partition(b"\n")
        try:
            header = _decode(line)
        except (ValueError, RecursionError) as error:
            return Answer(400, {"error": str(error)[:200]})
        if header.attempt is not None and header.attempt != sender.attempt:
            return Answer(409, {"error": "this attempt is over"})
        if len(part) > PART_BYTES or header.offset + len(part) > header.size:
            return Answer(400, {"error": "the part does not fit the header"})
        if header.size > (most := longest(header.kind, header.rank)):
            return Answer(413, {"error": f"too long: at most {most} bytes of rank {header.rank} are stored"})
        if full and header.kind == "raised":
            return received(header.size, stored=False)
        return self._add(sender, header, part, moment)

    def _add(self, sender: ReportSource, header: Header, part: bytes, moment: float) -> Outcome | Answer:
        """Add a part; parts arrive in order. The answer to a part that does not follow the last one says where to
        continue: the operator may have been restarted."""
        key, namespace = (sender.pod_uid, header.local_rank), sender.job[0]
        kept = self._unfinished.get(key)
        if kept is not None and (header.offset == 0 or kept.header.size != header.size):
            self._drop(key)
            kept = None
        if kept is None:
            if header.offset or not part:
                return received(0)
            if len(part) == header.size:  # most are this short
                return Outcome(header.kind, header.rank, part)
            if not self._take_room(namespace, sender.job_uid, header.size, moment):
                return Answer(503, {"error": "too many outcomes arrive"}, 2.0)
            kept = self._unfinished[key] = _Unfinished(namespace, sender.job_uid, header, moment)
        if header.offset == len(kept.content):
            kept.content += part
            kept.heard_at = moment
            self._unfinished.move_to_end(key)
        if len(kept.content) < header.size:
            return received(len(kept.content))
        self._drop(key)
        return Outcome(header.kind, header.rank, bytes(kept.content))

    def _take_room(self, namespace: str, job: str, size: int, moment: float) -> bool:
        limits = self._limits
        self._drop_idle(moment - limits.idle_seconds)
        if sum(kept.job == job for kept in self._unfinished.values()) >= limits.of_job:
            return False
        if not self._share.fits(namespace, size):
            self._drop_idle(moment - limits.pressed_seconds)
        return self._share.take(namespace, size)

    def _drop_idle(self, since: float) -> None:
        while self._unfinished:
            key, kept = next(iter(self._unfinished.items()))
            if kept.heard_at > since:
                return
            self._drop(key)

    def _drop(self, key: tuple[str, int]) -> None:
        kept = self._unfinished.pop(key)
        self._share.give(kept.namespace, kept.header.size)

    def _has_token(self, pod: str, moment: float) -> bool:
        limits = self._limits
        bucket = self._buckets.pop(pod, None) or Bucket(limits.burst, moment)
        self._buckets[pod] = bucket
        if len(self._buckets) > limits.pods:
            self._buckets.popitem(last=False)
        return bucket.take(moment, limits.burst, limits.rate)


def longest(kind: Kind, rank: int) -> int:
    """Return the size of a content that is stored at most, in bytes."""
    if kind == "raised":
        return ERROR_BYTES
    if rank >= VALUE_RANKS:
        return 0
    return FURTHER_VALUE_BYTES if rank else VALUE_BYTES


def received(size: int, stored: bool | None = None) -> Answer:
    """Return the answer after which the sender continues at `size`.

    `stored` is set when everything was received: it was stored, or deliberately not.
    """
    return Answer(200, {"received": size} if stored is None else {"received": size, "stored": stored})


_decode = msgspec.json.Decoder(Header).decode
