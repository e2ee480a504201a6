"""The controller and an API server that rejects creations and deletions, or does not answer them: how many requests it
sends, what it says.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from aiohttp import web

from allranks.core.facts.model import Plan, PodRef
from allranks.kube import pod_codec, raw_pod
from allranks.operator.apply import JOB_CONCURRENCY
from allranks.operator.controller import Controller
from allranks.operator.job_state import Rejections
from support.fake_api import Object, Objects
from support.scripted import client_of, says, status

from .test_controller import NOTHING_POSTPONED, controller_of, running


def changed(
    cluster: Objects, controller: Controller, pod: Object, phase: str = "Running", deleted: bool = False
) -> None:
    """Sends an event of the pod watch."""
    meta = pod["metadata"] | {"resourceVersion": str(next(cluster.versions))}
    raw = {**pod, "metadata": meta, "status": {"phase": phase}}
    if deleted:
        del cluster.objects[f"/api/v1/namespaces/ns/pods/{meta['name']}"]
    decoded = pod_codec.to_cached_pod(msgspec.convert(raw, raw_pod.Raw))
    controller._observer.pods.upsert(decoded, deleted)


@asynccontextmanager
async def controlled(cluster: Objects, **timing: float) -> AsyncIterator[Controller]:
    async with (
        client_of(cluster) as (client, _),
        running(controller_of(client, replace(NOTHING_POSTPONED, **timing)), cluster.object) as controller,
    ):
        recorder = asyncio.create_task(controller._recorder.run())
        try:
            yield controller
        finally:
            recorder.cancel()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_quota_that_admits_a_part_costs_a_bounded_number_of_rejected_creations() -> None:
    wanted, admitted, changes = 100, 20, 40

    async def scenario() -> None:
        cluster = Objects(wanted, admitted)
        # Retries would come after 1, 2, 4, ... seconds; here only changes of pods can cause them.
        async with controlled(cluster) as controller:
            await until(lambda: "exceeded quota" in str(cluster.object.get("status")))
            first = cluster.refused["POST"]
            assert 1 <= first <= JOB_CONCURRENCY
            for pod, _ in zip(itertools.cycle(cluster.pods), range(changes)):
                changed(cluster, controller, pod)
                await asyncio.sleep(0.001)
            await until(lambda: controller.idle)
            # At most a few retries of one request each, by the clock.
            assert cluster.refused["POST"] <= first + 5
            assert len(cluster.pods) == admitted

    asyncio.run(scenario())


def test_a_conflict_of_the_quota_does_not_stop_the_other_pods() -> None:
    """Concurrent creations update the same ResourceQuota: the API server then answers 409 for one of them."""

    async def scenario() -> None:
        cluster, once = Objects(60), iter([True])

        async def answer(request: web.Request) -> web.StreamResponse:
            if request.path.endswith("/pods") and request.method == "POST" and next(once, False):
                return await status(409, "Conflict", "cannot be fulfilled on resourcequotas")(request)
            return await cluster(request)

        async with client_of(answer) as (client, _):
            labels = {"allranks.dev/job-name": "demo", "allranks.dev/role": "worker"}
            pods = [
                {"kind": "Pod", "metadata": {"name": f"demo-{number}", "namespace": "ns", "labels": labels}}
                for number in range(60)
            ]
            rejections = Rejections()
            await controller_of(client)._executor.create(cluster.object, pods, rejections)
            assert len(cluster.pods) == 59
            assert len(rejections.by_object) == 1

    asyncio.run(scenario())


def test_the_end_and_the_deletion_of_a_pod_return_room_at_once() -> None:
    async def scenario() -> None:
        cluster = Objects(4, 2)
        async with controlled(cluster, deletion_retry_max=60.0) as controller:
            await until(lambda: "exceeded quota" in str(cluster.object.get("status")))
            key = ("ns", "demo")
            for _ in range(8):
                controller._states[key].rejections.tries += 1  # the next retry by the clock is far away
            controller._states[key].retry_at = controller._clock.monotonic() + 300
            before = cluster.refused["POST"]
            changed(cluster, controller, cluster.pods[0])
            await until(lambda: controller.idle)
            assert cluster.refused["POST"] == before
            changed(cluster, controller, cluster.pods[0], "Succeeded")
            await until(lambda: cluster.refused["POST"] > before)
            before = cluster.refused["POST"]
            changed(cluster, controller, cluster.pods[0], deleted=True)
            await until(lambda: len(cluster.pods) == 2)

    asyncio.run(scenario())


def test_creations_that_an_outage_interrupted_are_retried_although_a_pod_changed_during_the_backoff() -> None:
    """The change of a pod causes a reconcile before the retry is due. It sends no creations, and the retry remains."""

    async def scenario() -> None:
        cluster, once, begun = Objects(2), iter([True]), asyncio.Event()

        async def answer(request: web.Request) -> web.StreamResponse:
            if request.path.endswith("/pods") and "demo-worker-1-0" in await request.text() and next(once, False):
                await until(lambda: cluster.pods)  # the other pod is created
                begun.set()
                return await status(503)(request)
            return await cluster(request)

        async with (
            client_of(answer, retry_timeout=0.0) as (client, _),
            running(controller_of(client), cluster.object) as controller,
        ):
            await begun.wait()
            changed(cluster, controller, cluster.pods[0])
            async with asyncio.timeout(300):
                while not controller.idle:  # nothing else is left to do only when both pods exist
                    await asyncio.sleep(0.01)
            assert sorted(pod["metadata"]["name"] for pod in cluster.pods) == ["demo-worker-0-0", "demo-worker-1-0"]

    asyncio.run(scenario())


def test_a_rejected_deletion_is_retried_and_holds_back_the_pods_of_the_next_attempt() -> None:
    async def scenario() -> None:
        cluster = Objects(2)
        async with controlled(cluster, deletion_retry_max=0.2) as controller:
            await until(lambda: len(cluster.pods) == 2)
            await until(lambda: controller.idle and "phase" in cluster.object.get("status", {}))
            cluster.frozen = True
            old = {pod["metadata"]["name"] for pod in cluster.pods}
            changed(cluster, controller, cluster.pods[0], "Failed")
            await until(lambda: cluster.refused["DELETE"] > 4)  # it is tried again
            assert {pod["metadata"]["name"] for pod in cluster.pods} == old, "no pod of the next attempt"
            await until(lambda: "DeletionRefused" in str(cluster.object["status"]["conditions"]))
            await until(lambda: any(event["reason"] == "DeletionRefused" for event in cluster.events))
            assert "change freeze" in str(cluster.object["status"]["conditions"])
            cluster.frozen = False
            await until(lambda: len(cluster.pods) == 4)
            await until(lambda: "DeletionRefused" not in str(cluster.object["status"]["conditions"]))
            assert [e["reason"] for e in cluster.events].count("DeletionRefused") == 1

    asyncio.run(scenario())


def test_a_job_with_many_undeletable_pods_sends_few_requests_per_try_and_reaches_each_pod() -> None:
    pods, protected = 200, 60

    async def scenario() -> None:
        denied: Counter[str] = Counter()

        async def answer(request: web.Request) -> web.StreamResponse:
            name = request.path.rsplit("/", 1)[1]
            if int(name) < protected:
                denied[name] += 1
                return await status(403, "Forbidden", "protected")(request)
            return await status(404, "NotFound")(request)

        async with client_of(answer) as (client, asked):
            controller = controller_of(client)
            executor, rejections = controller._executor, Rejections()
            wanted = [PodRef(str(number), f"uid-{number}") for number in range(pods)]
            left, tries = wanted, 0
            while len(left) > protected:
                tries += 1
                before = sum(denied.values())
                await executor.delete("ns", left, rejections)
                assert sum(denied.values()) - before <= JOB_CONCURRENCY
                gone = {path.rsplit("/", 1)[1] for _, path, *_ in asked.asked} - set(denied)
                left = [pod for pod in left if pod.name not in gone]
                rejections.keep_deletions(left)
                assert tries < 10

    asyncio.run(scenario())


@pytest.mark.nightly
@pytest.mark.parametrize(("code", "reason"), [(409, "Conflict"), (403, "Forbidden")])
@pytest.mark.parametrize(("plan", "method"), [(Plan(suspend_job=True), "PATCH"), (Plan(delete_job=True), "DELETE")])
def test_a_suspension_or_deletion_of_a_job_is_retried_until_it_succeeds(
    plan: Plan, method: str, code: int, reason: str
) -> None:
    """Nothing else causes a reconcile: the job does not change."""

    async def scenario() -> None:
        cluster, sent = Objects(1), 0

        async def answer(request: web.Request) -> web.StreamResponse:
            nonlocal sent
            if request.path.endswith("/distributedtrainings/demo") and request.method == method:
                sent += 1
                return await (status(code, reason, "not now") if sent < 3 else says(cluster.object))(request)
            return await cluster(request)

        async with (
            client_of(answer) as (client, _),
            running(controller_of(client, decide=lambda observed: plan), cluster.object) as controller,
        ):
            await until(lambda: sent == 3 and controller.idle)
            await controller._recorder.flush(300)
            refusals = [event["reason"] for event in cluster.events]
            assert refusals == (["SuspendRefused"] if plan.suspend_job and code == 403 else [])
            assert controller.queue.failures(("ns", "demo")) == 0

    asyncio.run(scenario())
