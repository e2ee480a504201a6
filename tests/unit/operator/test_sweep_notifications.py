"""Notifications of the end of a sweep, to real servers on loopback, also after a restart of the operator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from allranks.api.notify import Notification
from allranks.api.pool import PoolSpec
from allranks.kube import sweep_codec
from allranks.operator.cache import JobCache
from allranks.operator.event_recorder import Recorder
from allranks.operator.notification_text import slack, sweep_note
from allranks.operator.receivers import ReceiversFile
from allranks.operator.sweep_controller import SweepController
from allranks.operator.timing import Clock, Timing
from support.fake_api import OneObject
from support.receivers import http_receiver, until
from support.scripted import client_of
from unit.core.test_sweep_outbox import before_the_end, observed

from .test_invalid_sweeps import settle


def about_to_end(fate: str = "Succeeded", notify: Any = None) -> dict[str, Any]:
    of, status = before_the_end(fate, notify=notify or [{"receiver": "team"}], template=TEMPLATE)
    spec = of.spec.model_dump(by_alias=True, exclude_unset=True, mode="json")
    kind = {"apiVersion": "allranks.dev/v1alpha1", "kind": "TrainingSweep"}
    metadata = {"name": "search", "namespace": "team"}
    return {**kind, "metadata": metadata, "spec": spec, "status": sweep_codec.encode(status)}


TEMPLATE = {
    "spec": {
        "framework": "pytorch",
        "image": "me/train:1",
        "command": ["python", "train.py"],
        "args": ["--lr=$(lr)", "--batch=$(batch)"],
        "env": [{"name": "API_TOKEN", "value": "swordfish-1"}],
        "roles": {"worker": {"replicas": 1}},
        "pool": "h200",
    }
}


@asynccontextmanager
async def operator(folder: Path, api: OneObject, **content: Any) -> AsyncIterator[SweepController]:
    """One operator, which knows nothing of an earlier one."""
    file = folder / "receivers.yaml"
    file.write_text(json.dumps(content))

    async def suggest(*_: Any) -> dict[str, str]:
        raise AssertionError

    pools = {"h200": PoolSpec(notify=[Notification(receiver="infra")])}
    async with client_of(api) as (client, _):
        controller = SweepController(
            *(client, JobCache(), Recorder(client), suggest, lambda key: None),
            namespaces=(None,),
            renewed_after=60,
            timing=Timing(progress_min_interval=0),
            clock=Clock(),
            receivers=ReceiversFile(str(file)),
            pool=lambda namespace, name: pools.get(name or ""),
        )
        controller.open(None)
        try:
            yield controller
        finally:
            await controller.notifier.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 300))  # type: ignore[arg-type]


def notifications(api: OneObject) -> list[str]:
    found: list[str] = api.object["status"].get("notifications", [])
    return found


def events(name: str, url: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "CloudEvents", "url": url, **more}


def test_a_sweep_that_ends_is_one_notification_with_the_best_trial(tmp_path: Path):
    async def test() -> None:
        api = OneObject(about_to_end())
        async with http_receiver() as server:
            content = {
                "receivers": [events("team", server.url), events("infra", server.url)],
                "sweepLink": "https://ui.example.com/sweeps/jobs/{namespace}/{name}",
            }
            async with operator(tmp_path, api, **content) as controller:
                await settle(controller, api)
                assert notifications(api) == ["Succeeded team", "Succeeded infra"]
                await until(lambda: controller.notifier.idle and len(controller.queue) > 0)
                await settle(controller, api)
                assert notifications(api) == ["Succeeded team sent", "Succeeded infra sent"]
            [event, other] = [body for _, _, body in server.got]
            assert {event["id"], other["id"]} == {"u/Succeeded/team", "u/Succeeded/infra"}
            assert event["type"] == "dev.allranks.sweep.succeeded"
            assert event["source"] == "/apis/allranks.dev/namespaces/team/trainingsweeps/search"
            data = event["data"]
            best = api.object["status"]["best"]
            assert data["message"] == "sweep team/search succeeded"
            assert f"the best loss is {best['value']:.6g}, of trial {best['trial']}" in data["details"]
            assert f"lr={best['parameters']['lr']}" in data["details"]
            assert "Trials: 3/3 ended, 3 succeeded" in data["details"]
            assert data["link"] == "https://ui.example.com/sweeps/jobs/team/search"
            assert "attempt" not in data

    run(test)


def test_an_operator_that_is_restarted_delivers_the_rest_and_nothing_twice(tmp_path: Path):
    async def test() -> None:
        api = OneObject(about_to_end())
        async with (
            http_receiver(hang=True) as slow,
            operator(tmp_path, api, receivers=[events("team", slow.url)]) as one,
        ):
            await settle(one, api)
            await until(lambda: len(slow.got) == 1)
            sent = slow.got[0][2]["id"]
        assert notifications(api) == ["Succeeded team", "Succeeded infra failed"], "nothing says who infra is"
        async with http_receiver() as server:
            for _ in range(2):
                async with operator(tmp_path, api, receivers=[events("team", server.url)]) as next_one:
                    await settle(next_one, api)
                    await until(lambda: next_one.notifier.idle)
                    await settle(next_one, api)
            assert [body["id"] for _, _, body in server.got] == [sent]
        assert notifications(api) == ["Succeeded team sent", "Succeeded infra failed"]

    run(test)


def test_a_sweep_that_fails_says_why_and_secrets_are_masked():
    of, status = before_the_end("Failed", template=TEMPLATE)
    ended = {
        "type": "Failed",
        "status": "True",
        "reason": "SameFailure",
        "message": "the first 3 trials failed in the same way (Error(1)): login with swordfish-1 failed",
        "lastTransitionTime": "2026-03-04T10:00:00Z",
    }
    encoded = sweep_codec.encode(status) | {"conditions": [ended], "phase": "Failed"}
    note = sweep_note(observed(of, sweep_codec.status({"status": encoded})), "Failed team", "")
    assert note.title == "sweep team/search failed"
    assert note.details.splitlines()[0].endswith("(Error(1)): login with <masked> failed")
    assert "3 failed" in note.details
    assert "*sweep team/search failed*" in json.loads(slack(note))["text"]


def test_an_address_of_a_sweep_needs_an_allowed_host(tmp_path: Path):
    async def test() -> None:
        for hosts, result in (([], "failed"), (["{host}"], "sent")):
            async with http_receiver() as server:
                webhook = [{"webhook": {"url": f"{server.url}/x"}}]
                api = OneObject(about_to_end(notify=webhook))
                allowed = [host.format(host=server.url.removeprefix("http://")) for host in hosts]
                async with operator(tmp_path, api, allowedHosts=allowed) as controller:
                    await settle(controller, api)
                    await until(lambda: controller.notifier.idle)
                    await settle(controller, api)
                assert notifications(api)[0] == f"Succeeded webhook-0 {result}"

    run(test)


def test_values_of_parameters_in_a_notification_have_no_control_sequences():
    of, status = before_the_end("Succeeded", template=TEMPLATE)
    best = {"trial": 0, "job": "search-0", "value": 0.5, "parameters": {"lr": "0.1\x1b[8m0\u202e"}}
    encoded = sweep_codec.encode(status) | {"best": best, "phase": "Succeeded"}
    note = sweep_note(observed(of, sweep_codec.status({"status": encoded})), "Succeeded team", "")
    assert "lr=0.10" in note.details.splitlines()[0].split(": ", 1)[1], note.details
