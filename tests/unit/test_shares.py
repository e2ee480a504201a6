"""Room that namespaces share."""

from __future__ import annotations

import asyncio
import itertools
import time

from allranks.shares import Pace, Share, Traffic, Turns


def test_one_namespace_alone_has_three_quarters_and_others_always_find_room() -> None:
    share = Share(100)
    assert [share.take("busy", 15) for _ in range(8)] == [True] * 5 + [False] * 3
    assert share.take("calm", 20)
    assert not share.take("calm", 20), "beyond a quarter, what is left is for others"
    assert share.large == {"busy": 0.75}
    assert share.take("third", 5)
    share.give("busy", 15)
    assert not share.take("busy", 1), "the quarter is full again before anybody has more"
    assert share.take("fourth", 15)


def test_a_namespace_that_waits_for_long_does_not_block_one_that_comes_later() -> None:
    async def scenario() -> list[str]:
        turns, served = Turns(4), list[str]()
        for _ in range(3):
            await turns.acquire("busy")

        async def use(namespace: str) -> None:
            async with turns.turn(namespace):
                served.append(namespace)

        waiting = [asyncio.create_task(use("busy")) for _ in range(3)]
        await asyncio.sleep(0)
        assert served == []
        async with asyncio.timeout(60):
            await use("calm")
            assert served == ["calm"]
            turns.release("busy")
            await asyncio.gather(*waiting)
        return served

    assert asyncio.run(scenario()) == ["calm", "busy", "busy", "busy"]


def test_work_that_blocks_the_event_loop_takes_a_part_of_the_time_and_namespaces_have_turns() -> None:
    async def scenario() -> None:
        pace, done = Pace(0.25), list[tuple[str, float, float]]()

        async def work(namespace: str) -> None:
            await pace.wait(namespace)
            with pace.piece():
                began = time.monotonic()
                while (ended := time.monotonic()) < began + 0.02:
                    pass
            done.append((namespace, began, ended))

        async with asyncio.timeout(60):
            await asyncio.gather(*map(work, ["busy"] * 4 + ["calm"]))
        assert [namespace for namespace, _, _ in done] == ["busy", "busy", "calm", "busy", "busy"]
        for (_, began, ended), (_, begins, _) in itertools.pairwise(done):
            assert begins - ended >= 3 * (ended - began)

    asyncio.run(scenario())


def test_the_namespace_whose_large_objects_arrive_is_named_and_forgotten_after_some_minutes() -> None:
    now = 0.0
    traffic = Traffic(lambda: now)
    traffic.add("calm", 1_000)
    assert traffic.large == {}, "few bytes are no flood"
    for _ in range(60):
        traffic.add("busy", 100_000)
    assert list(traffic.large) == ["busy"]
    assert traffic.large["busy"] > 0.99
    now = 120.0
    assert list(traffic.large) == ["busy"], "two minutes later, a quarter of it counts"
    now = 240.0
    assert traffic.large == {}
    traffic.add("calm", 4_000_000)
    assert list(traffic.large) == ["calm"]
