"""The controller: what wakes a job again, and how often the API server is asked the same thing."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from allranks.core.model import Observed, Plan, Platform, Reports
from allranks.core.reconcile import reconcile
from allranks.kube import pod_codec
from allranks.kube.client import Client
from allranks.operator import controller as controllers
from allranks.operator.app import utcnow
from allranks.operator.apply import Executor
from allranks.operator.cache import PodCache
from allranks.operator.controller import Controller, Listener
from allranks.operator.event_recorder import Recorder
from allranks.operator.metrics import Metrics
from support.builders import NOW, rank
from support.scripted import Scripted, client_of, says, status

SPEC = {"framework": "pytorch", "image": "x", "command": ["a"], "roles": {"worker": {"replicas": 2}}}


def merged(before: Any, change: Any) -> Any:
    """RFC 7396"""
    if not isinstance(change, dict):
        return change
    before = before if isinstance(before, dict) else {}
    after = before | {key: merged(before.get(key), value) for key, value in change.items()}
    return {key: value for key, value in after.items() if change.get(key, 0) is not None}


class Api:
    """Keeps one job, and answers the creation of pods as a test says."""

    def __init__(self, refusal: Callable[[], str] | None = None, unknown: str = "") -> None:
        self.refusal, self.unknown = refusal, unknown
        self.versions = itertools.count(2)
        self.job: dict[str, Any] = {
            "metadata": {"name": "demo", "namespace": "ns", "uid": "u", "generation": 1, "resourceVersion": "1"},
            "spec": SPEC,
        }

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.text())
        version = str(next(self.versions))
        if request.path.endswith("/status"):
            body["status"].pop(self.unknown, None)
            after = merged(self.job.get("status", {}), body["status"])
            if after != self.job.get("status"):
                newer = {"status": after, "metadata": self.job["metadata"] | {"resourceVersion": version}}
                self.job = self.job | newer
            return await says(self.job)(request)
        if request.path.endswith("/pods") and self.refusal:
            return await status(403, "Forbidden", self.refusal())(request)
        body["metadata"] |= {"uid": body["metadata"]["name"], "resourceVersion": version}
        return await says(body)(request)


def controller_of(client: Client, reports: Listener | None = None) -> Controller:
    cache = PodCache(lambda key, trouble: controller.wake(key, trouble))
    executor = Executor(client, cache, pod_codec.to_cached_pod)
    controller = Controller(
        executor, Recorder(client), cache, lambda job: Platform(helper_image="x"), Metrics(), utcnow, reports
    )
    return controller


@asynccontextmanager
async def controlled(api: Api, may_write: Callable[[], bool] = lambda: True) -> AsyncIterator[Scripted]:
    """The job is looked at."""
    async with client_of(api, fence=may_write) as (client, asked):
        controller = controller_of(client)
        controller.seen(api.job, deleted=False)
        await controller.start()
        yield asked
        controller.close()


def created(asked: Scripted) -> list[str]:
    return [body["metadata"]["name"] for verb, path, _, body in asked.asked if path.endswith("/pods")]


def test_a_job_that_met_a_lease_renewed_too_late_is_not_forgotten() -> None:
    async def scenario() -> None:
        may = iter([False])
        async with controlled(Api(), lambda: next(may, True)) as asked, asyncio.timeout(60):
            while len(created(asked)) < 2:
                await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_after_an_hour_without_an_api_server_a_job_waits_for_half_a_minute_and_no_longer() -> None:
    async def scenario() -> None:
        async with client_of(status(503), retry_timeout=0.0) as (client, _), asyncio.timeout(60):
            controller = controller_of(client)
            controller.seen(Api().job, deleted=False)
            await controller.start()
            while not controller._memory or controller.depth:
                await asyncio.sleep(0.01)
            [memory] = controller._memory.values()
            memory.errors = 100
            controller.wake(("ns", "demo"))
            while controller.depth:
                await asyncio.sleep(0.01)
            assert memory.retry
            assert 10 < memory.retry.when() - asyncio.get_running_loop().time() <= 30
            controller.close()

    asyncio.run(scenario())


def words() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"request {next(numbers)}: denied"


@pytest.mark.parametrize("refusal", [words(), lambda: "denied"], ids=["in other words each time", "alike"])
def test_what_is_refused_is_asked_again_after_its_backoff_only(refusal: Callable[[], str]) -> None:
    async def scenario() -> None:
        began, api = time.monotonic(), Api(refusal)
        async with controlled(api) as asked, asyncio.timeout(60):
            while "Forbidden" not in str(api.job.get("status")):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            # After 1, 2, 4, ... seconds.
            assert 2 <= len(created(asked)) <= 2 * (1 + math.log2(1 + time.monotonic() - began))

    asyncio.run(scenario())


def test_a_status_that_the_api_server_prunes_is_not_written_over_and_over(caplog: pytest.LogCaptureFixture) -> None:
    """An operator that is newer than its CRDs."""

    async def scenario() -> list[Any]:
        async with controlled(Api(unknown="selector")) as asked, asyncio.timeout(60):
            while "older than the operator" not in caplog.text:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            return [body for verb, _, _, body in asked.asked if verb == "PATCH"]

    assert len(asyncio.run(scenario())) <= 5


def test_the_first_look_at_many_jobs_lets_others_have_their_turn() -> None:
    """In one go it would keep the Lease from being renewed, and the next holder after it."""

    async def scenario() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        api = Api()
        api.job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        async with client_of(api) as (client, _):
            controller = controller_of(client)
            for number in range(1000):
                metadata = api.job["metadata"] | {"name": f"demo-{number}", "resourceVersion": str(number + 1)}
                controller.seen(api.job | {"metadata": metadata}, deleted=False)
            task = asyncio.create_task(others())
            await controller.start()
            task.cancel()
            assert turns >= 20
            controller.close()

    asyncio.run(scenario())


def test_changes_that_are_no_trouble_are_one_look_and_trouble_is_looked_at_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[float] = []

    def looked(observed: Observed) -> Plan:
        looks.append(time.monotonic())
        return reconcile(observed)

    async def settled(controller: Controller) -> None:
        while not controller.idle:
            await asyncio.sleep(0.01)
        looks.clear()

    async def scenario() -> None:
        api, key = Api(), ("ns", "demo")
        async with client_of(api) as (client, _), asyncio.timeout(60):
            monkeypatch.setattr(controllers, "reconcile", looked)
            controller = controller_of(client)
            controller.seen(api.job, deleted=False)
            await controller.start()
            await settled(controller)
            monkeypatch.setattr(controllers, "BURST_SECONDS", 0.3)
            began = time.monotonic()
            for _ in range(20):
                controller.wake(key, trouble=False)
                await asyncio.sleep(0)
            assert not controller.idle
            while not looks:
                await asyncio.sleep(0.01)
            assert looks[0] - began >= 0.29
            await asyncio.sleep(0.4)
            assert len(looks) == 1
            await settled(controller)
            monkeypatch.setattr(controllers, "BURST_SECONDS", 60)
            controller.wake(key, trouble=False)
            controller.wake(key, trouble=True)
            await settled(controller)  # the look was for both
            controller.close()

    asyncio.run(scenario())


class Ranks:
    """They say how far they are, whenever they are asked."""

    def __init__(self) -> None:
        self.step = 1

    def of(self, job: tuple[str, str], uid: str, attempt: int) -> Reports:
        return Reports(NOW, (rank(0, self.step, stepped=self.step, pod="demo-worker-0-0"),))

    def stack_dump_id(self, job: tuple[str, str], question: str) -> None: ...

    def forget(self, job: tuple[str, str]) -> None: ...


def test_progress_alone_is_written_once_in_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """And once at all when nothing changes."""
    monkeypatch.setattr(controllers, "PROGRESS_SECONDS", 0.5)
    began: list[float] = []

    async def scenario() -> list[int]:
        api, ranks = Api(), Ranks()
        async with client_of(api) as (client, asked), asyncio.timeout(60):
            controller = controller_of(client, ranks)
            controller.seen(api.job, deleted=False)
            await controller.start()
            began.append(time.monotonic())
            while ranks.step < 100:
                ranks.step += 1
                controller.reported(("ns", "demo"))
                await asyncio.sleep(0.01)
            while '"step": 100' not in json.dumps(api.job):
                await asyncio.sleep(0.01)
            began.append(time.monotonic())
            for _ in range(50):
                controller.reported(("ns", "demo"))
                await asyncio.sleep(0.02)
            controller.close()
            told = [body["status"].get("progress", {}).get("step") for verb, *_, body in asked.asked if verb == "PATCH"]
            return [step for step in told if step]

    steps = asyncio.run(scenario())
    assert steps == sorted(set(steps))
    assert steps[-1] == 100
    # The first of them came with other news.
    assert len(steps) <= 2 + (began[1] - began[0]) / 0.5
