"""Authentication of reports: which TokenReviews are sent, how often, and which pods are rejected."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from aiohttp import web

from allranks.core.facts.naming import ATTEMPT_LABEL, INDEX_LABEL, JOB_LABEL, PLACEHOLDER, RESTART_LABEL, ROLE_LABEL
from allranks.core.objects.report_env import AUDIENCE
from allranks.kube.pod_codec import CachedPod, to_cached_pod
from allranks.kube.raw_pod import Labels, Meta, Owner, Raw, RawSpec
from allranks.operator.cache import PodCache
from allranks.operator.ports.report_auth import ReviewLimits, Reviews
from allranks.operator.timing import Clock, Timing
from allranks.telemetry.server import Denied
from allranks.telemetry.store import ReportSource
from support.scripted import Answer, Scripted, client_of, hangs, says, status

NAME, UID = "demo-worker-0-2", "uid-of-pod"
TIMING = Timing()


def pod(version: int = 1, uid: str = UID, name: str = NAME, job: str = "u-1", kind: str = "DistributedTraining",
        **labels: str) -> CachedPod:  # fmt: skip
    given = {JOB_LABEL: "demo", ROLE_LABEL: "worker", INDEX_LABEL: "0", ATTEMPT_LABEL: "2", RESTART_LABEL: "1"}
    given |= labels
    owners = [Owner(kind, "demo", job, True)] if job else []
    return to_cached_pod(
        Raw(Meta(name, "ns", uid, str(version), msgspec.convert(given, Labels), owners), RawSpec("node-a"))
    )


def token(seconds: float = 3600, signature: str = "sig", **claims: Any) -> str:
    said: dict[str, Any] = {
        "aud": [AUDIENCE],
        "exp": int(time.time() + seconds),
        "kubernetes.io": {"namespace": "ns", "pod": {"name": NAME, "uid": UID}, "serviceaccount": {"name": "default"}},
    }
    parts = [{"alg": "RS256"}, said | claims]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, signature])


def review(authenticated: bool = True, audiences: tuple[str, ...] = (AUDIENCE,), name: str = NAME, uid: str = UID,
           username: str = "system:serviceaccount:ns:default") -> Answer:  # fmt: skip
    extra = {"authentication.kubernetes.io/pod-name": [name], "authentication.kubernetes.io/pod-uid": [uid]}
    return says(
        {
            "kind": "TokenReview",
            "status": {
                "authenticated": authenticated,
                "audiences": list(audiences),
                "user": {"username": username, "extra": extra},
            },
        },
        201,
    )


class SteppedClock(Clock):
    def __init__(self) -> None:
        self.wall, self.seconds = datetime.now(UTC), 0.0

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.seconds


class World:
    def __init__(self, asked: Reviews, pods: PodCache, api: Scripted, clock: SteppedClock) -> None:
        self.reviews, self.pods, self.api, self.clock = asked, pods, api, clock

    async def denied(self, token: str) -> int:
        with pytest.raises(Denied) as raised:
            await self.reviews.identify(token)
        assert token not in str(raised.value)
        return raised.value.answer.status


@asynccontextmanager
async def reviewing(
    *script: Answer,
    job: dict[str, Any] | None = None,
    timing: Timing = TIMING,
    limits: ReviewLimits | None = None,
) -> AsyncIterator[World]:
    manifest = {"metadata": {"uid": "u-1"}, "status": {"attempt": 2}} if job is None else job
    async with client_of(*(script or (review(),)), retry_timeout=0.0) as (client, api), asyncio.timeout(60):
        pods = PodCache(lambda key, urgent: None)
        pods.upsert(pod())
        clock = SteppedClock()
        asked = Reviews(
            client,
            pods,
            lambda key: manifest if key == ("ns", "demo") else None,
            timing=timing,
            clock=clock,
            limits=limits,
        )
        yield World(asked, pods, api, clock)


def run(scenario: Awaitable[None]) -> None:
    asyncio.run(scenario)  # type: ignore[arg-type]


def test_a_token_is_reviewed_once_for_our_audience_and_then_cached() -> None:
    async def scenario() -> None:
        async with reviewing() as world:
            mine = token()
            for _ in range(3):
                assert await world.reviews.identify(mine) == ReportSource(
                    ("ns", "demo"), "u-1", NAME, UID, "worker", 0, attempt=2, restart=1, node="node-a"
                )
            [(verb, path, _, body)] = world.api.asked
            assert (verb, path) == ("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
            assert body["spec"] == {"token": mine, "audiences": [AUDIENCE]}
            assert mine not in str(vars(world.reviews))

    run(scenario())


def test_concurrent_requests_with_a_token_share_one_review() -> None:
    async def scenario() -> None:
        async with reviewing() as world:
            mine = token()
            senders = await asyncio.gather(*(world.reviews.identify(mine) for _ in range(50)))
            assert len({*senders}) == 1
            assert len(world.api.asked) == 1

    run(scenario())


def test_a_cancelled_request_does_not_cancel_the_review_of_others() -> None:
    async def scenario() -> None:
        async with reviewing() as world:
            mine = token()
            first = asyncio.create_task(world.reviews.identify(mine))
            second = asyncio.create_task(world.reviews.identify(mine))
            await asyncio.sleep(0)
            first.cancel()
            assert (await second).pod == NAME
            assert len(world.api.asked) == 1

    run(scenario())


DAY = 86_400
"""Tokens that are made when the tests are collected may be used hours later."""
UNASKED = {
    "no token of the API server": ("token-of-somebody", 401),
    "three parts of nothing": ("a.b.c", 401),
    "text that is no ASCII": ("é.\udcff.c", 401),
    "thousands of brackets": (f"a.{base64.urlsafe_b64encode(b'[' * 6000).decode()}.c", 401),
    "another audience": (token(DAY, aud=["https://kubernetes.default.svc"]), 401),
    "an audience in plain text": (token(DAY, aud="somebody"), 401),
    "no expiry": (token(exp=None), 401),
    "expired": (token(-1), 401),
    "a token that is bound to no pod": (token(DAY, **{"kubernetes.io": {"namespace": "ns"}}), 401),
    "a pod that is not there": (
        token(DAY, **{"kubernetes.io": {"namespace": "ns", "pod": {"name": "x", "uid": UID}}}),
        403,
    ),
    "an earlier pod of that name": (
        token(DAY, **{"kubernetes.io": {"namespace": "ns", "pod": {"name": NAME, "uid": "before"}}}),
        403,
    ),
    "a namesake elsewhere": (
        token(DAY, **{"kubernetes.io": {"namespace": "other", "pod": {"name": NAME, "uid": UID}}}),
        403,
    ),
}


@pytest.mark.parametrize("name", UNASKED)
def test_an_obviously_invalid_token_is_rejected_without_a_review(name: str) -> None:
    async def scenario() -> None:
        async with reviewing() as world:
            forged, code = UNASKED[name]
            assert await world.denied(forged) == code
            assert world.api.asked == []

    run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        review(authenticated=False),
        review(audiences=()),
        review(audiences=("https://kubernetes.default.svc",)),
        review(uid="another"),
        review(name="another"),
        review(username="system:serviceaccount:other:default"),
        review(username="system:serviceaccount:ns-2:default"),
        review(username="alice"),
        says({"status": {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": "alice"}}}),
    ],
    ids=["forged", "no audience", "another audience", "another uid", "another pod", "another namespace",
         "a namespace that begins alike", "a person", "no pod"],
)  # fmt: skip
def test_a_rejected_token_is_not_reviewed_again_until_its_ttl_expires(answer: Answer) -> None:
    async def scenario() -> None:
        async with reviewing(answer, review()) as world:
            mine = token()
            assert [await world.denied(mine) for _ in range(3)] == [401] * 3
            assert len(world.api.asked) == 1
            assert (await world.reviews.identify(token(signature="right"))).pod == NAME
            world.clock.seconds += TIMING.token_rejected_ttl + 1
            assert (await world.reviews.identify(mine)).pod == NAME
            assert len(world.api.asked) == 3

    run(scenario())


STRANGERS = {
    "without an owner": pod(2, job=""),
    "of a ReplicaSet": pod(2, job="u-9", kind="ReplicaSet"),
    "of a job that was deleted": pod(2, job="u-0"),
    "with the label of another job": pod(2, **{JOB_LABEL: "other"}),
    "without a label": pod(2, **{JOB_LABEL: ""}),
    "a placeholder": pod(2, **{ROLE_LABEL: PLACEHOLDER}),
    "without a role": pod(2, **{ROLE_LABEL: ""}),
    "without an index": pod(2, **{INDEX_LABEL: "x"}),
    "of no attempt": pod(2, **{ATTEMPT_LABEL: ""}),
    "of an attempt that was never begun": pod(2, **{ATTEMPT_LABEL: "3"}),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_pod_that_is_not_a_rank_of_a_cached_job_is_rejected(name: str) -> None:
    async def scenario() -> None:
        async with reviewing() as world:
            mine = token()
            await world.reviews.identify(mine)
            world.pods.upsert(STRANGERS[name])
            assert await world.denied(mine) == 403

    run(scenario())


def test_a_pod_of_a_former_attempt_is_authenticated() -> None:
    async def scenario() -> None:
        async with reviewing(job={"metadata": {"uid": "u-1"}, "status": {"attempt": 5}}) as world:
            assert (await world.reviews.identify(token())).attempt == 2

    run(scenario())


@pytest.mark.parametrize(("created_for", "attempt"), [(2, 5), (3, 2), (None, 2), ("2", 2)])
def test_a_later_attempt_may_run_in_a_pod(created_for: Any, attempt: int) -> None:
    async def scenario() -> None:
        status = {"attempt": 5, "podsOfAttempt": created_for}
        async with reviewing(job={"metadata": {"uid": "u-1"}, "status": status}) as world:
            assert (await world.reviews.identify(token())).attempt == attempt

    run(scenario())


@pytest.mark.parametrize(
    ("entry", "restart"),
    [
        ({"count": 3, "inPod": 2}, 3),
        ({"count": 3, "inPod": 1}, 1),
        ({"count": 3}, 1),
        ({"count": "3", "inPod": 2}, 1),
        (5, 1),
        (None, 1),
    ],
)
def test_a_later_restart_of_a_replica_alone_may_run_in_a_pod(entry: Any, restart: int) -> None:
    async def scenario() -> None:
        status = {"attempt": 2, "replicaRestarts": {"worker-0": entry}}
        async with reviewing(job={"metadata": {"uid": "u-1"}, "status": status}) as world:
            source = await world.reviews.identify(token())
            assert (source.role, source.index, source.restart) == ("worker", 0, restart)

    run(scenario())


@pytest.mark.parametrize("shape", [{}, {"status": 5}, {"status": {"attempt": "2"}}])
def test_a_job_with_an_invalid_status_is_in_its_first_attempt(shape: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with reviewing(job={"metadata": {"uid": "u-1"}, **shape}) as world:
            world.pods.upsert(pod(2, **{ATTEMPT_LABEL: "0"}))
            assert (await world.reviews.identify(token())).attempt == 0

    run(scenario())


def test_a_token_becomes_invalid_with_its_pod_and_at_its_expiry() -> None:
    async def scenario() -> None:
        async with reviewing() as world:
            mine = token()
            await world.reviews.identify(mine)
            world.clock.wall += timedelta(seconds=3601)
            assert await world.denied(mine) == 401
            world.clock.wall -= timedelta(seconds=3601)
            await world.reviews.identify(mine)
            world.pods.upsert(pod(3), deleted=True)
            assert await world.denied(mine) == 403
            assert world.reviews.tokens.cached == (0, 0)
            world.pods.upsert(pod(5, uid="of-the-next"))
            assert await world.denied(mine) == 403

    run(scenario())


@pytest.mark.parametrize(("fault", "after"), [(status(500), 5.0), (status(429), 5.0), (status(403), 60.0)])
def test_when_the_review_fails_the_sender_gets_503_and_nothing_is_cached(fault: Answer, after: float,
        caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    async def scenario() -> None:
        async with reviewing(fault, fault, review(), timing=Timing(token_review_retry=0.0)) as world:
            for _ in range(2):
                with pytest.raises(Denied) as raised:
                    await world.reviews.identify(token())
                assert (raised.value.answer.status, raised.value.answer.retry_after) == (503, after)
            assert (await world.reviews.identify(token())).pod == NAME

    run(scenario())
    assert [r.message[:35] for r in caplog.records] == (["reports are lost: cannot review tok"] if after == 60 else [])


def test_concurrent_and_waiting_reviews_are_limited() -> None:
    busy = most = 0

    async def slow(request: web.Request) -> web.StreamResponse:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0.01)
        busy -= 1
        return await review()(request)

    async def scenario() -> None:
        async with reviewing(slow, limits=replace(ReviewLimits(), waiting=20)) as world:
            asks = [world.reviews.identify(token(signature=str(number))) for number in range(30)]
            answers = await asyncio.gather(*asks, return_exceptions=True)
            codes = [answer.answer.status for answer in answers if isinstance(answer, Denied)]
            assert codes == [503] * 10
            assert most == ReviewLimits().concurrency

    run(scenario())


def test_the_caches_are_limited() -> None:
    limits = replace(ReviewLimits(), accepted=5, rejected=5)

    async def scenario() -> None:
        async with reviewing(review(authenticated=False), limits=limits) as world:
            for number in range(10):
                await world.denied(token(signature=str(number)))
            world.api.script = [review()]
            for number in range(10, 20):
                await world.reviews.identify(token(signature=str(number)))
            assert world.reviews.tokens.cached == (5, 5)
            assert not world.reviews.tokens._reviewing

    run(scenario())


def test_close_ends_all_waiting_requests() -> None:
    async def scenario() -> None:
        async with reviewing(hangs) as world:
            waiting = asyncio.create_task(world.denied(token()))
            while not world.api.asked:
                await asyncio.sleep(0.001)
            world.reviews.close()
            assert await waiting == 503

    run(scenario())
