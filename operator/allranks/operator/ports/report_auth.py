"""Authenticates rank reports: one TokenReview per token (cached by hash), then pod -> rank from the pod cache.

A token with another audience or for a pod that does not exist is rejected without a TokenReview, so that forged tokens
put no load on the API server.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from allranks.core.manifests.report_env import AUDIENCE
from allranks.core.model import Manifest
from allranks.core.naming import NO_RANKS
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, Fenced, Unavailable
from allranks.kube.pod_codec import CachedPod
from allranks.operator.cache import JobKey, PodCache
from allranks.operator.timing import Clock, Timing
from allranks.telemetry.answers import Denied, ReportSource

RETRY_AFTER_SECONDS = 5.0
"""Sent with a 503 while the API server is unavailable or too many tokens wait."""
_LOG_INTERVAL = 300.0

logger = logging.getLogger("allranks.reports")


@dataclass(frozen=True, slots=True)
class ReviewLimits:
    concurrency: int = 8
    """Concurrent TokenReviews. The other request slots of the client are for reconciliation."""
    waiting: int = 4096
    """Tokens that wait for their review. Senders of further tokens get 503."""
    accepted: int = 100_000
    """Cached tokens."""
    rejected: int = 10_000


class _Pod(msgspec.Struct):
    name: str
    uid: str


class _Bound(msgspec.Struct):
    namespace: str
    pod: _Pod


class _Claims(msgspec.Struct):
    """The claims of a bound service account token that are used. They are trusted only after the review."""

    aud: list[str] | str
    exp: float
    bound: _Bound = msgspec.field(name="kubernetes.io")


class _User(msgspec.Struct):
    username: str = ""
    extra: dict[str, list[str]] = {}


class _ReviewStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] = []


class _Review(msgspec.Struct):
    status: _ReviewStatus = msgspec.field(default_factory=_ReviewStatus)


_claims = msgspec.json.Decoder(_Claims).decode
_decode_review = msgspec.json.Decoder(_Review).decode
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
_INVALID = f"invalid token: it needs the audience {AUDIENCE} and an existing pod"


class _Identity(NamedTuple):
    """The pod of a token."""

    until: float
    """Expiry of the token, seconds since the epoch."""
    namespace: str
    pod: str
    uid: str


class Reviews:
    """`job` returns the manifest of a cached job. Each session has its own instance, and so its own token cache."""

    def __init__(
        self,
        client: Client,
        pods: PodCache,
        job: Callable[[JobKey], Manifest | None],
        *,
        timing: Timing,
        clock: Clock,
        limits: ReviewLimits | None = None,
    ) -> None:
        self._client, self._pods, self._job = client, pods, job
        self._timing, self._clock, self._limits = timing, clock, limits or ReviewLimits()
        self._accepted: OrderedDict[bytes, _Identity] = OrderedDict()
        self._rejected: OrderedDict[bytes, float] = OrderedDict()
        self._reviewing: dict[bytes, asyncio.Task[_Identity | Denied]] = {}
        self._slots = asyncio.Semaphore(self._limits.concurrency)
        self._logged_at = float("-inf")

    async def identify(self, token: str) -> ReportSource:
        """Raises Denied."""
        key = _key(token)
        identity = self._cached(key)
        if identity is None:
            identity = await self._review_once(key, token)
        return self._source(key, identity)

    def accepted(self, token: str) -> ReportSource:
        """The sender of a token that `identify` accepted. Starts no review. Raises Denied."""
        key = _key(token)
        identity = self._cached(key)
        if identity is None:
            raise Denied(503, "the token was not checked in this session of the operator yet", 1.0)
        return self._source(key, identity)

    def close(self) -> None:
        for task in self._reviewing.values():
            task.cancel()

    def _cached(self, key: bytes) -> _Identity | None:
        identity = self._accepted.get(key)
        if identity is not None and identity.until > self._clock.now().timestamp():
            return identity
        self._accepted.pop(key, None)
        if self._rejected.get(key, float("-inf")) > self._clock.monotonic():
            raise Denied(401, _INVALID)
        return None

    async def _review_once(self, key: bytes, token: str) -> _Identity:
        """Concurrent requests with the same token share one review, which continues when they disconnect."""
        task = self._reviewing.get(key)
        if task is None:
            claimed = self._parse_claims(token)
            if len(self._reviewing) >= self._limits.waiting:
                raise Denied(503, "too many new tokens", RETRY_AFTER_SECONDS)
            task = self._reviewing[key] = asyncio.get_running_loop().create_task(self._decide(key, token, claimed))
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Denied(503, "this replica is shutting down", 1.0) from None
            raise
        if isinstance(answer, Denied):
            raise answer
        return answer

    def _parse_claims(self, token: str) -> _Identity:
        """Checks the token without a review. Raises Denied."""
        try:
            _, payload, _ = token.split(".")
            claims = _claims(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        except (ValueError, RecursionError) as error:
            raise Denied(401, _INVALID) from error
        audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud
        if AUDIENCE not in audiences or claims.exp <= self._clock.now().timestamp():
            raise Denied(401, _INVALID)
        claimed = _Identity(claims.exp, claims.bound.namespace, claims.bound.pod.name, claims.bound.pod.uid)
        if self._pod(claimed) is None:
            raise Denied(403, "no such pod of a job")
        return claimed

    async def _decide(self, key: bytes, token: str, claimed: _Identity) -> _Identity | Denied:
        try:
            async with self._slots:
                valid = await self._review(token, claimed)
        except Denied as denied:
            return denied
        finally:
            del self._reviewing[key]
        if not valid:
            self._rejected[key] = self._clock.monotonic() + self._timing.token_rejected_ttl
            if len(self._rejected) > self._limits.rejected:
                self._rejected.popitem(last=False)
            return Denied(401, _INVALID)
        self._accepted[key] = claimed
        if len(self._accepted) > self._limits.accepted:
            self._accepted.popitem(last=False)
        return claimed

    async def _review(self, token: str, claimed: _Identity) -> bool:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        try:
            retry_timeout = self._timing.token_review_retry
            answer = await self._client.request("POST", paths.TOKEN_REVIEWS, body, retry_timeout=retry_timeout)
            status = _decode_review(answer).status
        except (Unavailable, Fenced) as error:
            raise Denied(503, "the API server is unavailable", RETRY_AFTER_SECONDS) from error
        except (ApiError, msgspec.DecodeError) as error:
            self._log(error)
            raise Denied(503, "the operator is not allowed to review tokens", 60.0) from error
        user = status.user
        return (
            status.authenticated
            and AUDIENCE in status.audiences
            and user.username.startswith(f"system:serviceaccount:{claimed.namespace}:")
            and user.extra.get(_POD_NAME) == [claimed.pod]
            and user.extra.get(_POD_UID) == [claimed.uid]
        )

    def _log(self, error: Exception) -> None:
        now = self._clock.monotonic()
        if now - self._logged_at > _LOG_INTERVAL:
            self._logged_at = now
            logger.error(
                "reports are lost: cannot review tokens (needs `create tokenreviews`, a ClusterRole): %s", error
            )

    def _pod(self, identity: _Identity) -> CachedPod | None:
        cached = self._pods.get(identity.namespace, identity.pod)
        return cached if cached is not None and cached.pod.uid == identity.uid else None

    def _source(self, key: bytes, identity: _Identity) -> ReportSource:
        cached = self._pod(identity)
        if cached is None:
            self._accepted.pop(key, None)
            raise Denied(403, "this pod no longer exists")
        name, pod = (cached.namespace, cached.label), cached.pod
        job = self._job(name)
        if job is None or not cached.owner or job["metadata"].get("uid") != cached.owner:
            raise Denied(403, "this pod belongs to no job")
        if pod.role in NO_RANKS or not pod.role or pod.index < 0 or not 0 <= pod.attempt <= attempt_of(job):
            raise Denied(403, "this pod is not a rank of its job")
        return ReportSource(
            name, cached.owner, pod.name, pod.uid, pod.role, pod.index, pod.attempt, pod.restart, pod.node
        )


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def attempt_of(job: Manifest) -> int:
    """The current attempt. The status is written before pods are created, so a pod of a later attempt is not ours."""
    status = job.get("status")
    attempt = status.get("attempt") if isinstance(status, dict) else None
    return attempt if isinstance(attempt, int) else 0
