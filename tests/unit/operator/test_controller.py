"""The controller: what triggers a reconcile, and how often the same request is sent."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from allranks.api.status import Status
from allranks.core.facts.model import Observed, Plan, Platform
from allranks.core.facts.rank_reports import Reports
from allranks.core.reconcile import reconcile
from allranks.core.rules import failure
from allranks.kube import job_codec, pod_codec
from allranks.kube.client import Client
from allranks.operator.apply import Executor
from allranks.operator.cache import JobCache, PodCache
from allranks.operator.controller import Controller
from allranks.operator.event_recorder import Recorder
from allranks.operator.job_state import WriteState
from allranks.operator.metrics import Metrics
from allranks.operator.observer import Observer
from allranks.operator.timing import Clock, Timing
from allranks.operator.workqueue import JobQueue
from support import fake_api
from support.builders import NOW, failed, manifest, rank, started
from support.builders import job as job_of
from support.fake_api import OneObject
from support.scripted import Scripted, client_of, says, status
from support.work_queue import SteppedClock, due_in

SPEC = fake_api.JOB["spec"]
NOTHING_POSTPONED = Timing(status_min_interval=0.0, counts_min_interval=0.0, counts_debounce=0.0)


def controller_of(client: Client, timing: Timing = NOTHING_POSTPONED, **how: Any) -> Controller:
    clock, reports = how.pop("clock", None) or Clock(), how.pop("reports", None)
    queue = JobQueue(timing, clock)
    pods = PodCache(queue.enqueue_pod_event, freed=queue.mark_changed)
    observer = Observer(pods, lambda job: Platform(helper_image="x"), clock, reports)
    executor = Executor(client, pods, pod_codec.to_cached_pod)
    return Controller(
        queue, JobCache(), observer, executor, Recorder(client), Metrics(), timing=timing, clock=clock, **how
    )


@asynccontextmanager
async def running(controller: Controller, *jobs: Any) -> AsyncIterator[Controller]:
    """The pods are listed, and these are the jobs."""
    for job in jobs:
        controller.on_job_event(job, deleted=False)
    controller.start()
    run = asyncio.create_task(controller.run())
    try:
        async with asyncio.timeout(300):
            yield controller
    finally:
        await controller.close()
        await run


async def settled(controller: Controller) -> None:
    """Wait until nothing happens before the clock of the controller advances."""
    while len(controller.queue):
        await asyncio.sleep(0.001)


def created(asked: Scripted) -> list[str]:
    return [body["metadata"]["name"] for verb, path, _, body in asked.asked if path.endswith("/pods")]


def test_a_job_that_was_fenced_by_a_late_lease_renewal_is_retried() -> None:
    async def scenario() -> None:
        may, api = iter([False]), OneObject()
        async with (
            client_of(api, fence=lambda: next(may, True)) as (client, asked),
            running(controller_of(client), api.object),
        ):
            while len(created(asked)) < 2:
                await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_after_a_long_outage_of_the_api_server_a_job_is_retried_within_half_a_minute() -> None:
    async def scenario() -> None:
        key = ("ns", "demo")
        async with client_of(status(503), retry_timeout=0.0) as (client, _):
            controller = controller_of(client)
            for _ in range(100):
                controller.queue.add_rate_limited(key)
            controller.queue.cancel_delay(key)
            async with running(controller, OneObject().object):
                while controller.queue.failures(key) == 100:
                    await asyncio.sleep(0.01)
                while len(controller.queue):
                    await asyncio.sleep(0.01)
                due = due_in(controller.queue, key)
                assert due
                assert 10 < due <= 30

    asyncio.run(scenario())


def messages() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"request {next(numbers)}: denied"


@pytest.mark.parametrize("refusal", [messages(), lambda: "denied"], ids=["different messages", "the same message"])
def test_rejected_creates_are_retried_only_after_their_backoff(refusal: Callable[[], str]) -> None:
    async def scenario() -> None:
        clock, api = SteppedClock(), OneObject(refusal=refusal)
        async with (
            client_of(api) as (client, asked),
            running(controller_of(client, clock=clock), api.object) as controller,
        ):
            await settled(controller)
            assert "Forbidden" in str(api.object["status"])
            for tries, backoff in enumerate((1, 2, 4, 8), 1):
                clock.advance(backoff - 0.01)
                await settled(controller)
                assert len(created(asked)) == 1 + tries
                clock.advance(0.01)
                await settled(controller)
                assert len(created(asked)) == 2 + tries, "one creation shows whether others may succeed"

    asyncio.run(scenario())


def test_a_status_field_that_the_api_server_prunes_is_not_written_again_and_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An operator that is newer than its CRDs."""

    async def scenario() -> list[Any]:
        clock, api = SteppedClock(), OneObject(unknown="selector")
        async with (
            client_of(api) as (client, asked),
            running(controller_of(client, clock=clock), api.object) as controller,
        ):
            for _ in range(60):
                await settled(controller)
                clock.advance(1)
            assert "older than the operator" in caplog.text
            return [body for verb, _, _, body in asked.asked if verb == "PATCH"]

    # In a minute, after delays that double from 1 to 30 s, each shorter by up to a half.
    assert len(asyncio.run(scenario())) <= 9


