"""Reviews bearer tokens and caches what was decided about each, by the hash of the token.

Requests with the same token share one review. Accepted and rejected tokens have limits of their own: forged tokens do
not displace valid ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from allranks.kube import paths
from allranks.kube.client import Client
from allranks.operator.timing import Clock

T = TypeVar("T")

_LOG_INTERVAL = 300.0


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class ReviewStatus(msgspec.Struct):
    """The answer of the API server."""

    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] = []


class _Review(msgspec.Struct):
    status: ReviewStatus = msgspec.field(default_factory=ReviewStatus)


_decode = msgspec.json.Decoder(_Review).decode


async def review_token(
    client: Client, token: str, audiences: Sequence[str] = (), retry_timeout: float | None = None
) -> ReviewStatus:
    """Send a TokenReview. Raises ApiError, DecodeError."""
    spec: dict[str, Any] = {"token": token} | ({"audiences": list(audiences)} if audiences else {})
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    return _decode(await client.request("POST", paths.TOKEN_REVIEWS, body, retry_timeout=retry_timeout)).status


class Decision(NamedTuple, Generic[T]):
    """What was decided about a token."""

    value: T
    accepted: bool
    seconds: float
    """How long it is cached. 0: not at all, because the review failed."""


class TokenReviews(Generic[T]):
    """Decisions by the hash of the token."""

    def __init__(self, clock: Clock, *, accepted: int, rejected: int, waiting: int) -> None:
        """`accepted`, `rejected`: cached tokens. `waiting`: tokens that wait for their review."""
        self._clock, self._waiting = clock, waiting
        self._limits = {True: accepted, False: rejected}
        self._decided: dict[bool, OrderedDict[bytes, tuple[float, T]]] = {True: OrderedDict(), False: OrderedDict()}
        """accepted -> hash -> (until, value)."""
        self._reviewing: dict[bytes, asyncio.Task[T]] = {}
        self._logged_at = float("-inf")
        self.closed = False

    @property
    def cached(self) -> tuple[int, int]:
        """Return the numbers of accepted and rejected tokens."""
        return len(self._decided[True]), len(self._decided[False])

    @property
    def full(self) -> bool:
        """Return whether too many tokens wait for another one to be reviewed."""
        return len(self._reviewing) >= self._waiting

    def get(self, key: bytes) -> T | None:
        for decided in self._decided.values():
            if (entry := decided.get(key)) is not None:
                if entry[0] > self._clock.monotonic():
                    return entry[1]
                del decided[key]
        return None

    def forget(self, key: bytes) -> None:
        for decided in self._decided.values():
            decided.pop(key, None)

    def is_reviewed(self, key: bytes) -> bool:
        """Return whether a request with this token waits for its review."""
        return key in self._reviewing

    async def decide(self, key: bytes, review: Callable[[], Awaitable[Decision[T]]] | None) -> T:
        """Review a token and return the decision about it. Without `review`, join the review that is under way.

        It continues when its requests disconnect. Raises CancelledError after `close`.
        """
        if review is not None:
            self._reviewing[key] = asyncio.get_running_loop().create_task(self._keep(key, review))
        return await asyncio.shield(self._reviewing[key])

    async def _keep(self, key: bytes, review: Callable[[], Awaitable[Decision[T]]]) -> T:
        try:
            value, accepted, seconds = await review()
        finally:
            del self._reviewing[key]
        if seconds > 0:
            decided = self._decided[accepted]
            decided[key] = self._clock.monotonic() + seconds, value
            decided.move_to_end(key)
            if len(decided) > self._limits[accepted]:
                decided.popitem(last=False)
        return value

    def close(self) -> None:
        self.closed = True
        for task in self._reviewing.values():
            task.cancel()

    def log_failure(self, logger: logging.Logger, message: str, error: Exception) -> None:
        """Log that tokens cannot be reviewed, every few minutes."""
        now = self._clock.monotonic()
        if now - self._logged_at > _LOG_INTERVAL:
            self._logged_at = now
            logger.error("%s: %s", message, error)
