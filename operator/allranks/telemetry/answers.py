"""The sender of a report and the response to it. Without the store: a process that only speaks HTTP stays small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    restart: int
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
