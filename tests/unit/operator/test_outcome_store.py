"""What the functions of ranks returned or raised, in ConfigMaps: each once, few of a job, none of past attempts."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from typing import Any

from allranks.kube.errors import Refused, Unavailable
from allranks.operator.outcome_store import OutcomeStore
from allranks.telemetry.messages import Answer, ReportSource
from allranks.telemetry.outcomes import ERRORS
from support.config_maps import ConfigMaps

SENDER = ReportSource(("team", "demo"), "0123456789", "demo-worker-0-0", "pod-0", "worker", 0, 0, 0, "node-a")


class World:
    def __init__(self) -> None:
        self.api, self.attempt = ConfigMaps(), 0
        self.store = self.new_store()

    def new_store(self) -> OutcomeStore:
        """As after a restart of the operator."""
        self.store = OutcomeStore(self.api, lambda _: self.attempt)  # type: ignore[arg-type]
        return self.store

    async def send(self, kind: str, rank: int = 0, content: bytes = b"content", **sender: Any) -> Answer:
        pod = {"pod": f"demo-worker-{rank}-{self.attempt}", "pod_uid": f"pod-{rank}-{self.attempt}", "index": rank}
        source = replace(SENDER, **{**pod, "attempt": self.attempt, **sender})
        header = {"kind": kind, "rank": rank, "size": len(content), "offset": 0}
        answer = await self.store.receive(source, json.dumps(header).encode() + b"\n" + content)
        while self.store._cleaning:
            await asyncio.sleep(0)
        return answer

    @property
    def names(self) -> list[str]:
        return sorted(self.api.items)


def play(scene: Any) -> None:
    async def run() -> None:
        await scene(World())

    asyncio.run(run())


STORED, NOT_STORED = Answer(200, {"received": 7, "stored": True}), Answer(200, {"received": 7, "stored": False})


def test_a_value_is_an_immutable_config_map_that_the_job_owns() -> None:
    async def scene(world: World) -> None:
        assert await world.send("returned") == STORED
        [stored] = world.api.items.values()
        metadata = stored["metadata"]
        assert (metadata["name"], metadata["namespace"]) == ("demo-01234567-value-0-0", "team")
        assert metadata["labels"] == {
            "allranks.dev/job-name": "demo",
            "allranks.dev/attempt": "0",
            "allranks.dev/outcome": "returned",
            "allranks.dev/rank": "0",
            "app.kubernetes.io/managed-by": "allranks",
        }
        [owner] = metadata["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("DistributedTraining", "0123456789", True)
        assert stored["immutable"] is True
        assert base64.b64decode(stored["binaryData"]["outcome"]) == b"content"

    play(scene)


def test_an_outcome_that_is_sent_again_is_stored_once() -> None:
    """Its answer was lost, or the operator was restarted."""

    async def scene(world: World) -> None:
        for kind in ("returned", "raised"):
            assert await world.send(kind) == STORED
            assert await world.send(kind) == STORED
            world.new_store()
            assert await world.send(kind) == STORED
        assert world.names == ["demo-01234567-error-0-0-0", "demo-01234567-value-0-0"]

    play(scene)


def test_the_value_of_a_rank_that_another_pod_claims_too_is_that_of_the_first() -> None:
    async def scene(world: World) -> None:
        assert await world.send("returned", content=b"the 1st") == STORED
        assert await world.send("returned", content=b"the 2nd", pod="other", pod_uid="other") == NOT_STORED
        assert base64.b64decode(world.api.items["demo-01234567-value-0-0"]["binaryData"]["outcome"]) == b"the 1st"

    play(scene)


def test_the_first_exceptions_of_an_attempt_are_stored_and_the_others_cost_no_request() -> None:
    async def scene(world: World) -> None:
        answers = [await world.send("raised", rank) for rank in range(ERRORS)]
        before = world.api.requests
        answers += [await world.send("raised", rank) for rank in range(ERRORS, 1000)]
        assert answers == [STORED] * ERRORS + [NOT_STORED] * (1000 - ERRORS)
        assert world.api.requests == before == ERRORS
        assert world.names == [f"demo-01234567-error-0-0-{number}" for number in range(ERRORS)]

    play(scene)


def test_after_a_restart_of_the_operator_no_more_exceptions_are_stored() -> None:
    async def scene(world: World) -> None:
        for rank in range(ERRORS):
            await world.send("raised", rank)
        world.new_store()
        assert await world.send("raised", 77) == NOT_STORED
        assert len(world.names) == ERRORS

    play(scene)


def test_those_of_earlier_attempts_are_deleted() -> None:
    async def scene(world: World) -> None:
        for attempt in range(4):
            world.attempt = attempt
            await world.send("raised")
            await world.send("returned", 1)
        names = [f"demo-01234567-{kind}" for kind in ("error-2-0-0", "error-3-0-0", "value-2-1", "value-3-1")]
        assert world.names == names

    play(scene)


def test_a_replica_that_restarts_alone_has_exceptions_of_its_own() -> None:
    async def scene(world: World) -> None:
        for restart in range(3):
            await world.send("raised", restart=restart, pod=f"demo-ps-0-0-{restart}", pod_uid=f"ps-{restart}")
        assert world.names == ["demo-01234567-error-0-1-0", "demo-01234567-error-0-2-0"]

    play(scene)


def test_a_rank_of_an_attempt_that_is_over_gets_409() -> None:
    async def scene(world: World) -> None:
        world.attempt = 1
        assert (await world.send("returned", attempt=0)).status == 409
        assert world.names == []

    play(scene)


def test_while_the_api_server_is_away_the_sender_tries_again() -> None:
    async def scene(world: World) -> None:
        world.api.errors = [Unavailable("away")]
        answer = await world.send("raised")
        assert (answer.status, answer.retry_after) == (503, 5.0)
        assert await world.send("raised") == STORED
        assert world.names == ["demo-01234567-error-0-0-0"]

    play(scene)


def test_a_full_quota_is_reported_to_the_sender() -> None:
    async def scene(world: World) -> None:
        world.api.errors = [Refused("exceeded quota: count/configmaps=3", 403, "Forbidden")]
        answer = await world.send("returned")
        assert answer.status == 422
        assert "exceeded quota: count/configmaps=3" in answer.body["error"]

    play(scene)


def test_outcomes_of_one_namespace_that_are_being_stored_leave_room_for_another() -> None:
    async def scene(world: World) -> None:
        request, answered = world.api.request, asyncio.Event()

        async def slow(verb: str, path: str, *args: Any, **kwargs: Any) -> Any:
            if "/team/" in path:
                await answered.wait()
            return await request(verb, path, *args, **kwargs)

        world.api.request = slow  # type: ignore[method-assign]
        busy = [
            asyncio.create_task(
                world.send("returned", rank=0, pod_uid=f"pod-{n}", job_uid=f"uid-{n}", job=("team", f"j{n}"))
            )
            for n in range(40)
        ]
        async with asyncio.timeout(60):
            while sum(sender.done() for sender in busy) < 16:  # the others wait
                await asyncio.sleep(0)
            assert await world.send("returned", job=("calm", "demo"), pod_uid="calm") == STORED
            answered.set()
            statuses = [(await sender).status for sender in busy]
        assert (statuses.count(200), statuses.count(503)) == (24, 16)

    play(scene)