def test_an_operator_that_is_newer_than_its_crds_records_events(caplog: pytest.LogCaptureFixture) -> None:
    """And logs a dropped field once."""

    async def scenario() -> list[str]:
        api = OneObject(unknown="selector")
        async with client_of(api) as (client, _), running(controller_of(client), api.object) as controller:
            await settled(controller)
            controller.queue.add(("ns", "demo"))
            await settled(controller)
            return [controller._recorder._queue.get_nowait()["reason"]]

    assert asyncio.run(scenario()) == ["PodsCreated"]
    assert caplog.text.count("older than the operator") == 1


def test_when_a_namespace_is_listed_only_its_jobs_are_reconciled() -> None:
    """A release for five hundred namespaces begins with each of them in turn."""

    async def scenario() -> list[str]:
        looks: list[str] = []

        def decide(observed: Observed) -> Plan:
            looks.append(observed.job.metadata.namespace)
            return Plan()

        api = OneObject()
        jobs = [
            api.object | {"metadata": api.object["metadata"] | {"namespace": name, "uid": name}} for name in ("a", "b")
        ]
        async with client_of(api) as (client, _):
            controller = controller_of(client, decide=decide)
            for job in jobs:
                controller.on_job_event(job, deleted=False)
            controller.start("a")
            run = asyncio.create_task(controller.run())
            await settled(controller)
            controller.start("b")
            await settled(controller)
            await controller.close()
            await run
        return looks

    assert asyncio.run(scenario()) == ["a", "b"]


def test_the_first_reconciles_of_many_jobs_yield_to_other_tasks() -> None:
    """Otherwise they would delay the renewal of the Lease."""

    async def scenario() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        api = OneObject()
        api.object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        jobs = []
        for number in range(1000):
            metadata = api.object["metadata"] | {"name": f"demo-{number}", "resourceVersion": str(number + 1)}
            jobs.append(api.object | {"metadata": metadata})
        async with client_of(api) as (client, _), running(controller_of(client), *jobs) as controller:
            task = asyncio.create_task(others())
            while len(controller.queue):
                await asyncio.sleep(0)
            task.cancel()
            assert turns >= 20

    asyncio.run(scenario())


def test_benign_changes_are_one_reconcile_and_urgent_changes_are_reconciled_immediately() -> None:
    reconciles = 0

    def decide(observed: Observed) -> Plan:
        nonlocal reconciles
        reconciles += 1
        return reconcile(observed)

    async def scenario() -> None:
        nonlocal reconciles
        clock, api, key = SteppedClock(), OneObject(), ("ns", "demo")
        debounced = replace(NOTHING_POSTPONED, pod_event_debounce=60.0)
        async with (
            client_of(api) as (client, _),
            running(controller_of(client, debounced, decide=decide, clock=clock), api.object) as controller,
        ):

            async def reconciles_after(seconds: float) -> int:
                nonlocal reconciles
                reconciles = 0
                clock.advance(seconds)
                await settled(controller)
                return reconciles

            await reconciles_after(0)
            for _ in range(20):
                controller.queue.enqueue(key, urgent=False)
            assert not controller.idle
            assert await reconciles_after(59.9) == 0
            assert await reconciles_after(0.1) == 1
            assert controller.idle
            controller.queue.enqueue(key, urgent=False)
            controller.queue.enqueue(key, urgent=True)
            assert await reconciles_after(0) == 1
            assert controller.idle, "the urgent reconcile covers the debounced ones"
            assert await reconciles_after(120) == 0

    asyncio.run(scenario())


class Ranks:
    """Reports a step whenever the controller reads it."""

    def __init__(self) -> None:
        self.step = 1

    def snapshot(self, job: tuple[str, str], uid: str, attempt: int) -> Reports:
        return Reports(NOW, (rank(0, self.step, stepped=self.step, pod="demo-worker-0-0"),))

    def bound(self, job: tuple[str, str], uid: str, processes: object) -> None: ...

    def stack_dump_id(self, job: tuple[str, str], question: str) -> None: ...

    def request_checkpoint(self, job: tuple[str, str], number: int) -> None: ...

    def schedule_checkpoint(self, job: tuple[str, str], due: object) -> None: ...

    def forget(self, job: tuple[str, str]) -> None: ...


