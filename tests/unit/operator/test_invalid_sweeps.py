"""A sweep on which the core raises is marked, is not retried all the time, and continues when it is corrected."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from allranks.api.sweep import Sweep
from allranks.core.sweeps.model import SweepObserved, SweepPlan
from allranks.core.sweeps.plan import plan
from allranks.kube import sweep_codec
from allranks.kube.client import Client
from allranks.operator.cache import JobCache
from allranks.operator.event_recorder import Recorder
from allranks.operator.sweep_controller import SweepController
from allranks.operator.timing import Clock, Timing
from support.builders import manifest
from support.fake_api import OneObject
from support.scripted import client_of
from unit.api.test_sweep import sweep

KEY = ("team", "search")


def conditions(api: OneObject) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in api.object.get("status", {}).get("conditions", ())}


class Broken:
    """Decides as usual, or raises."""

    def __init__(self) -> None:
        self.raises, self.calls = True, 0

    def __call__(self, observed: SweepObserved) -> SweepPlan:
        self.calls += 1
        if self.raises:
            raise TypeError("unhashable type: 'list'")
        return plan(observed)


async def settle(controller: SweepController, api: OneObject) -> None:
    """Works until nothing is queued."""
    controller.sweeps.upsert(sweep_codec.raw_sweep(json.dumps(api.object)))
    controller.queue.add(KEY)
    while len(controller.queue):
        await controller._work(await controller.queue.get())


def controlled(
    scenario: Callable[[SweepController, OneObject, Broken], Any], document: dict[str, Any] | None = None
) -> None:
    async def suggest(*_: Any) -> dict[str, str]:
        raise AssertionError

    async def main() -> None:
        api, decide = OneObject(document or sweep()), Broken()
        async with asyncio.timeout(300), client_of(api) as (client, _):
            controller = controller_of(client, suggest, decide)
            controller.open(None)
            await scenario(controller, api, decide)

    def controller_of(client: Client, suggest: Any, decide: Broken) -> SweepController:
        return SweepController(
            *(client, JobCache(), Recorder(client), suggest, lambda key: None),
            namespaces=(None,),
            renewed_after=60,
            timing=Timing(),
            clock=Clock(),
            decide=decide,
        )

    asyncio.run(main())


def test_a_sweep_on_which_the_core_raises_before_its_first_trial_fails_as_invalid() -> None:
    async def scenario(controller: SweepController, api: OneObject, decide: Broken) -> None:
        await settle(controller, api)
        assert api.object["status"]["phase"] == "Failed"
        condition = conditions(api)["Failed"]
        assert (condition["reason"], condition["status"]) == ("InvalidSpec", "True")
        assert "TypeError: unhashable type: 'list'" in condition["message"]
        assert decide.calls <= 3
        events = controller._recorder._queue
        assert [events.get_nowait()["reason"] for _ in range(events.qsize())] == ["InvalidSpec"]

    controlled(scenario)


def test_a_sweep_on_which_the_core_raises_later_says_so_and_continues() -> None:
    async def scenario(controller: SweepController, api: OneObject, decide: Broken) -> None:
        decide.raises = False
        await settle(controller, api)
        assert conditions(api)["Running"]["status"] == "True"
        decide.raises, decide.calls = True, 0
        await settle(controller, api)
        assert api.object["status"]["phase"] == "Running"
        assert conditions(api)["Running"]["reason"] == "InvalidSpec"
        assert api.object["status"]["trials"]
        assert decide.calls <= 3
        decide.raises = False
        await settle(controller, api)
        assert conditions(api)["Running"]["reason"] == "TrialsRunning"

    controlled(scenario)


def test_a_sweep_that_is_too_large_fails_as_invalid() -> None:
    async def scenario(controller: SweepController, api: OneObject, decide: Broken) -> None:
        await settle(controller, api)
        assert "has more than 256 KiB as JSON" in conditions(api)["Failed"]["message"]
        assert decide.calls == 0

    document = sweep()
    document["spec"]["template"]["spec"]["template"] = {"metadata": {"annotations": {"x": "y" * 300_000}}}
    controlled(scenario, document)


def test_after_each_large_sweep_there_is_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    decode, spans = sweep_codec.sweep, list[tuple[float, float]]()

    def slowly(manifest: dict[str, Any]) -> Sweep:
        began = time.monotonic()
        while time.monotonic() < began + 0.01:
            pass
        spans.append((began, time.monotonic()))
        return decode(manifest)

    async def scenario(controller: SweepController, api: OneObject, decide: Broken) -> None:
        run = asyncio.create_task(controller.run())
        for number in range(5):
            metadata = {**api.object["metadata"], "name": f"search-{number}"}
            controller.sweeps.upsert(sweep_codec.raw_sweep(json.dumps({**api.object, "metadata": metadata})))
        while len(spans) < 5:
            await asyncio.sleep(0.001)
        await controller.close()
        await run
        for (began, ended), (begins, _) in itertools.pairwise(spans):
            assert begins - ended >= 3 * (ended - began)

    monkeypatch.setattr(sweep_codec, "sweep", slowly)
    job = manifest(args=["--lr=$(lr)"], template={"metadata": {"annotations": {"x": "y" * 20_000}}})
    controlled(scenario, sweep(template={"spec": job["spec"]}))
