"""The code that supervisors fetch: only the code of their own job's attempt, read once for all ranks."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from typing import Any

from allranks.core.objects.code import ARCHIVE
from allranks.kube.errors import Unavailable
from allranks.operator.code_reader import CodeReader, ReadLimits
from allranks.telemetry.messages import Answer, ReportSource
from support.config_maps import ConfigMaps

SENDER = ReportSource(("team", "demo"), "0123456789", "demo-worker-0-0", "pod-0", "worker", 0, 0, 0, "node-a")
OLD, NEW = "a" * 64, "b" * 64


class World:
    def __init__(self, **limits: Any) -> None:
        self.api, self.now = ConfigMaps(), 0.0
        self.jobs: dict[tuple[str, str], Any] = {("team", "demo"): job("code-new", NEW)}
        self.put("code-new", b"new")
        self.put("code-old", b"old")
        client: Any = self.api
        self.reader = CodeReader(client, self.jobs.get, limits=ReadLimits(**limits), monotonic=lambda: self.now)

    def put(self, name: str, archive: bytes) -> None:
        self.api.items[name] = {"binaryData": {ARCHIVE: base64.b64encode(archive).decode()}}

    async def read(self, sha256: Any = NEW, **sender: Any) -> Answer:
        return await self.reader.read(replace(SENDER, **sender), json.dumps({"sha256": sha256}).encode())


def job(config_map: Any, sha256: Any) -> dict[str, Any]:
    return {"metadata": {"name": "demo"}, "status": {"code": {"configMap": config_map, "sha256": sha256}}}


def play(scene: Any, **limits: Any) -> None:
    async def run() -> None:
        await scene(World(**limits))

    asyncio.run(run())


def test_a_pod_gets_the_code_of_the_attempt_of_its_job() -> None:
    async def scene(world: World) -> None:
        answer = await world.read()
        assert (answer.status, base64.b64decode(answer.body["archive"])) == (200, b"new")

    play(scene)


def test_a_pod_gets_neither_older_code_nor_the_code_of_another_job() -> None:
    async def scene(world: World) -> None:
        assert (await world.read(OLD)).status == 409
        world.jobs["team", "other"] = job("code-old", OLD)
        assert (await world.read(OLD)).status == 409
        assert (await world.read(NEW, job=("team", "other"))).status == 409
        assert (await world.read(NEW, job=("team", "gone"))).status == 409

    play(scene)


def test_odd_requests_and_odd_statuses_are_refused() -> None:
    async def scene(world: World) -> None:
        assert (await world.read("x")).status == 400
        assert (await world.reader.read(SENDER, b"[]")).status == 400
        for odd in (None, {}, {"status": []}, {"status": {"code": "x"}}, job(7, NEW), job("code-new", None)):
            world.jobs["team", "demo"] = odd
            assert (await world.read()).status == 409

    play(scene)


def test_a_missing_config_map_is_named() -> None:
    async def scene(world: World) -> None:
        del world.api.items["code-new"]
        answer = await world.read()
        assert (answer.status, answer.body) == (400, {"error": "the ConfigMap code-new does not exist"})
        world.put("code-new", b"new")
        assert (await world.read()).status == 200

    play(scene)


def test_all_ranks_of_a_job_cost_one_request_and_it_is_forgotten() -> None:
    async def scene(world: World) -> None:
        answers = await asyncio.gather(*(world.read(pod_uid=f"pod-{number}") for number in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert world.api.requests == 1
        world.now = 31.0
        assert (await world.read()).status == 200
        assert world.api.requests == 2

    play(scene)


def test_an_api_server_that_does_not_answer_is_asked_again() -> None:
    async def scene(world: World) -> None:
        world.api.errors = [Unavailable("no answer")]
        assert (await world.read()).status == 503
        assert (await world.read()).status == 200

    play(scene)


def test_one_namespace_cannot_take_the_room_of_others() -> None:
    async def scene(world: World) -> None:
        world.jobs["others", "demo"] = job("code-new", NEW)
        many = [asyncio.create_task(world.read()) for _ in range(8)]
        await asyncio.sleep(0)
        other = await world.read(job=("others", "demo"))
        statuses = [answer.status for answer in await asyncio.gather(*many)]
        assert (other.status, statuses.count(200), statuses.count(503)) == (200, 3, 5)

    play(scene, waiting=4)


def test_a_pod_that_asks_again_and_again_slows_its_own_namespace_down_and_no_other() -> None:
    async def scene(world: World) -> None:
        world.jobs["others", "demo"] = job("code-new", NEW)
        world.put("code-new", b"x" * 75)
        statuses = [(await world.read()).status for _ in range(12)]
        assert statuses == [200] * 10 + [503] * 2
        assert (await world.read(job=("others", "demo"))).status == 200
        world.now = 10.0
        assert (await world.read()).status == 200

    play(scene, burst_bytes=1000, bytes_per_second=10)
