"""Suggestions of TPE in the operator: one at a time, fair to namespaces, and one clear condition without Optuna."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

from allranks.api.sweep_status import SweepStatus, Trial
from allranks.api.sweep_validation import parse_sweep
from allranks.core.sweeps.model import Suggestion
from allranks.kube import sweep_codec
from allranks.operator.cache import JobCache
from allranks.operator.event_recorder import Recorder
from allranks.operator.sweep_controller import SweepController, _State
from allranks.operator.timing import Clock, Timing
from allranks.shares import Turns
from allranks.suggest.process import NOT_INSTALLED, CannotSuggest
from support.builders import NOW
from support.fake_api import OneObject
from support.scripted import client_of
from unit.api.test_sweep import sweep
from unit.operator.test_sweep_notifications import settle

MANIFEST = sweep(parameters={"lr": {"uniform": {"min": 0, "max": 1}}}, algorithm="TPE", trials=20)


@asynccontextmanager
async def controller_of(api: OneObject, suggest: Any):
    async with client_of(api) as (client, _):
        how = {"namespaces": (None,), "renewed_after": 60, "timing": Timing(progress_min_interval=0), "clock": Clock()}
        controller = SweepController(client, JobCache(), Recorder(client), suggest, lambda key: None, **how)
        controller.open(None)
        yield controller


class Processes:
    """Counts suggestions that are computed at the same time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.served: list[int] = []

    async def __call__(self, spec: Any, request: Suggestion) -> dict[str, str]:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        self.served.append(request.number)
        return {"lr": "0.5"}


def test_fifty_sweeps_have_one_process_at_a_time_in_their_order_and_other_namespaces_do_not_wait_for_all() -> None:
    processes, spec = Processes(), parse_sweep(MANIFEST)

    async def scenario() -> None:
        async with controller_of(OneObject(MANIFEST), processes) as controller:
            asked = [("busy", number) for number in range(50)] + [("calm", 100)]
            answers = [controller._ask((ns, "a"), spec, Suggestion(number, ()), _State()) for ns, number in asked]
            async with asyncio.timeout(60):
                assert all(await asyncio.gather(*answers))

    asyncio.run(scenario())
    assert processes.most == 1
    assert processes.served.index(100) <= 2
    assert [number for number in processes.served if number < 100] == list(range(50))


def test_a_caller_that_stops_waiting_leaves_the_turn_to_the_others() -> None:
    async def scenario() -> list[str]:
        turns, served, free = Turns(), list[str](), asyncio.Event()

        async def use(name: str, namespace: str) -> None:
            async with turns.turn(namespace):
                await free.wait()
                served.append(name)

        tasks = [asyncio.create_task(use(name, ns)) for name, ns in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "x"))]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        free.set()
        await asyncio.sleep(0)
        tasks[2].cancel()  # it may have the turn already
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks, use("e", "z"), return_exceptions=True)
        return served

    served = asyncio.run(scenario())
    assert set(served) >= {"a", "d", "e"}
    assert "b" not in served


def test_without_optuna_the_sweep_has_one_condition_and_one_event_and_its_trials_continue() -> None:
    status = SweepStatus(
        phase="Running",
        start_time=NOW,
        trials=[
            Trial(number=n, job=f"search-{n}", parameters={"lr": "0.5"}, phase="Succeeded", value=1.0, start_time=NOW)
            for n in range(10)
        ],
    )
    asked: list[int] = []

    async def suggest(spec: Any, request: Suggestion) -> dict[str, str]:
        asked.append(request.number)
        raise CannotSuggest(NOT_INSTALLED)

    async def scenario() -> tuple[dict[str, Any], int]:
        metadata = {"namespace": "team", "uid": "u", "resourceVersion": "1", "generation": 1}
        document = {**MANIFEST, "metadata": {**MANIFEST["metadata"], **metadata}, "status": sweep_codec.encode(status)}
        api = OneObject(document)
        async with controller_of(api, suggest) as controller:
            events: list[Any] = []
            controller._emit = lambda raw, new: events.extend(event.reason for event in new)  # type: ignore[method-assign]
            async with asyncio.timeout(60):
                await settle(controller, api)
                first = len(asked)
                for _ in range(5):  # its jobs change
                    controller._enqueue(("team", MANIFEST["metadata"]["name"]))
                    await settle(controller, api)
            assert events == ["CannotSuggest"]
            assert (first, len(asked)) == (1, 1), "asked again only after a backoff"
            return api.object["status"], first

    stored, _ = asyncio.run(scenario())
    [running] = [item for item in stored["conditions"] if item["type"] == "Running"]
    assert (running["status"], running["reason"]) == ("False", "CannotSuggest")
    assert running["message"] == f"trial 10 has no parameters: {NOT_INSTALLED}"
