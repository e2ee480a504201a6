"""The namespace cache: one request for many jobs, invalid policies hold back new jobs only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from allranks.core.facts.pod_security import NOT_READ
from allranks.core.facts.policy import Policy
from allranks.operator.platform_cache import NamespaceNotUsable, Namespaces
from allranks.operator.settings import Settings
from allranks.operator.timing import Clock, Timing
from support.scripted import Answer, client_of, status

MAX_PODS = "policy.allranks.dev/max-pods"


class Watch(Clock):
    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class World:
    """A namespace on a scripted API server."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {
            "name": "vision",
            "uid": "uid-of-vision",
            "labels": {"team": "vision"},
            "annotations": {},
        }
        self.error: Answer | None = None
        self.requests: list[str] = []
        self.changed: list[str] = []
        self.clock = Watch()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.path)
        return await self.error(request) if self.error else web.json_response({"metadata": self.metadata})

    def play(self, scenario: Callable[[Namespaces], Awaitable[None]], **timing: float) -> None:
        async def run() -> None:
            async with client_of(self.answer, retry_timeout=0.0) as (client, _), asyncio.timeout(60):
                settings = Settings(namespace_policies=True, max_pods=2)
                await scenario(Namespaces(client, settings, self.changed.append, Timing(**timing), self.clock))

        asyncio.run(run())


def test_many_jobs_of_a_namespace_share_one_request() -> None:
    world = World()
    world.metadata["annotations"] = {MAX_PODS: "8"}

    async def scenario(namespaces: Namespaces) -> None:
        assert namespaces.labels("vision") is None
        assert namespaces.uid("vision") == ""
        await asyncio.gather(*(namespaces.prepare("vision", True) for _ in range(50)))
        assert namespaces.policy("vision").max_pods == 8
        assert namespaces.labels("vision") == {"team": "vision"}
        assert namespaces.uid("vision") == "uid-of-vision"
        assert namespaces.policy("speech") == Policy(max_pods=2)

    world.play(scenario)
    assert world.requests == ["/api/v1/namespaces/vision"]


def test_a_new_job_is_judged_by_the_present_policy_and_an_older_one_costs_no_request() -> None:
    world = World()

    async def scenario(namespaces: Namespaces) -> None:
        await namespaces.prepare("vision", True)
        world.metadata["annotations"] = {MAX_PODS: "8"}
        world.clock.seconds = 1000
        await namespaces.prepare("vision", False)
        assert namespaces.policy("vision").max_pods == 2
        await namespaces.prepare("vision", True)
        assert namespaces.policy("vision").max_pods == 8

    world.play(scenario)
    assert len(world.requests) == 2
    assert world.changed == ["vision"]


def test_an_invalid_annotation_holds_back_new_jobs_and_no_others() -> None:
    world = World()
    world.metadata["annotations"] = {MAX_PODS: "8"}

    async def scenario(namespaces: Namespaces) -> None:
        await namespaces.prepare("vision", True)
        world.metadata["annotations"] = {MAX_PODS: "many"}
        world.clock.seconds = 1000
        with pytest.raises(NamespaceNotUsable, match=f"{MAX_PODS} of namespace vision: must be a whole number"):
            await namespaces.prepare("vision", True)
        await namespaces.prepare("vision", False)
        assert namespaces.policy("vision").max_pods == 8

    world.play(scenario)


def test_without_the_right_to_read_namespaces_new_jobs_wait_and_the_message_names_the_right() -> None:
    world = World()
    world.error = status(403, "Forbidden", "namespaces is forbidden")

    async def scenario(namespaces: Namespaces) -> None:
        with pytest.raises(NamespaceNotUsable, match="grant it `get` of namespaces"):
            await namespaces.prepare("vision", True)
        await namespaces.prepare("vision", False)
        assert namespaces.policy("vision").max_pods == 2

    world.play(scenario)


def test_new_jobs_of_a_namespace_with_thousands_of_labels_wait_and_the_labels_are_not_kept() -> None:
    world = World()
    world.metadata["labels"] = {f"k{number}": "" for number in range(80_000)}

    async def scenario(namespaces: Namespaces) -> None:
        with pytest.raises(NamespaceNotUsable, match="vision has 80000 labels, and at most 256 fit: ask the platform"):
            await namespaces.prepare("vision", True)
        assert namespaces.labels("vision") == {}

    world.play(scenario)


def test_a_change_is_found_from_time_to_time_and_unused_namespaces_are_forgotten() -> None:
    world = World()

    async def scenario(namespaces: Namespaces) -> None:
        await namespaces.prepare("vision", False)
        used = ["vision"]
        running = asyncio.create_task(namespaces.run(lambda: used))
        world.metadata["labels"] = {"team": "speech"}
        while not world.changed:
            await asyncio.sleep(0.001)
        assert namespaces.labels("vision") == {"team": "speech"}
        used.clear()
        while namespaces.labels("vision") is not None:
            await asyncio.sleep(0.001)
        running.cancel()

    world.play(scenario, namespace_refresh=0.001)


def test_the_label_of_a_standard_decides_and_until_it_is_read_pods_are_restricted() -> None:
    world = World()

    async def scenario(namespaces: Namespaces) -> None:
        assert namespaces.why_restricted("vision") == NOT_READ
        await namespaces.prepare("vision", True)
        assert namespaces.why_restricted("vision") == ""
        world.metadata["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
        await namespaces.confirm("vision")
        expected = "namespace vision enforces the Pod Security Standard restricted"
        assert namespaces.why_restricted("vision") == expected
        world.error = status(403, "Forbidden")
        await namespaces.confirm("vision")
        assert namespaces.why_restricted("vision") == expected
        world.error = None
        world.metadata |= {"labels": {}, "annotations": {"openshift.io/sa.scc.uid-range": "1000690000/10000"}}
        await namespaces.confirm("vision")
        assert namespaces.why_restricted("vision").startswith("OpenShift")

    world.play(scenario)
    assert world.changed == ["vision"] * 3


def test_namespaces_are_not_read_unless_the_setting_says_so() -> None:
    world = World()

    async def run() -> None:
        async with client_of(world.answer) as (client, _):
            namespaces = Namespaces(client, Settings(max_pods=2), world.changed.append, Timing(), world.clock)
            await namespaces.prepare("vision", True)
            assert (namespaces.policy("vision"), namespaces.labels("vision")) == (Policy(max_pods=2), None)

    asyncio.run(run())
    assert not world.requests