def test_progress_alone_is_written_once_per_interval() -> None:
    """And not at all when nothing changes."""

    async def scenario() -> list[int]:
        clock, api, ranks, key = SteppedClock(), OneObject(), Ranks(), ("ns", "demo")
        timing = replace(NOTHING_POSTPONED, progress_min_interval=20)
        async with (
            client_of(api) as (client, asked),
            running(controller_of(client, timing, reports=ranks, clock=clock), api.object) as controller,
        ):
            for _ in range(200):
                ranks.step = min(100, ranks.step + 1)
                controller.queue.enqueue_now(key)
                await settled(controller)
                clock.advance(1)
            steps = [
                body["status"].get("progress", {}).get("step") for verb, *_, body in asked.asked if verb == "PATCH"
            ]
            return [step for step in steps if step]

    steps = asyncio.run(scenario())
    assert steps == sorted(set(steps))
    assert steps[-1] == 100
    # The first one is written together with other changes.
    assert len(steps) <= 2 + 100 / 20


class LargeAndSmall(OneObject):
    """Keeps two jobs: all replicas of `large` have failed. `small` is created after the first decision about them."""

    def __init__(self, replicas: int) -> None:
        super().__init__()
        life = started(job_of(roles={"worker": replicas}, restart={"scope": "Pod"}))
        self.pods = [replace(failed("worker", index), name=f"large-worker-{index}-0") for index in range(replicas)]
        shown = manifest(roles={"worker": replicas}, name="large", restart={"scope": "Pod"})
        metadata = {"name": "large", "namespace": "ns", "uid": "u", "generation": 1, "resourceVersion": "1"}
        self.object = shown | {"metadata": metadata, "status": job_codec.encode(life.status)}
        self.small = shown | {"metadata": metadata | {"name": "small", "uid": "v"}, "spec": SPEC}
        self.order: list[str] = []
        self.controller: Controller | None = None

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        assert self.controller
        body = json.loads(await request.text())
        self.order.append(f"{request.method} {body['metadata'].get('name') or request.path.split('/')[-2]}")
        if request.path.endswith("/small/status"):
            version = {"resourceVersion": str(next(self.versions))}
            written = {"metadata": self.small["metadata"] | version, "status": body["status"]}
            return await says(self.small | written)(request)
        answer = await super().__call__(request)
        if self.order == ["PATCH large"]:
            self.controller.on_job_event(self.small, deleted=False)
        return answer


def test_another_job_has_its_turn_between_the_decisions_about_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "MAX_DECISIONS", 10)

    async def scenario() -> list[str]:
        api = LargeAndSmall(200)
        async with client_of(api) as (client, _):
            api.controller = controller = controller_of(client)
            for number, pod in enumerate(api.pods):
                controller._observer.pods.upsert(
                    pod_codec.CachedPod(number + 1, "ns", "u", frozenset({"large"}), "large", pod)
                )
            async with running(controller, api.object):
                while sum(entry == "PATCH large" for entry in api.order) < 20:
                    await asyncio.sleep(0.01)
        return api.order

    order = asyncio.run(scenario())
    before = order[: order.index("POST small-worker-0-0")]
    assert before.count("PATCH large") <= 7, "a third of the decisions about the large job"


def test_changes_of_a_status_by_someone_else_are_counted_and_those_of_the_operator_are_not() -> None:
    async def scenario() -> None:
        api, state = OneObject(), WriteState()
        async with client_of(api) as (client, _):
            writer = controller_of(client)._writer
            for number, (someone, count) in enumerate(
                (("", 0), ("spec", 0), ("status", 1), ("", 1), ("spec", 1), ("status", 2), ("status", 3))
            ):
                if someone == "status":
                    api.write_status({"activeSeconds": 100.0 + number})
                elif someone == "spec":
                    version = {"resourceVersion": str(next(api.versions)), "labels": {"number": str(number)}}
                    api.object = {**api.object, "metadata": api.object["metadata"] | version}
                assert await writer.write(("ns", "demo"), api.object, state, Status(active_seconds=float(number)))
                assert state.foreign == count

    asyncio.run(scenario())


class LargeJobs(OneObject):
    """Answers a request for a job with a job whose template is large."""

    def job(self, name: str) -> Any:
        spec = {**SPEC, "suspend": True, "template": {"metadata": {"annotations": {"x": "y" * 100_000}}}}
        return {"metadata": {**self.object["metadata"], "name": name}, "spec": spec}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        return await says(self.job(request.path.rpartition("/")[2]))(request)


def test_after_each_large_job_there_is_time_for_others() -> None:
    async def scenario() -> None:
        api, spans = LargeJobs(), list[tuple[float, float]]()

        def decide(observed: Observed) -> Plan:
            began = time.monotonic()
            while time.monotonic() < began + 0.01:
                pass
            spans.append((began, time.monotonic()))
            return Plan()

        large = [api.job(f"demo-{number}") for number in range(6)]
        async with client_of(api) as (client, _), running(controller_of(client, decide=decide), *large) as controller:
            await settled(controller)
        assert len(spans) == len(large)
        for (began, ended), (begins, _) in itertools.pairwise(spans):
            assert begins - ended >= 3 * (ended - began)

    asyncio.run(scenario())
