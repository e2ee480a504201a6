"""Decides who may read /metrics, as controller-runtime does: TokenReview, then SubjectAccessReview for GET /metrics.

Tokens that are not cached are reviewed at a limited rate for each address and with limited concurrency, so that forged
tokens put little load on the API server.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import msgspec

from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import ApiError
from allranks.operator.ports.backend import token_hash
from allranks.operator.ports.token_reviews import Decision, TokenReviews, review_token
from allranks.operator.timing import Clock
from allranks.telemetry.rate_limit import Bucket

ADMITTED_SECONDS, REJECTED_SECONDS = 60.0, 10.0
CACHED = 1024
WAITING = 32
REVIEWS_OF_PEER, REVIEWS_PER_SECOND = 5, 0.5
"""Per address: burst, and rate, of tokens that are not cached."""
PEERS = 1024

logger = logging.getLogger("allranks.operator")


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


class MetricsGate:
    """`connect` is called once, for the first review, because a client needs the running loop. The client should not
    retry for long: a scrape has a timeout of about ten seconds."""

    def __init__(self, connect: Callable[[], Client], clock: Clock) -> None:
        self._connect, self._clock = connect, clock
        self._client: Client | None = None
        self.tokens: TokenReviews[int] = TokenReviews(clock, accepted=CACHED, rejected=CACHED, waiting=WAITING)
        """HTTP codes."""
        self._budgets: OrderedDict[str, Bucket] = OrderedDict()

    async def admits(self, authorization: str, peer: str) -> int:
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return 401
        key, now = token_hash(token), self._clock.monotonic()
        if (code := self.tokens.get(key)) is not None:
            return code
        if self.tokens.is_reviewed(key):
            return await self.tokens.decide(key, None)
        if self.tokens.full or not self._budget(peer).take(now, REVIEWS_OF_PEER, REVIEWS_PER_SECOND):
            return 503
        return await self.tokens.decide(key, partial(self._decide, token))

    async def close(self) -> None:
        self.tokens.close()
        if self._client:
            await self._client.close()

    def _budget(self, peer: str) -> Bucket:
        bucket = self._budgets.pop(peer, None) or Bucket(REVIEWS_OF_PEER, self._clock.monotonic())
        self._budgets[peer] = bucket
        if len(self._budgets) > PEERS:
            self._budgets.popitem(last=False)
        return bucket

    async def _decide(self, token: str) -> Decision[int]:
        try:
            code = await self._review(token)
        except (ApiError, msgspec.DecodeError) as error:
            message = "cannot check who reads /metrics (needs `create` of tokenreviews and subjectaccessreviews)"
            self.tokens.log_failure(logger, message, error)
            return Decision(503, False, 0.0)
        return Decision(code, code == 200, ADMITTED_SECONDS if code == 200 else REJECTED_SECONDS)

    async def _review(self, token: str) -> int:
        self._client = client = self._client or self._connect()
        status = await review_token(client, token)
        if not status.authenticated:
            return 401
        user = status.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups,
            "extra": user.extra,
            "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        }
        access = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await client.create(paths.ACCESS_REVIEWS, access)
        return 200 if msgspec.json.decode(answer, type=_AccessReview).status.allowed else 403
