"""The work queue has the semantics of client-go's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from allranks.operator.timing import Timing
from allranks.operator.workqueue import JobQueue, ShutDown, WorkQueue
from support.work_queue import SteppedClock, due_in


class World:
    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.queue: WorkQueue[str] = WorkQueue(self.clock, lambda failures: 2.0**failures)

    def ready(self) -> list[str]:
        """Keys that can be got now, in order; each is processed completely."""
        out = []
        while self.queue._queue:
            key = run(self.queue.get())
            out.append(key)
            self.queue.done(key)
        return out


@pytest.fixture
def world() -> World:
    return World()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_keys_are_handed_out_in_the_order_of_arrival(world: World) -> None:
    for key in "cab":
        world.queue.add(key)
    assert world.ready() == ["c", "a", "b"]


def test_duplicates_coalesce(world: World) -> None:
    for key in "abaab":
        world.queue.add(key)
    assert len(world.queue) == 2
    assert world.ready() == ["a", "b"]


def test_a_key_that_is_added_while_it_is_processed_is_processed_again_afterwards(world: World) -> None:
    world.queue.add("a")
    assert run(world.queue.get()) == "a"
    world.queue.add("a")
    world.queue.add("a")
    assert world.ready() == [], "one worker at a time"
    world.queue.done("a")
    assert world.ready() == ["a"]
    assert len(world.queue) == 0


def test_a_key_that_is_added_again_waits_behind_the_others(world: World) -> None:
    world.queue.add("a")
    assert run(world.queue.get()) == "a"
    world.queue.add("a")
    world.queue.add("b")
    world.queue.done("a")
    assert world.ready() == ["b", "a"]


def test_of_several_delays_the_earliest_counts(world: World) -> None:
    world.queue.add_after("a", 10)
    world.queue.add_after("a", 3)
    world.queue.add_after("a", 5)
    assert due_in(world.queue, "a") == 3
    world.clock.advance(2.9)
    assert world.ready() == []
    world.clock.advance(0.1)
    assert world.ready() == ["a"]
    world.clock.advance(100)
    assert world.ready() == []


def test_a_delay_of_zero_adds_immediately(world: World) -> None:
    world.queue.add_after("a", 0)
    assert world.ready() == ["a"]


def test_a_delayed_key_is_still_added_after_it_was_added_immediately(world: World) -> None:
    world.queue.add_after("a", 5)
    world.queue.add("a")
    assert world.ready() == ["a"]
    world.clock.advance(5)
    assert world.ready() == ["a"]


def test_a_cancelled_delay_adds_nothing(world: World) -> None:
    world.queue.add_after("a", 5)
    world.queue.cancel_delay("a")
    world.queue.cancel_delay("a")
    world.clock.advance(10)
    assert (world.ready(), due_in(world.queue, "a")) == ([], None)


def test_the_backoff_grows_and_forget_resets_it(world: World) -> None:
    delays = []
    for _ in range(4):
        delays.append(world.queue.add_rate_limited("a"))
        world.queue.cancel_delay("a")
    assert all(2.0**n / 2 <= delay <= 2.0**n for n, delay in enumerate(delays, 1))
    assert (world.queue.failures("a"), world.queue.failing) == (4, True)
    world.queue.forget("a")
    assert (world.queue.failures("a"), world.queue.failing) == (0, False)
    assert world.queue.add_rate_limited("a") <= 2
    assert world.queue.failures("b") == 0


def test_the_backoff_can_be_limited(world: World) -> None:
    for _ in range(20):
        assert world.queue.add_rate_limited("a", longest=3) <= 3


def test_at_shutdown_queued_keys_are_handed_out_and_further_ones_are_ignored(world: World) -> None:
    world.queue.add("a")
    assert run(world.queue.get()) == "a"
    for key in "bac":
        world.queue.add(key)
    world.queue.add_after("d", 1)
    world.queue.shut_down()
    world.queue.add("e")
    world.queue.add_after("f", 0)
    world.clock.advance(10)
    world.queue.done("a")
    assert world.ready() == ["b", "c", "a"]
    with pytest.raises(ShutDown):
        run(world.queue.get())


def test_a_waiting_get_returns_the_key_that_is_added(world: World) -> None:
    async def scenario() -> list[str]:
        getters = [asyncio.create_task(world.queue.get()) for _ in range(2)]
        await asyncio.sleep(0)
        world.queue.add("a")
        world.queue.add("b")
        return [await getter for getter in getters]

    assert run(scenario()) == ["a", "b"]


def test_a_cancelled_get_loses_no_key(world: World) -> None:
    async def scenario() -> str:
        first, second = (asyncio.create_task(world.queue.get()) for _ in range(2))
        await asyncio.sleep(0)
        world.queue.add("a")  # wakes the first
        first.cancel()
        return await asyncio.wait_for(second, 30)

    assert run(scenario()) == "a"


def test_shutdown_ends_every_waiting_get(world: World) -> None:
    async def scenario() -> list[Any]:
        getters = [asyncio.create_task(world.queue.get()) for _ in range(3)]
        await asyncio.sleep(0)
        world.queue.shut_down()
        return await asyncio.gather(*getters, return_exceptions=True)

    assert [type(error) for error in run(scenario())] == [ShutDown] * 3


# The queue of jobs

KEY, OTHER = ("ns", "demo"), ("other", "demo")


@pytest.fixture
def jobs() -> tuple[JobQueue, SteppedClock]:
    clock = SteppedClock()
    return JobQueue(Timing(), clock), clock


def test_jobs_of_a_namespace_whose_pods_are_not_listed_are_ignored(jobs: tuple[JobQueue, SteppedClock]) -> None:
    queue, _ = jobs
    queue.open("ns")
    for key in (KEY, OTHER):
        queue.enqueue(key)
        queue.enqueue_now(key)
    assert len(queue) == 1
    queue.open(None)
    queue.enqueue(OTHER)
    assert len(queue) == 2


def test_the_debounce_grows_with_the_cost_of_a_reconcile(jobs: tuple[JobQueue, SteppedClock]) -> None:
    queue, _ = jobs
    queue.open(None)
    queue.enqueue(KEY, urgent=False)
    assert len(queue) == 1, "the first reconcile of a job is immediate"
    for cost, debounce in ((0.0, 0.02), (0.005, 0.1), (5.0, 0.25)):
        queue.set_cost(OTHER, cost)
        queue.enqueue(OTHER, urgent=False)
        due = due_in(queue, OTHER)
        assert due is not None
        assert abs(due - debounce) < 1e-9
        assert not queue.idle
        queue.begin(OTHER)
        assert due_in(queue, OTHER) is None


def test_a_report_is_not_a_change(jobs: tuple[JobQueue, SteppedClock]) -> None:
    queue, _ = jobs
    queue.open(None)
    queue.enqueue_now(KEY)
    assert not queue.begin(KEY)
    queue.enqueue(KEY, urgent=False)
    assert queue.begin(KEY)
    assert not queue.begin(KEY)


def test_the_backoff_of_a_failing_job_is_30_s_and_after_eight_failures_five_minutes(
    jobs: tuple[JobQueue, SteppedClock],
) -> None:
    queue, _ = jobs
    queue.open(None)
    longest = []
    for _ in range(12):
        queue.cancel_delay(KEY)
        longest.append(queue.add_rate_limited(KEY))
    assert longest[0] <= 1
    assert 15 <= longest[7] <= 30
    assert 150 <= longest[11] <= 300
    assert not queue.idle
    queue.remove(KEY)
    assert queue.idle
