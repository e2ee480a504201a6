"""Whose token a report came with: the API server says so (TokenReview), once for each token; the cache says which rank
of which job that pod is.

A token that is not for us, or not of a pod that is there, is refused without asking anybody: what a stranger makes up
costs the API server nothing. Tokens are kept as their hashes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import msgspec

from allranks.core.manifests.report_env import AUDIENCE
from allranks.core.model import Manifest
from allranks.core.naming import PLACEHOLDER
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, Fenced, Unavailable
from allranks.kube.pod_codec import CachedPod
from allranks.operator.cache import JobKey, PodCache
from allranks.telemetry.server import Denied
from allranks.telemetry.store import ReportSource

AT_ONCE = 8
"""Reviews; the rest of the client's slots is for what the operator is there for."""
WAITING = 4096
"""Tokens that wait for their review. Further ones are told to come again."""
PATIENCE_SECONDS = 2.0
"""So long an API server that is away is asked again before the sender is told to come later, who waits 3 s."""
AWAY_SECONDS = 5.0
"""Until it may."""
KNOWN = 100_000
REFUSED = 10_000
REFUSED_SECONDS = 30.0
"""An answer that a token is nobody's holds so long: an API server that is behind does not know the newest pods."""
_COMPLAINT_SECONDS = 300.0

logger = logging.getLogger("allranks.reports")


class _Pod(msgspec.Struct):
    name: str
    uid: str


class _Bound(msgspec.Struct):
    namespace: str
    pod: _Pod


class _Claims(msgspec.Struct):
    """Of a bound service account token, as far as it matters. What they say is believed after the review only."""

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
_review = msgspec.json.Decoder(_Review).decode
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
_NOBODYS = "this token is nobody's: it needs the audience " + AUDIENCE + " and a pod that is there"


class _Known(NamedTuple):
    """A token that was reviewed."""

    until: float
    """By the wall's clock, as the token itself says."""
    namespace: str
    pod: str
    uid: str


class Reviews:
    """`job` answers with the manifest of a job that is known. One life is a session's: the cache is its own."""

    def __init__(
        self,
        client: Client,
        pods: PodCache,
        job: Callable[[JobKey], Manifest | None],
        *,
        now: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._pods, self._job = client, pods, job
        self._now, self._monotonic = now, monotonic
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self._asked: dict[bytes, asyncio.Task[_Known | Denied]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._complained_at = float("-inf")

    async def identify(self, token: str) -> ReportSource:
        """Raises Denied."""
        key = hashlib.sha256(token.encode(errors="replace")).digest()
        known = self._remembered(key)
        if known is None:
            known = await self._ask(key, token)
        return self._sender(key, known)

    def close(self) -> None:
        for task in self._asked.values():
            task.cancel()

    def _remembered(self, key: bytes) -> _Known | None:
        known = self._known.get(key)
        if known is not None and known.until > self._now().timestamp():
            return known
        self._known.pop(key, None)
        if self._refused.get(key, float("-inf")) > self._monotonic():
            raise Denied(401, _NOBODYS)
        return None

    async def _ask(self, key: bytes, token: str) -> _Known:
        """One review of a token, however many ask meanwhile; it goes on when they hang up."""
        task = self._asked.get(key)
        if task is None:
            claimed = self._claimed(token)
            if len(self._asked) >= WAITING:
                raise Denied(503, "too many new tokens at once", AWAY_SECONDS)
            task = self._asked[key] = asyncio.get_running_loop().create_task(self._asks(key, token, claimed))
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Denied(503, "this replica stops", 1.0) from None
            raise
        if isinstance(answer, Denied):
            raise answer
        return answer

    def _claimed(self, token: str) -> _Known:
        """What the token says of itself. Raises Denied when that alone will not do."""
        try:
            _, payload, _ = token.split(".")
            claims = _claims(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        except (ValueError, RecursionError) as error:
            raise Denied(401, _NOBODYS) from error
        audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud
        if AUDIENCE not in audiences or claims.exp <= self._now().timestamp():
            raise Denied(401, _NOBODYS)
        claimed = _Known(claims.exp, claims.bound.namespace, claims.bound.pod.name, claims.bound.pod.uid)
        if self._pod(claimed) is None:
            raise Denied(403, "no such pod of a job")
        return claimed

    async def _asks(self, key: bytes, token: str, claimed: _Known) -> _Known | Denied:
        try:
            async with self._slots:
                right = await self._reviewed(token, claimed)
        except Denied as denied:
            return denied
        finally:
            del self._asked[key]
        if not right:
            self._refused[key] = self._monotonic() + REFUSED_SECONDS
            if len(self._refused) > REFUSED:
                self._refused.popitem(last=False)
            return Denied(401, _NOBODYS)
        self._known[key] = claimed
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)
        return claimed

    async def _reviewed(self, token: str, claimed: _Known) -> bool:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        try:
            answer = await self._client.request("POST", paths.TOKEN_REVIEWS, body, retry_timeout=PATIENCE_SECONDS)
            status = _review(answer).status
        except (Unavailable, Fenced) as error:
            raise Denied(503, "the API server is away", AWAY_SECONDS) from error
        except (ApiError, msgspec.DecodeError) as error:
            self._complain(error)
            raise Denied(503, "the operator may not ask whose token this is", 60.0) from error
        user = status.user
        return (
            status.authenticated
            and AUDIENCE in status.audiences
            and user.username.startswith(f"system:serviceaccount:{claimed.namespace}:")
            and user.extra.get(_POD_NAME) == [claimed.pod]
            and user.extra.get(_POD_UID) == [claimed.uid]
        )

    def _complain(self, error: Exception) -> None:
        if self._monotonic() - self._complained_at > _COMPLAINT_SECONDS:
            self._complained_at = self._monotonic()
            logger.error("reports are lost: tokens cannot be reviewed (create tokenreviews, a ClusterRole): %s", error)

    def _pod(self, known: _Known) -> CachedPod | None:
        seen = self._pods.at(known.namespace, known.pod)
        return seen if seen is not None and seen.pod.uid == known.uid else None

    def _sender(self, key: bytes, known: _Known) -> ReportSource:
        seen = self._pod(known)
        if seen is None:
            self._known.pop(key, None)
            raise Denied(403, "this pod is gone")
        name, pod = (seen.namespace, seen.label), seen.pod
        job = self._job(name)
        if job is None or not seen.owner or job["metadata"].get("uid") != seen.owner:
            raise Denied(403, "this pod belongs to no job")
        if pod.role == PLACEHOLDER or not pod.role or pod.index < 0 or not 0 <= pod.attempt <= _attempt(job):
            raise Denied(403, "this pod is no rank of its job")
        return ReportSource(
            name, seen.owner, pod.name, pod.uid, pod.role, pod.index, pod.attempt, pod.restart, pod.node
        )


def _attempt(job: Manifest) -> int:
    """The present one. Pods of a later one are not ours: it is written down before they are created."""
    status = job.get("status")
    attempt = status.get("attempt") if isinstance(status, dict) else None
    return attempt if isinstance(attempt, int) else 0
