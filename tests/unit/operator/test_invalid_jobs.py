"""A job on which the core raises is marked, is not retried all the time, and does not affect other jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from allranks.api.pool import PoolSpec
from allranks.core.facts.model import Observed, Plan, Platform
from allranks.core.reconcile import reconcile
from allranks.operator.observer import Observer
from support.fake_api import OneObject
from support.scripted import client_of
from support.work_queue import due_in

from .test_controller import SPEC, controller_of, running

KEY = ("ns", "demo")


class Broken:
    """Raises for the jobs that `raises` selects."""

    def __init__(self, raises: Callable[[Observed], bool]) -> None:
        self.raises, self.calls = raises, 0

    def __call__(self, observed: Observed) -> Plan:
        self.calls += 1
        if self.raises(observed):
            raise TypeError("unhashable type: 'list'")
        return reconcile(observed)


def events(controller: Any) -> list[dict[str, Any]]:
    queue = controller._recorder._queue
    return [queue.get_nowait() for _ in range(queue.qsize())]


async def settled(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not done():
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)


def conditions(api: OneObject) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in api.object.get("status", {}).get("conditions", ())}


def test_a_job_on_which_the_core_raises_before_its_first_status_fails_as_invalid() -> None:
    async def scenario() -> None:
        api, decide = OneObject(), Broken(lambda observed: True)
        async with (
            client_of(api) as (client, asked),
            running(controller_of(client, decide=decide), api.object) as controller,
        ):
            await settled(lambda: "phase" in api.object.get("status", {}))
            assert api.object["status"]["phase"] == "Failed"
            condition = conditions(api)["Failed"]
            assert condition["reason"] == "InvalidSpec"
            assert "TypeError: unhashable type: 'list'" in condition["message"]
            [event] = events(controller)
            assert (event["reason"], event["type"]) == ("InvalidSpec", "Warning")
            assert decide.calls <= 3
            assert len([verb for verb, *_ in asked.asked if verb == "PATCH"]) == 1
            assert due_in(controller.queue, KEY) or controller.queue.failures(KEY)

    asyncio.run(scenario())


def test_a_job_on_which_the_core_raises_later_keeps_its_phase_and_recovers() -> None:
    async def scenario() -> None:
        api, broken = OneObject(), False
        decide = Broken(lambda observed: broken)
        async with (
            client_of(api) as (client, _),
            running(controller_of(client, decide=decide), api.object) as controller,
        ):
            await settled(lambda: "phase" in api.object.get("status", {}))
            before, broken = api.object["status"], True
            controller.queue.enqueue(KEY)
            await settled(lambda: "TypeError" in str(api.object["status"]))
            assert api.object["status"]["phase"] == before["phase"]
            assert conditions(api)["Running"]["reason"] == "InvalidSpec"
            assert [event["reason"] for event in events(controller)].count("InvalidSpec") == 1
            broken = False
            controller.queue.enqueue(KEY)
            await settled(lambda: "TypeError" not in str(api.object["status"]))
            assert api.object["status"]["phase"] == before["phase"]

    asyncio.run(scenario())


@pytest.mark.parametrize("started", [False, True], ids=["before its first status", "later"])
def test_a_pool_on_which_the_core_raises_is_named_and_the_job_waits_for_its_correction(started: bool) -> None:
    async def scenario() -> None:
        api, pool = OneObject(), PoolSpec(scheduler_name="fine" if started else "odd")
        api.object = api.object | {"spec": {**SPEC, "pool": "h200"}}

        def raises(observed: Observed) -> bool:
            return any(pool.scheduler_name == "odd" for pool in observed.platform.pools.values())

        async with client_of(api) as (client, _):
            controller = controller_of(client, decide=Broken(raises))
            observer = controller._observer
            controller._observer = Observer(
                observer.pods, lambda job: Platform(helper_image="x", pools={"h200": pool}), observer.clock
            )
            async with running(controller, api.object):
                if started:
                    await settled(lambda: "phase" in api.object.get("status", {}))
                    pool = PoolSpec(scheduler_name="odd")
                    controller.queue.enqueue(KEY)
                await settled(lambda: "InvalidPool" in str(api.object.get("status")))
                assert 'TrainingPool "h200" cannot be used until it is corrected (TypeError' in str(
                    api.object["status"]
                )
                assert api.object["status"].get("phase", "Pending") != "Failed"
                assert {event["reason"] for event in events(controller)} >= {"InvalidPool"}
                pool = PoolSpec(scheduler_name="fine")
                controller.queue.enqueue(KEY)
                await settled(lambda: api.object["status"].get("startTime") and "InvalidPool" not in str(api.object))

    asyncio.run(scenario())


def test_other_jobs_are_not_affected() -> None:
    async def scenario() -> None:
        api = OneObject()
        other = api.object | {"metadata": api.object["metadata"] | {"name": "other", "uid": "o"}}
        decide = Broken(lambda observed: observed.job.name == "other")
        async with client_of(api) as (client, asked), running(controller_of(client, decide=decide), other, api.object):
            await settled(lambda: sum(path.endswith("/pods") for _, path, *_ in asked.asked) >= 2)

    asyncio.run(scenario())
