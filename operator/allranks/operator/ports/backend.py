"""What the HTTP servers ask the controller: in its process (`local_backend`), or over a socket (`socket_client`)."""

from __future__ import annotations

import hashlib
from typing import NamedTuple, Protocol

from allranks.telemetry.messages import Answer


class NoAnswer(Exception):
    """The controller does not answer now: it starts, restarts or hangs, or too many calls wait for it."""


class Page(NamedTuple):
    """The metrics, as Prometheus reads them."""

    content_type: str
    body: bytes


def token_hash(token: str) -> bytes:
    """Return what caches keep of a token."""
    return hashlib.sha256(token.encode(errors="replace")).digest()


class Gate(Protocol):
    """Decides who may read /metrics."""

    async def admits(self, authorization: str, peer: str) -> int:
        """Return 200, or the HTTP code of the rejection."""
        ...


class Backend(Gate, Protocol):
    """Callers are authenticated here, not by the HTTP servers: these may run in a process without any rights."""

    async def identify(self, token: str) -> None:
        """Accept the token of a rank. Raises Denied."""

    async def report(self, token: str, body: bytes) -> Answer:
        """Store a message of the owner of an accepted token."""
        ...

    async def outcome(self, token: str, body: bytes) -> Answer:
        """Take a part of what a rank's function returned or raised, from the owner of an accepted token."""
        ...

    async def process(self, token: str, body: bytes) -> Answer:
        """Take the state of a supervisor, from the owner of an accepted token, and wait for its next order."""
        ...

    async def code(self, token: str, body: bytes) -> Answer:
        """Return the code of the job to the owner of an accepted token."""
        ...

    async def check(self, name: str) -> str:
        """Return the problem for the probe `healthz` or `readyz`, empty if nothing is."""
        ...

    async def metrics(self) -> Page:
        """Raises NoAnswer."""
        ...

    def count(self, status: int, count: int = 1) -> None:
        """Count responses to reports by their HTTP code."""
