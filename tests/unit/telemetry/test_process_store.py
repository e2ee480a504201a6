"""The store of supervisors: what it keeps and answers, which reconciles it requests, and what no sender can cause."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from allranks.core.facts.processes import Order, PodProcess, ProcessExit
from allranks.telemetry.messages import BODY_BYTES, Answer, ReportSource
from allranks.telemetry.processes import ProcessLimits, ProcessStore

START = datetime(2026, 1, 1, tzinfo=UTC)
JOB = ("team", "demo")
SENDER = ReportSource(JOB, "uid-1", "demo-worker-0-0", "pod-0", "worker", 0, attempt=2, restart=0, node="node-a")
NOTHING = Answer(200, {"order": None})
LAST = {"attempt": 2, "code": 137, "signal": 9, "ago": 0.5, "message": "killed"}


class Timer:
    def __init__(self, call: Any) -> None:
        self.call, self.cancelled = call, False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """A store with a clock of the test. Polls are tasks."""

    def __init__(self, **limits: Any) -> None:
        self.seconds = 0.0
        self.timers: list[tuple[float, Timer]] = []
        self.notified: list[tuple[tuple[str, str], bool]] = []
        self.counted: list[str] = []
        self.polls: list[asyncio.Task[Answer]] = []
        self.store = ProcessStore(
            lambda: START + timedelta(seconds=self.seconds),
            lambda job, urgent: self.notified.append((job, urgent)),
            count=self.counted.append,
            limits=ProcessLimits(**limits),
            monotonic=lambda: self.seconds,
            later=self.later,
        )

    def later(self, seconds: float, call: Any) -> Timer:
        timer = Timer(call)
        self.timers.append((self.seconds + seconds, timer))
        return timer

    async def advance(self, seconds: float) -> None:
        self.seconds += seconds
        for due, timer in list(self.timers):
            if due <= self.seconds:
                self.timers.remove((due, timer))
                if not timer.cancelled:
                    timer.call()
        await settle()

    async def poll(self, sender: ReportSource = SENDER, **message: Any) -> asyncio.Task[Answer]:
        return await self.post(json.dumps({"attempt": 2, "state": "Running", "started": 1.0, **message}), sender)

    async def post(self, body: str, sender: ReportSource = SENDER) -> asyncio.Task[Answer]:
        task = asyncio.create_task(self.store.poll(sender, body.encode()))
        self.polls.append(task)
        await settle()
        return task

    def process(self, sender: ReportSource = SENDER, *others: str) -> PodProcess:
        pods = {sender.pod_uid, *others}
        return self.store.snapshot(sender.job, sender.job_uid, pods).by_pod[sender.pod_uid]

    async def close(self) -> None:
        for task in self.polls:
            task.cancel()
        await asyncio.gather(*self.polls, return_exceptions=True)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def worker(index: int, job: tuple[str, str] = JOB, **change: Any) -> ReportSource:
    return replace(SENDER, job=job, pod_uid=f"{job[0]}-{job[1]}-{index}", index=index, **change)


def of_test(world: World, scenario: Any) -> None:
    async def whole() -> None:
        try:
            await scenario(world)
        finally:
            await world.close()

    run(whole())


def stop(attempt: int = 3, uid: str = SENDER.pod_uid) -> Order:
    return Order(uid, "Stop", attempt, 30)


def begin(attempt: int = 3, uid: str = SENDER.pod_uid, **env: str | None) -> Order:
    return Order(uid, "Start", attempt, env={"ALLRANKS_ATTEMPT": str(attempt), **env})


# --- what it keeps ---------------------------------------------------------------------------------------------------


def test_a_state_is_kept_with_times_of_the_operators_clock():
    async def scenario(world: World) -> None:
        world.seconds = 100.0
        await world.poll(state="Ended", started=60.0, last=LAST)
        now = START + timedelta(seconds=100)
        ended = ProcessExit(137, now - timedelta(seconds=0.5), 9, "killed")
        assert world.process() == PodProcess(2, "Ended", True, now - timedelta(seconds=60), 2, ended)
        assert world.store.snapshot(JOB, "uid-1", {"pod-0"}).since == START

    of_test(World(), scenario)


def test_times_do_not_move_when_the_same_state_is_repeated():
    async def scenario(world: World) -> None:
        await world.poll(state="Ended", last=LAST)
        before = world.process()
        await world.advance(5)
        await world.poll(state="Ended", started=6.3, last={**LAST, "ago": 5.9})
        assert world.process() == before
        assert world.notified == [(JOB, True)]

    of_test(World(), scenario)


def test_the_exit_of_the_attempt_before_stays_while_the_next_one_runs():
    async def scenario(world: World) -> None:
        await world.poll(state="Ended", last=LAST)
        ended = world.process().last_exit
        await world.advance(2)
        await world.poll(attempt=3, state="Down", started=None, last={**LAST, "ago": 2.6})
        down = world.process()
        assert (down.attempt, down.state, down.started_at, down.last_attempt) == (3, "Down", None, 2)
        assert down.last_exit == ended
        await world.poll(attempt=3, state="Running", started=0.1, last={**LAST, "ago": 2.7})
        assert world.process().last_exit == ended
        assert world.process().started_at is not None

    of_test(World(), scenario)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{}",
        '{"attempt": 2}',
        '{"attempt": 2, "state": "Gone"}',
        '{"attempt": -1, "state": "Down"}',
        '{"attempt": 4294967296, "state": "Down"}',
        '{"attempt": "2", "state": "Down"}',
        '{"attempt": 2, "state": "Down", "started": -1}',
        '{"attempt": 2, "state": "Ended", "last": {"attempt": 2}}',
        '{"attempt": 2, "state": "Ended", "last": {"attempt": 2, "code": 256}}',
        '{"attempt": 2, "state": "Ended", "last": {"attempt": 2, "code": 1, "signal": 0}}',
        '{"attempt": 2, "state": "Ended", "last": {"attempt": 2, "code": 1, "ago": 1e99}}',
        "[" * 8000,
    ],
)
def test_an_invalid_state_is_rejected_and_changes_nothing(body: str):
    async def scenario(world: World) -> None:
        await world.poll()
        before = world.process()
        rejected = await world.post(body)
        assert rejected.result().status == 400
        assert world.process() == before

    of_test(World(), scenario)


def test_last_lines_are_bounded_and_have_no_control_sequences():
    async def scenario(world: World) -> None:
        text = "\x1b[31mred\x1b[0m " + "\u00e9" * 3000 + "\nend"
        await world.poll(state="Ended", last={**LAST, "message": text})
        last = world.process().last_exit
        assert last
        assert last.message.endswith("\u00e9\nend")
        assert "\x1b" not in last.message
        assert len(last.message.encode()) <= 2048

    of_test(World(), scenario)


def test_unknown_fields_are_ignored():
    async def scenario(world: World) -> None:
        poll = await world.poll(since="next year")
        assert not poll.done()

    of_test(World(), scenario)


def test_a_state_that_is_overtaken_by_the_next_one_is_dropped():
    async def scenario(world: World) -> None:
        newest = await world.poll(state="Ended", last=LAST, number=2)
        late = await world.poll(state="Running", number=1)
        assert late.result() == NOTHING
        assert not newest.done()
        assert world.process().state == "Ended"

    of_test(World(), scenario)


def test_pods_that_are_gone_are_forgotten():
    async def scenario(world: World) -> None:
        polls = [await world.poll(worker(index)) for index in range(3)]
        kept = worker(1)
        assert set(world.store.snapshot(JOB, "uid-1", {kept.pod_uid}).by_pod) == {kept.pod_uid}
        await settle()
        assert [poll.done() for poll in polls] == [True, False, True]
        world.store.forget(JOB)
        await settle()
        assert polls[1].result() == NOTHING
        assert world.store.connected == 0

    of_test(World(), scenario)


def test_a_job_with_the_name_of_a_former_one_has_its_own_pods():
    async def scenario(world: World) -> None:
        await world.poll()
        await world.poll(replace(SENDER, job_uid="uid-2", pod_uid="pod-9"))
        assert world.store.snapshot(JOB, "uid-1", {"pod-0", "pod-9"}).by_pod == {}
        assert set(world.store.snapshot(JOB, "uid-2", {"pod-0", "pod-9"}).by_pod) == {"pod-9"}

    of_test(World(), scenario)


# --- connected -------------------------------------------------------------------------------------------------------


def test_a_supervisor_is_connected_while_it_waits_and_five_seconds_longer():
    async def scenario(world: World) -> None:
        await world.poll()
        await world.advance(24)
        assert world.process().connected
        await world.advance(1)  # the poll is answered
        await world.advance(4.9)
        assert (world.process().connected, world.store.connected) == (True, 1)
        await world.advance(0.2)
        assert (world.process().connected, world.store.connected) == (False, 0)
        await world.poll()
        assert world.process().connected

    of_test(World(), scenario)


@pytest.mark.parametrize(("state", "seconds"), [("Running", 25.0), ("Ended", 5.0), ("Down", 5.0)])
def test_a_poll_without_an_order_is_answered_in_time(state: str, seconds: float):
    async def scenario(world: World) -> None:
        poll = await world.poll(state=state)
        await world.advance(seconds - 0.1)
        assert not poll.done()
        await world.advance(0.2)
        assert poll.result() == NOTHING

    of_test(World(), scenario)


# --- orders ----------------------------------------------------------------------------------------------------------


def test_an_order_is_given_at_once_to_a_supervisor_that_waits():
    async def scenario(world: World) -> None:
        poll = await world.poll()
        world.store.order(JOB, [stop()])
        await settle()
        assert poll.result() == Answer(200, {"order": "Stop", "attempt": 3, "grace": 30})

    of_test(World(), scenario)


def test_an_order_waits_for_a_supervisor_that_comes_later():
    async def scenario(world: World) -> None:
        world.store.order(JOB, [begin(A="b", C=None)])
        poll = await world.poll(attempt=3, state="Down")
        env = {"ALLRANKS_ATTEMPT": "3", "A": "b", "C": None}
        assert poll.result() == Answer(200, {"order": "Start", "attempt": 3, "env": env})

    of_test(World(), scenario)


CARRIED_OUT = [
    (stop(3), (2, "Running"), True),
    (stop(3), (2, "Ended"), True),
    (stop(3), (2, "Down"), True),
    (stop(3), (3, "Down"), False),
    (stop(3), (3, "Running"), False),
    (stop(3), (3, "Ended"), False),
    (stop(3), (4, "Down"), False),
    (begin(3), (3, "Down"), True),
    (begin(3), (3, "Running"), False),
    (begin(3), (3, "Ended"), False),
    (begin(3), (4, "Down"), False),
    (Order("pod-0", "Exit"), (2, "Ended"), True),
    (Order("pod-0", "Exit"), (9, "Down"), True),
]


@pytest.mark.parametrize(("order", "state", "due"), CARRIED_OUT)
def test_an_order_is_given_until_the_state_says_that_it_is_carried_out(order: Order, state: tuple[int, str], due: bool):
    async def scenario(world: World) -> None:
        world.store.order(JOB, [order])
        poll = await world.poll(attempt=state[0], state=state[1])
        assert (poll.done() and poll.result().body["order"] == order.action) == due

    of_test(World(), scenario)


def test_orders_that_are_withdrawn_are_not_given():
    async def scenario(world: World) -> None:
        world.store.order(JOB, [stop()])
        world.store.order(JOB, [])
        assert not (await world.poll()).done()

    of_test(World(), scenario)


def test_a_newer_state_is_answered_at_once_and_ends_the_poll_before_it():
    async def scenario(world: World) -> None:
        first = await world.poll()
        second = await world.poll(state="Ended", last=LAST)
        assert first.result() == NOTHING
        assert not second.done()
        world.store.order(JOB, [stop()])
        await settle()
        assert second.result().body["order"] == "Stop"

    of_test(World(), scenario)


def test_an_order_is_for_its_own_pod_and_job():
    async def scenario(world: World) -> None:
        others = [worker(1), worker(0, ("team", "other")), worker(0, ("red", "demo"))]
        polls = [await world.poll(sender) for sender in others]
        world.store.order(JOB, [stop(), stop(uid=others[1].pod_uid), stop(uid=others[2].pod_uid)])
        await settle()
        assert not any(poll.done() for poll in polls)

    of_test(World(), scenario)


def test_each_order_of_a_pod_is_counted_once():
    async def scenario(world: World) -> None:
        world.store.order(JOB, [stop()])
        for _ in range(3):
            await world.poll()
        world.store.order(JOB, [begin()])
        await world.poll(attempt=3, state="Down")
        assert world.counted == ["Stop", "Start"]

    of_test(World(), scenario)


def test_a_store_that_is_closed_sends_everybody_to_another_replica():
    async def scenario(world: World) -> None:
        poll = await world.poll()
        world.store.close()
        await settle()
        assert (poll.result().status, (await world.poll()).result().status) == (503, 503)

    of_test(World(), scenario)


# --- reconciles ------------------------------------------------------------------------------------------------------


def test_a_change_reconciles_its_job_at_once_and_further_ones_soon():
    async def scenario(world: World) -> None:
        for index in range(3):
            await world.poll(worker(index))
        assert world.notified == [(JOB, True), (JOB, False), (JOB, False)]
        await world.advance(2)
        await world.poll(worker(0), state="Ended", last=LAST)
        assert world.notified[3:] == [(JOB, True)]

    of_test(World(), scenario)


def test_a_pod_that_changes_its_state_all_the_time_is_limited_and_others_are_not():
    async def scenario(world: World) -> None:
        statuses = [
            (await world.poll(state=("Ended", "Running")[turn % 2], last=LAST if turn % 2 == 0 else None)).done()
            and world.polls[-1].result().status
            for turn in range(60)
        ]
        assert statuses.count(429) == 40
        assert len(world.notified) <= 20
        assert not (await world.poll(worker(1))).done()
        await world.advance(3)
        assert not (await world.poll(state="Ended", last=LAST)).done()

    of_test(World(), scenario)


# --- room ------------------------------------------------------------------------------------------------------------


def test_supervisors_of_one_namespace_leave_room_for_others():
    async def scenario(world: World) -> None:
        polls = [await world.poll(worker(index)) for index in range(100)]
        answers = [poll.result().status for poll in polls if poll.done()]
        assert answers == [503] * 25
        assert not (await world.poll(worker(0, ("red", "demo")))).done()
        assert world.store.large == {"team": 0.75}

    of_test(World(pods=100), scenario)


@pytest.mark.parametrize("state", ["Ended", "Down"])
def test_a_pod_without_room_ends_with_its_program(state: str):
    async def scenario(world: World) -> None:
        for index in range(3):
            await world.poll(worker(index))
        assert (await world.poll(worker(9), state=state, last=LAST)).result() == Answer(200, {"order": "Exit"})

    of_test(World(pods=4), scenario)


def test_silent_supervisors_make_room():
    async def scenario(world: World) -> None:
        for index in range(3):
            await world.poll(worker(index))
        assert (await world.poll(worker(9))).result().status == 503
        await world.advance(25)
        await world.advance(61)
        assert not (await world.poll(worker(9))).done()
        assert set(world.store.snapshot(JOB, "uid-1", {worker(9).pod_uid, worker(2).pod_uid}).by_pod) == {
            worker(2).pod_uid,
            worker(9).pod_uid,
        }

    of_test(World(pods=4), scenario)


def test_room_is_given_back_exactly():
    async def scenario(world: World) -> None:
        for _ in range(20):
            for index in range(3):
                await world.poll(worker(index))
            world.store.snapshot(JOB, "uid-1", {worker(0).pod_uid})
            world.store.forget(JOB)
            await settle()
        assert world.store.large == {}
        assert (world.store._jobs, dict(world.store._heard), world.store._orders) == ({}, {}, {})

    of_test(World(pods=4), scenario)


def test_the_longest_message_fits_into_a_body():
    message = json.dumps(
        {"attempt": 2**31 - 1, "state": "Ended", "started": 1e9, "last": {**LAST, "message": "x" * 6144}}
    )
    assert len(message) < BODY_BYTES


# --- replicas that restart alone --------------------------------------------------------------------------------------


def test_a_restart_alone_is_ordered_until_the_pod_says_that_it_is_carried_out():
    async def scenario(world: World) -> None:
        ended = {"state": "Ended", "last": LAST}
        poll = await world.poll(restart=0, **ended)
        world.store.order(JOB, [replace(stop(2), restart=1)])
        assert (await poll).body == {"order": "Stop", "attempt": 2, "grace": 30, "restart": 1}
        down = await world.poll(number=1, state="Down", restart=1, started=None, last=LAST)
        assert not down.done()
        assert world.process().number == (2, 1)
        world.store.order(JOB, [replace(begin(2), restart=1)])
        assert (await down).body == {
            "order": "Start",
            "attempt": 2,
            "restart": 1,
            "env": {"ALLRANKS_ATTEMPT": "2"},
        }
        running = await world.poll(number=2, restart=1, last=LAST)
        assert not running.done()
        assert world.counted == ["Stop", "Start"]

    of_test(World(), scenario)


def test_a_program_that_ends_in_the_same_way_after_a_restart_is_news():
    async def scenario(world: World) -> None:
        await world.poll(restart=0, state="Ended", last=LAST)
        await world.advance(5)
        await world.poll(number=1, restart=1, state="Ended", last=LAST)
        assert len(world.notified) == 2

    of_test(World(), scenario)


def test_a_supervisor_of_an_older_version_says_nothing_about_restarts():
    async def scenario(world: World) -> None:
        await world.poll()
        assert world.process().restart is None

    of_test(World(), scenario)
