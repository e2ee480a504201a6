"""What a plan becomes: which requests wait for which."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from allranks.core.model import Plan, PodRef
from allranks.drivers.kubernetes import executor as executors
from allranks.drivers.kubernetes import pods
from allranks.drivers.kubernetes.cache import PodCache
from allranks.drivers.kubernetes.client import Fenced
from allranks.drivers.kubernetes.executor import Executor, Refusals

from .scripted import Scripted, client_of, hangs, says, status

JOB = {"metadata": {"name": "demo", "namespace": "ns", "uid": "u"}}


def pod(index: int) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": f"demo-worker-{index}-1", "namespace": "ns"}}


PLAN = Plan(
    create=tuple(pod(index) for index in range(executors.AT_ONCE + 1)),
    delete=tuple(PodRef(f"demo-worker-{index}-0", f"uid-{index}") for index in range(10)),
)


def asked(of: Scripted, verb: str) -> int:
    return sum(one[0] == verb for one in of.asked)


def test_old_pods_go_though_no_new_one_can_be_made() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await (hangs if request.method == "POST" else status(404, "NotFound"))(request)

    async def scenario() -> None:
        async with client_of(answer) as (client, requests), asyncio.timeout(30):
            executor = Executor(client, PodCache(lambda key, trouble: None), pods.seen)
            work = asyncio.create_task(executor.objects(JOB, PLAN, Refusals()))
            while asked(requests, "DELETE") < len(PLAN.delete):
                await asyncio.sleep(0.01)
            assert asked(requests, "POST") == executors.AT_ONCE
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work

    asyncio.run(scenario())


def test_where_another_replica_acts_nothing_is_asked_for() -> None:
    async def scenario() -> None:
        async with client_of(says({}), may_write=lambda: False) as (client, requests):
            executor = Executor(client, PodCache(lambda key, trouble: None), pods.seen)
            with pytest.raises(Fenced):
                await executor.objects(JOB, PLAN, Refusals())
            assert not requests.asked

    asyncio.run(scenario())
