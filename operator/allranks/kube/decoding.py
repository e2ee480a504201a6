"""Decodes JSON of the API server, also where it is nested as deeply as the API server stores it: ten thousand levels.

A user may nest a pod template that deeply. msgspec and `json` stop at Python's recursion limit of a thousand levels,
also in parts that they skip, so that one such object would end a watch for all others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_RECURSION_LIMIT = 25_000
"""The limit of the API server (Go's encoding/json), with the frames around it. A level that is skipped takes about a
hundred bytes of the stack."""


def decoder(kind: type[T]) -> Callable[[Any], T]:
    """Return a function that decodes bytes, text or msgspec.Raw. It raises msgspec.DecodeError."""
    decode: Callable[[Any], T] = msgspec.json.Decoder(kind).decode

    def deep(data: Any) -> T:
        try:
            return decode(data)
        except RecursionError:
            limit = sys.getrecursionlimit()
            sys.setrecursionlimit(_RECURSION_LIMIT)
            try:
                return decode(data)
            except RecursionError as error:
                raise msgspec.DecodeError(str(error)) from error
            finally:
                sys.setrecursionlimit(limit)

    return deep


class ListMeta(msgspec.Struct, rename="camel"):
    """Metadata of a list's page, or the version of a single object."""

    resource_version: str = "0"
    # `continue` is a keyword.
    further: str = msgspec.field(default="", name="continue")


class ObjectMeta(msgspec.Struct, rename="camel", omit_defaults=True):
    """Metadata of an object that is kept as JSON text. Pods have another type (`raw_pod`), with dates."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
