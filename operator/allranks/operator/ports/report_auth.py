"""Authenticates rank reports: one TokenReview for each token, then pod -> rank from the pod cache.

A token with another audience or for a pod that does not exist is rejected without a TokenReview, so that forged tokens
put no load on the API server.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from allranks.core.facts.model import Manifest, Pod
from allranks.core.facts.naming import NO_RANKS, replica_key
from allranks.core.objects.report_env import AUDIENCE
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, Fenced, Unavailable
from allranks.kube.pod_codec import CachedPod
from allranks.operator.cache import JobKey, PodCache
from allranks.operator.ports.backend import token_hash
from allranks.operator.ports.token_reviews import Decision, TokenReviews, review_token
from allranks.operator.timing import Clock, Timing
from allranks.telemetry.messages import Denied, ReportSource

RETRY_AFTER_SECONDS = 5.0
"""Sent with a 503 while the API server is unavailable or too many tokens wait."""

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


_claims = msgspec.json.Decoder(_Claims).decode
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
_INVALID = f"invalid token: it needs the audience {AUDIENCE} and an existing pod"


class _Identity(NamedTuple):
    """The pod of a token."""

    until: float
    """Expiry of the token, seconds since the epoch."""
    namespace: str
    pod: str
    uid: str


_REJECTED = _Identity(0.0, "", "", "")
"""Cached instead of a Denied, whose traceback would keep the token."""


def _identity(answer: _Identity | Denied) -> _Identity:
    """Raises Denied."""
    if isinstance(answer, Denied):
        raise answer
    if answer is _REJECTED:
        raise Denied(401, _INVALID)
    return answer


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
        self._timing, self._clock, limits = timing, clock, limits or ReviewLimits()
        self.tokens: TokenReviews[_Identity | Denied] = TokenReviews(
            clock, accepted=limits.accepted, rejected=limits.rejected, waiting=limits.waiting
        )
        self._slots = asyncio.Semaphore(limits.concurrency)

    async def identify(self, token: str) -> ReportSource:
        """Raises Denied."""
        key = token_hash(token)
        identity = self._cached(key)
        if identity is None:
            identity = await self._review_once(key, token)
        return self._source(key, identity)

    def accepted(self, token: str) -> ReportSource:
        """Return the sender of a token that `identify` accepted. Starts no review. Raises Denied."""
        key = token_hash(token)
        identity = self._cached(key)
        if identity is None:
            raise Denied(503, "the token was not checked in this session of the operator yet", 1.0)
        return self._source(key, identity)

    def close(self) -> None:
        self.tokens.close()

    def _cached(self, key: bytes) -> _Identity | None:
        """Raises Denied for a token that was rejected."""
        answer = self.tokens.get(key)
        if answer is None:
            return None
        identity = _identity(answer)
        if identity.until > self._clock.now().timestamp():
            return identity
        self.tokens.forget(key)
        return None

    async def _review_once(self, key: bytes, token: str) -> _Identity:
        review = None
        if not self.tokens.is_reviewed(key):
            claimed = self._parse_claims(token)
            if self.tokens.full:
                raise Denied(503, "too many new tokens", RETRY_AFTER_SECONDS)
            review = partial(self._decide, token, claimed)
        try:
            return _identity(await self.tokens.decide(key, review))
        except asyncio.CancelledError:
            if self.tokens.closed:
                raise Denied(503, "this replica is shutting down", 1.0) from None
            raise

    def _parse_claims(self, token: str) -> _Identity:
        """Check the token without a review. Raises Denied."""
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

    async def _decide(self, token: str, claimed: _Identity) -> Decision[_Identity | Denied]:
        try:
            async with self._slots:
                valid = await self._review(token, claimed)
        except Denied as denied:
            return Decision(denied, False, 0.0)
        if not valid:
            return Decision(_REJECTED, False, self._timing.token_rejected_ttl)
        return Decision(claimed, True, float("inf"))

    async def _review(self, token: str, claimed: _Identity) -> bool:
        try:
            status = await review_token(self._client, token, [AUDIENCE], self._timing.token_review_retry)
        except (Unavailable, Fenced) as error:
            raise Denied(503, "the API server is unavailable", RETRY_AFTER_SECONDS) from error
        except (ApiError, msgspec.DecodeError) as error:
            message = "reports are lost: cannot review tokens (needs `create tokenreviews`, a ClusterRole)"
            self.tokens.log_failure(logger, message, error)
            raise Denied(503, "the operator is not allowed to review tokens", 60.0) from error
        user = status.user
        return (
            status.authenticated
            and AUDIENCE in status.audiences
            and user.username.startswith(f"system:serviceaccount:{claimed.namespace}:")
            and user.extra.get(_POD_NAME) == [claimed.pod]
            and user.extra.get(_POD_UID) == [claimed.uid]
        )

    def _pod(self, identity: _Identity) -> CachedPod | None:
        cached = self._pods.get(identity.namespace, identity.pod)
        return cached if cached is not None and cached.pod.uid == identity.uid else None

    def _source(self, key: bytes, identity: _Identity) -> ReportSource:
        cached = self._pod(identity)
        if cached is None:
            self.tokens.forget(key)
            raise Denied(403, "this pod no longer exists")
        name, pod = (cached.namespace, cached.label), cached.pod
        job = self._job(name)
        if job is None or not cached.owner or job["metadata"].get("uid") != cached.owner:
            raise Denied(403, "this pod belongs to no job")
        if pod.role in NO_RANKS or not pod.role or pod.index < 0 or not 0 <= pod.attempt <= attempt_of(job):
            raise Denied(403, "this pod is not a rank of its job")
        attempt = attempt_in(job, pod.attempt)
        restart = restart_in(job, pod)
        return ReportSource(name, cached.owner, pod.name, pod.uid, pod.role, pod.index, attempt, restart, pod.node)


def attempt_of(job: Manifest) -> int:
    """Return the current attempt. The status is written before pods are created, so a pod of a later attempt is not
    ours."""
    attempt = _number(job, "attempt")
    return attempt if attempt is not None else 0


def attempt_in(job: Manifest, created_for: int) -> int:
    """Return the attempt that runs in pods which were created for an attempt: a later one may restart in them."""
    return attempt_of(job) if _number(job, "podsOfAttempt") == created_for else created_for


def restart_in(job: Manifest, pod: Pod) -> int:
    """Return which restart of its replica alone runs in a pod: the one that it was created for, or a later one."""
    status = job.get("status")
    entries = status.get("replicaRestarts") if isinstance(status, dict) else None
    entry = entries.get(replica_key(pod.role, pod.index)) if isinstance(entries, dict) else None
    if not isinstance(entry, dict):
        return pod.restart
    count, in_pod = entry.get("count"), entry.get("inPod")  # no schema has validated them
    if isinstance(count, int) and isinstance(in_pod, int) and count - in_pod == pod.restart:
        return count
    return pod.restart


def _number(job: Manifest, name: str) -> int | None:
    """Return a number in the status, which no schema has validated."""
    status = job.get("status")
    number = status.get(name) if isinstance(status, dict) else None
    return number if isinstance(number, int) else None
