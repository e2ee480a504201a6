"""Messages between the frontend and the controller: 4 bytes with the length (big-endian), then MessagePack.

Each request has a number, which its reply repeats; replies come in any order. The controller decodes requests strictly
and closes the connection at the first one that is invalid, because a frontend may be in the hands of an attacker.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from allranks.telemetry import outcomes
from allranks.telemetry.messages import BODY_BYTES

REQUEST_BYTES = 32 * 1024
"""A request holds a token and a message: an HTTP header line has at most 8,190 bytes."""
REPLY_BYTES = 64 * 1024 * 1024
"""Of the metrics; the code of a job has up to 1.4 MB, and all other replies are small."""
TOKEN_BYTES = 8192

Id = Annotated[int, Meta(ge=0, le=2**62)]
Text = Annotated[str, Meta(max_length=TOKEN_BYTES)]
T = TypeVar("T")


class _Request(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    id: Id


class Identify(_Request, frozen=True, tag="identify"):
    """Reply: None, or the Answer of a rejection."""

    token: Text


class Report(_Request, frozen=True, tag="report"):
    """Reply: Answer."""

    token: Text
    body: Annotated[bytes, Meta(max_length=BODY_BYTES)]


class Outcome(_Request, frozen=True, tag="outcome"):
    """Reply: Answer."""

    token: Text
    body: Annotated[bytes, Meta(max_length=outcomes.BODY_BYTES)]


class Process(_Request, frozen=True, tag="process"):
    """Reply: Answer, after up to half a minute."""

    token: Text
    body: Annotated[bytes, Meta(max_length=BODY_BYTES)]


class Code(_Request, frozen=True, tag="code"):
    """Reply: Answer, with up to 1.4 MB."""

    token: Text
    body: Annotated[bytes, Meta(max_length=BODY_BYTES)]


class Check(_Request, frozen=True, tag="check"):
    """Reply: str."""

    name: Literal["healthz", "readyz"]


class Metrics(_Request, frozen=True, tag="metrics"):
    """Reply: Page."""


class Admits(_Request, frozen=True, tag="admits"):
    """Reply: int."""

    authorization: Text
    peer: Annotated[str, Meta(max_length=64)]


MAX_COUNT = 1_000_000
"""Largest number in one `Count`."""


class Count(_Request, frozen=True, tag="count"):
    """Numbers of responses to reports by their HTTP code. No reply."""

    counts: Annotated[
        dict[Annotated[int, Meta(ge=0, lt=1000)], Annotated[int, Meta(ge=1, le=MAX_COUNT)]], Meta(max_length=64)
    ]


Request = Identify | Report | Outcome | Process | Code | Check | Metrics | Admits | Count


class Reply(msgspec.Struct, array_like=True, frozen=True, gc=False):
    id: int
    result: msgspec.Raw
    failed: bool = False
    """The controller raised an exception, which is in its log."""


class ProtocolError(Exception):
    """The other side does not speak this protocol."""


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode


def request_frame(request: Request) -> bytes:
    return _frame(request)


def reply_frame(request: Request, result: Any, failed: bool = False) -> bytes:
    return _frame(Reply(request.id, msgspec.Raw(_encode(result)), failed))


def decode_request(data: bytes) -> Request:
    """Raises ProtocolError."""
    try:
        request: Request = _decode_request(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"invalid request: {str(error)[:200]}") from error
    return request


def decode_reply(data: bytes) -> Reply:
    """Raises ProtocolError."""
    try:
        return _decode_reply(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"invalid reply: {str(error)[:200]}") from error


def decode_result(reply: Reply, kind: type[T]) -> T:
    """Raises ProtocolError."""
    try:
        return msgspec.msgpack.decode(reply.result, type=kind)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"invalid result: {str(error)[:200]}") from error


async def read_frame(reader: asyncio.StreamReader, longest: int) -> bytes:
    """Raises ProtocolError, and IncompleteReadError at the end of the stream."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if not 0 < size <= longest:
        raise ProtocolError(f"a message of {size} bytes: at most {longest} are allowed")
    return await reader.readexactly(size)


def _frame(message: msgspec.Struct) -> bytes:
    data = _encode(message)
    return len(data).to_bytes(4, "big") + data
