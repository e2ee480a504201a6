"""Decides who may read /metrics, as controller-runtime does: TokenReview, then SubjectAccessReview for GET /metrics.

Decisions are cached by the hash of the token. Tokens that are not cached are reviewed at a limited rate per address and
with limited concurrency, so that forged tokens put little load on the API server.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import ApiError
from allranks.operator.timing import Clock
from allranks.telemetry.rate_limit import Bucket

ADMITTED_SECONDS, REJECTED_SECONDS = 60.0, 10.0
CACHED = 1024
WAITING = 32
REVIEWS_OF_PEER, REVIEWS_PER_SECOND = 5, 0.5
"""Per address: burst, and rate, of tokens that are not cached."""
PEERS = 1024
_LOG_INTERVAL = 300.0

logger = logging.getLogger("allranks.operator")


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)


class _TokenReview(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


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
        self._decided: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        """Hash of the token -> (until, HTTP code)."""
        self._reviewing: dict[bytes, asyncio.Task[int]] = {}
        self._budgets: OrderedDict[str, Bucket] = OrderedDict()
        self._logged_at = float("-inf")

    async def admits(self, authorization: str, peer: str) -> int:
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return 401
        key, now = hashlib.sha256(token.encode(errors="replace")).digest(), self._clock.monotonic()
        until, code = self._decided.get(key, (float("-inf"), 0))
        if until > now:
            return code
        task = self._reviewing.get(key)
        if task is None:
            if len(self._reviewing) >= WAITING or not self._budget(peer).take(now, REVIEWS_OF_PEER, REVIEWS_PER_SECOND):
                return 503
            task = self._reviewing[key] = asyncio.get_running_loop().create_task(self._decide(key, token))
        return await asyncio.shield(task)

    async def close(self) -> None:
        for task in self._reviewing.values():
            task.cancel()
        if self._client:
            await self._client.close()

    def _budget(self, peer: str) -> Bucket:
        bucket = self._budgets.pop(peer, None) or Bucket(REVIEWS_OF_PEER, self._clock.monotonic())
        self._budgets[peer] = bucket
        if len(self._budgets) > PEERS:
            self._budgets.popitem(last=False)
        return bucket

    async def _decide(self, key: bytes, token: str) -> int:
        try:
            code = await self._review(token)
        except (ApiError, msgspec.DecodeError) as error:
            self._log(error)
            return 503
        finally:
            del self._reviewing[key]
        seconds = ADMITTED_SECONDS if code == 200 else REJECTED_SECONDS
        self._decided.pop(key, None)
        self._decided[key] = self._clock.monotonic() + seconds, code
        if len(self._decided) > CACHED:
            self._decided.popitem(last=False)
        return code

    async def _review(self, token: str) -> int:
        self._client = client = self._client or self._connect()
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        answer = await client.create(paths.TOKEN_REVIEWS, review)
        found = msgspec.json.decode(answer, type=_TokenReview).status
        if not found.authenticated:
            return 401
        user = found.user
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

    def _log(self, error: Exception) -> None:
        now = self._clock.monotonic()
        if now - self._logged_at > _LOG_INTERVAL:
            self._logged_at = now
            logger.error(
                "cannot check who reads /metrics (needs `create` of tokenreviews and subjectaccessreviews): %s", error
            )
