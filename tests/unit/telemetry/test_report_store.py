"""The report store: what it keeps and rejects, which reconciles it requests, and what no sender can cause."""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from allranks.api.status import MetricRecord
from allranks.core.facts.rank_reports import CheckpointDue, MetricValues, RankReport
from allranks.telemetry import messages, rate_limit
from allranks.telemetry.connections import Limits
from allranks.telemetry.store import Answer, ReportSource, ReportStore, StoreLimits

START = datetime(2026, 1, 1, tzinfo=UTC)
JOB = ("team", "demo")
LIMITS = StoreLimits()
SENDER = ReportSource(JOB, "uid-1", "demo-worker-0-0", "pod-1", "worker", 0, attempt=0, restart=0, node="node-a")


class Clock:
    """Wall clock, monotonic clock and timers."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.timers: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        assert seconds >= 0
        self.timers.append((self.seconds + seconds, len(self.timers), call))

    def advance(self, seconds: float) -> None:
        until = self.seconds + seconds
        while self.timers and min(self.timers)[0] <= until:
            timer = min(self.timers)
            self.timers.remove(timer)
            self.seconds = max(self.seconds, timer[0])
            timer[2]()
        self.seconds = until


class World:
    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        self.notified: list[tuple[str, str]] = []
        clock = self.clock
        self.store = ReportStore(
            clock.now,
            self.notified.append,
            limits=StoreLimits(**limits),
            monotonic=clock.monotonic,
            later=clock.later,
        )

    def say(self, sender: ReportSource = SENDER, **message: Any) -> Answer:
        return self.store.ingest(sender, json.dumps(message).encode())

    def ranks(self, attempt: int = 0) -> tuple[RankReport, ...]:
        return self.store.snapshot(JOB, "uid-1", attempt).ranks

    def rank(self) -> RankReport:
        [rank] = self.ranks()
        return rank


@pytest.fixture
def world() -> World:
    return World()


def worker(index: int, job: tuple[str, str] = JOB, **change: Any) -> ReportSource:
    names = {"pod": f"{job[1]}-worker-{index}-0", "pod_uid": f"{job[1]}-{index}"}
    return replace(SENDER, job=job, index=index, **{**names, **change})


def test_a_complete_message_is_kept_with_timestamps_of_the_operators_clock(world: World) -> None:
    world.clock.advance(100)
    answer = world.say(
        rank=3, localRank=1, step=120, totalSteps=1000, epoch=2, metrics={"loss": 0.25, "lr": 1},
        samplesPerSecond=810.5, stepSeconds=0.12, busySeconds=0.11, loadSeconds=0.02, idle=0.5,
        checkpoint={"step": 100, "ago": 12.5}, done=False, waiting=True,
    )  # fmt: skip
    now = world.clock.now()
    assert answer == Answer(200, {"interval": 5.0, "stacks": "", "checkpoint": 0, "record": True})
    assert world.rank() == RankReport(
        role="worker", index=0, local_rank=1, rank=3, pod="demo-worker-0-0", node="node-a", step=120, total_steps=1000,
        epoch=2, metrics={"loss": 0.25, "lr": 1.0}, samples_per_second=810.5, step_seconds=0.12, busy_seconds=0.11,
        load_seconds=0.02,
        checkpoint_step=100, checkpoint_at=now - timedelta(seconds=12.5), stepped_at=now - timedelta(seconds=0.5),
        first_step_at=now - timedelta(seconds=0.5), received_at=now, done=False, waiting=True,
        windows=((0.12, 0.11),),
    )  # fmt: skip
    assert world.store.since == START


def test_a_report_of_a_process_that_is_dead_is_not_that_of_the_attempt_which_runs_in_its_pod(world: World) -> None:
    assert world.say(attempt=0, step=7).status == 200
    later = replace(SENDER, attempt=1)
    assert world.say(later, attempt=0, step=8).status == 409
    assert world.ranks(1) == ()
    assert world.say(later, attempt=0, checkpoints=[{"step": 8}]).status == 409
    assert world.say(later, attempt=0, nccl={"launched": 1, "size": 2}).status == 409
    assert world.store.snapshot(JOB, "uid-1", 1).checkpoints is None
    world.clock.advance(10)
    assert world.say(later, attempt=2, step=9).status == 400
    assert world.say(later, attempt=1, step=1).status == 200
    assert world.say(later, step=2).status == 200, "libraries of older versions say no attempt"
    assert [rank.step for rank in world.ranks(1)] == [2]


def test_a_message_may_be_empty_and_unknown_fields_are_ignored(world: World) -> None:
    assert world.say().status == 200
    assert world.say(sinceNextYear={"a": [1, 2]}, step=None, rank=None).status == 200
    assert world.rank().step is None
    assert world.rank().first_step_at is None


def test_timestamps_do_not_change_while_the_step_and_the_checkpoint_do_not(world: World) -> None:
    world.say(step=1, idle=0.0, checkpoint={"step": 1, "ago": 0.0})
    world.clock.advance(5)
    world.say(step=1, idle=4.7, checkpoint={"step": 1, "ago": 4.9})
    assert (world.rank().stepped_at, world.rank().checkpoint_at, world.rank().first_step_at) == (START, START, START)
    world.clock.advance(5)
    world.say(step=2, idle=1.0, checkpoint={"step": 2, "ago": 2.0})
    later = world.clock.now()
    assert world.rank().stepped_at == later - timedelta(seconds=1)
    assert world.rank().checkpoint_at == later - timedelta(seconds=2)
    assert world.rank().first_step_at == START


def test_measurements_hold_until_the_next_step(world: World) -> None:
    world.say(step=1, stepSeconds=60.0, busySeconds=50.0, samplesPerSecond=2.0)
    world.say(step=1)
    assert (world.rank().step_seconds, world.rank().busy_seconds, world.rank().samples_per_second) == (60.0, 50.0, 2.0)
    world.say(step=2)
    assert (world.rank().step_seconds, world.rank().busy_seconds, world.rank().samples_per_second) == (None, None, None)


def test_the_message_and_the_limits_in_the_documentation_are_those_of_the_code(world: World) -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "reports-protocol.md").read_text()
    found = re.search(r"Content-Length: (\d+)\n\n(\{.*?\})\n```", text, re.DOTALL)
    assert found
    assert int(found[1]) == len(found[2])
    assert world.store.ingest(SENDER, found[2].encode()).status == 200
    assert (world.rank().step, world.rank().checkpoint_step, world.rank().metrics["loss"]) == (120, 100, 0.31)
    limits = Limits()
    for bound in (
        f"for each of its ranks {LIMITS.burst} in a row, then one a second (with more than "
        f"{LIMITS.max_rate:,.0f} ranks their part of {LIMITS.max_rate:,.0f})",
        f"{limits.connections:,}, of one address {limits.connections_of_peer}, and {limits.new_of_peer} new ones "
        f"in a row, then {limits.new_per_second:.0f} a second",
        f"{limits.first_seconds:.0f} s for the first head, {limits.request_seconds:.0f} s for a request",
        f"{limits.idle_seconds:.0f} s between two",
        f"{messages.LOCAL_RANKS} of a pod, {LIMITS.ranks_per_job:,} of a job, {LIMITS.ranks:,} of all jobs",
        f"{LIMITS.metric_names_per_job} names and {LIMITS.metric_values_per_job:,} values of a job",
        f"| jobs | {LIMITS.jobs:,};",
        f"one in {rate_limit.JOB_INTERVAL:.0f} s, and one at the first step of an attempt; "
        f"of all jobs: {rate_limit.NOTIFICATIONS_PER_SECOND:.0f} a second",
        f"{messages.BODY_BYTES // 1024} KiB",
        f"the interval is {LIMITS.interval_min:.0f} s. With more it is their number / "
        f"{LIMITS.target_rate:,.0f}, up to {LIMITS.interval_max:.0f} s",
    ):
        assert bound in text
    assert LIMITS.silent_seconds == 600
    assert (limits.hold_seconds, limits.wait_seconds) == (1, 10)


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"step=1",
    "a list": b"[]",
    "two messages": b"{}{}",
    "half a message": b'{"step": 1',
    "thousands of brackets": b'{"x":' + b"[" * 8000,
    "bytes that are no text": b'{"metrics":{"\xff":1}}',
    "half a pair of surrogates": b'{"metrics":{"\\ud800":1}}',
    "a step that is text": b'{"step": "1"}',
    "a step that is a fraction": b'{"step": 1.5}',
    "a step below zero": b'{"step": -1}',
    "a step beyond all": b'{"step": 9007199254740993}',
    "a step of five thousand digits": b'{"step": ' + b"9" * 5000 + b"}",
    "true as a step": b'{"step": true}',
    "a rank below zero": b'{"rank": -1}',
    "a local rank that no machine has": b'{"localRank": 128}',
    "a metric that is no number": b'{"metrics": {"loss": NaN}}',
    "a metric beyond all": b'{"metrics": {"loss": 1e999}}',
    "a metric that is text": b'{"metrics": {"loss": "1"}}',
    "a metric without a name": b'{"metrics": {"": 1}}',
    "a name with a line's end": b'{"metrics": {"loss\\n": 1}}',
    "a name with markup": b'{"metrics": {"<script>": 1}}',
    "a name of a page": json.dumps({"metrics": {"x" * 64: 1}}).encode(),
    "33 metrics": json.dumps({"metrics": {f"m{n}": n for n in range(33)}}).encode(),
    "time that runs backwards": b'{"step": 1, "idle": -1}',
    "an age of the universe": b'{"checkpoint": {"step": 1, "ago": 1e300}}',
    "a checkpoint that is a number": b'{"checkpoint": 5}',
    "a rate beyond all": b'{"samplesPerSecond": 1e16}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_an_invalid_message_is_rejected_and_nothing_of_it_is_kept(body: bytes, world: World) -> None:
    assert world.store.ingest(SENDER, body).status == 400
    assert world.ranks() == ()
    world.say(step=7, metrics={"loss": 1.0})
    before = world.rank()
    answer = world.store.ingest(SENDER, body)
    assert answer.status == 400
    assert len(json.dumps(answer.body)) < 400
    assert world.rank() == before


def test_random_bytes_never_raise(world: World) -> None:
    noise, sound = (
        random.Random(7),
        json.dumps({"rank": 1, "metrics": {"loss": 0.5}, "checkpoint": {"ago": 1}}).encode(),
    )
    for number in range(5000):
        body = bytearray(sound)
        for _ in range(noise.randint(1, 4)):
            body[noise.randrange(len(body))] = noise.randrange(256)
        assert world.store.ingest(worker(number), bytes(body)).status in (200, 400)


def test_answers_say_after_which_step_a_checkpoint_is_due_until_the_attempt_is_over(world: World) -> None:
    world.say(step=1, dueStep=0)
    world.store.schedule_checkpoint(SENDER.job, CheckpointDue(100, False))
    assert world.say(step=2, dueStep=0).body["due"] == {"step": 100, "agreed": False}
    assert world.rank().due_step == 0
    world.say(step=100, dueStep=100, checkpoint={"step": 100, "ago": 1.0, "seconds": 7.5})
    assert (world.rank().due_step, world.rank().save_seconds) == (100, 7.5)
    assert "due" not in world.say(replace(SENDER, attempt=1, pod_uid="pod-2"), step=1).body
    assert [rank.due_step for rank in world.ranks(1)] == [None]


def test_each_replica_and_local_rank_is_kept_separately(world: World) -> None:
    for index in range(2):
        for local in range(2):
            world.say(worker(index), localRank=local, step=10 * index + local)
    world.say(replace(SENDER, role="master", pod_uid="m"), step=5)
    found = {(rank.role, rank.index, rank.local_rank): rank.step for rank in world.ranks()}
    assert found == {("worker", 0, 0): 0, ("worker", 0, 1): 1, ("worker", 1, 0): 10, ("worker", 1, 1): 11} | {
        ("master", 0, 0): 5
    }


def test_a_report_of_an_older_attempt_gets_409_and_changes_nothing(world: World) -> None:
    world.say(step=9)
    world.say(replace(SENDER, attempt=1, pod_uid="pod-2"), step=1)
    assert world.say(step=10).status == 409
    assert [rank.step for rank in world.ranks(1)] == [1]
    assert world.ranks(0) == ()


def test_a_snapshot_of_a_newer_attempt_ends_the_older_one(world: World) -> None:
    world.say(step=9)
    assert world.ranks(1) == ()
    assert world.say(step=10).status == 409


def test_a_replica_that_was_restarted_alone_has_only_its_new_pod(world: World) -> None:
    world.say(step=9, localRank=1)
    again = replace(SENDER, restart=1, pod="demo-worker-0-0-1", pod_uid="pod-2")
    assert world.say(again, step=3).status == 200
    assert world.say(step=10).status == 409
    assert (world.rank().pod, world.rank().step, world.rank().local_rank) == ("demo-worker-0-0-1", 3, 0)


def test_another_job_of_the_same_name_begins_with_nothing(world: World) -> None:
    world.say(replace(SENDER, attempt=5), step=9)
    world.say(replace(SENDER, job_uid="uid-2", pod_uid="pod-2"), step=1)
    assert world.store.snapshot(JOB, "uid-1", 5).ranks == ()
    assert [rank.step for rank in world.store.snapshot(JOB, "uid-2", 0).ranks] == [1]


def test_a_forgotten_job_may_report_again(world: World) -> None:
    world.say(step=9)
    world.store.forget(JOB)
    assert world.ranks() == ()
    world.store.forget(JOB)
    world.say(step=10)
    assert world.rank().step == 10


def test_a_checkpoint_is_requested_from_every_rank_of_the_current_attempt_until_it_is_withdrawn(world: World) -> None:
    world.store.request_checkpoint(JOB, 5)  # no rank reports yet
    assert world.say(step=1).body["checkpoint"] == 0
    world.store.request_checkpoint(JOB, 7)
    assert [world.say(worker(index), step=1).body["checkpoint"] for index in (0, 1)] == [7, 7]
    world.store.request_checkpoint(JOB, 0)
    assert world.say(worker(1), step=1).body["checkpoint"] == 0
    world.store.request_checkpoint(JOB, 9)
    assert world.say(worker(1, attempt=1, pod_uid="next")).body["checkpoint"] == 0


def test_a_requested_checkpoint_causes_a_reconcile_immediately_and_once_for_each_rank(world: World) -> None:
    world.say(step=1, savesOnRequest=True)
    assert world.rank().saves_on_request
    world.say(step=2, checkpoint={"step": 2, "ago": 0.0})
    world.clock.advance(1)
    world.store.request_checkpoint(JOB, int(world.clock.now().timestamp() * 1000))
    world.notified.clear()
    world.say(step=3, checkpoint={"step": 2, "ago": 1.0})
    assert world.notified == [], "the checkpoint is older than the request"
    world.clock.advance(1)
    world.say(step=4, checkpoint={"step": 4, "ago": 0.5})
    assert world.notified == [JOB]
    world.say(step=4, checkpoint={"step": 4, "ago": 0.5})
    assert world.notified == [JOB]


def test_stack_dumps_are_requested_from_every_rank_of_the_current_attempt_only(world: World) -> None:
    world.store.stack_dump_id(JOB, "no rank reports yet")
    assert world.say(step=1).body["stacks"] == ""
    world.store.stack_dump_id(JOB, "one")
    assert world.say(worker(0), step=1).body["stacks"] == "one"
    assert world.say(worker(1), step=1).body["stacks"] == "one"
    world.store.stack_dump_id(JOB, "two")
    assert world.say(worker(1), step=1).body["stacks"] == "two"
    assert world.say(worker(1, attempt=1, pod_uid="next")).body["stacks"] == ""


# How often


def test_the_first_step_of_an_attempt_notifies_immediately_and_further_reports_every_5_seconds(world: World) -> None:
    world.say()
    assert world.notified == [JOB]
    world.say(step=1)
    assert world.notified == [JOB] * 2
    for _ in range(41):
        world.clock.advance(0.25)
        world.say(step=2)
    assert len(world.notified) == 4
    world.say(replace(SENDER, attempt=1, pod_uid="pod-2"), step=3)
    assert len(world.notified) == 5


def test_the_last_message_notifies_even_if_no_other_follows(world: World) -> None:
    world.say(step=1)
    world.clock.advance(1)
    world.say(step=2)
    assert len(world.notified) == 1
    world.clock.advance(4)
    assert len(world.notified) == 2
    world.clock.advance(60)
    assert len(world.notified) == 2
    assert world.clock.timers == []


def test_a_thousand_jobs_are_notified_in_turn_20_times_a_second(world: World) -> None:
    jobs = [("team", f"job-{number}") for number in range(1000)]
    for second in range(200):
        for number, job in enumerate(jobs):
            if second % 5 == number % 5:
                world.say(replace(SENDER, job=job, pod_uid=job[1]))
        world.clock.advance(1)
    tally = Counter(world.notified)
    assert 3900 <= len(world.notified) <= 4001
    assert {*jobs} == {*tally}
    assert max(tally.values()) - min(tally.values()) <= 1, "some are notified more often than others"


def test_a_job_with_many_reports_does_not_delay_others(world: World) -> None:
    quiet = [("team", f"job-{number}") for number in range(50)]
    for _ in range(100):
        for index in range(20):
            world.say(worker(index), step=1)
        for job in quiet:
            world.say(replace(SENDER, job=job, pod_uid=job[1]))
        world.clock.advance(1)
    tally = Counter(world.notified)
    assert tally[JOB] <= 22
    assert min(tally[job] for job in quiet) >= 18


def test_a_pod_that_sends_too_many_messages_is_rate_limited_and_others_are_not(world: World) -> None:
    statuses = [world.say(step=n).status for n in range(1000)]
    assert statuses == [200] * LIMITS.burst + [429] * (1000 - LIMITS.burst)
    refused = world.say(step=1)
    assert refused.retry_after == refused.body["interval"] == 5.0
    assert world.say(worker(1), step=1).status == 200
    world.clock.advance(2)
    assert [world.say(step=n).status for n in range(3)] == [200, 200, 429]


def test_the_total_rate_is_shared_by_all_ranks() -> None:
    world = World(max_rate=10.0)
    for index in range(40):
        assert world.say(worker(index)).status == 200
    taken = Counter(world.say(worker(0)).status for _ in range(100))
    assert taken[200] == LIMITS.burst - 1
    world.clock.advance(4)
    assert [world.say(worker(0)).status for _ in range(2)] == [200, 429]


def test_invalid_messages_count_toward_the_rate_limit(world: World) -> None:
    assert [world.store.ingest(SENDER, b"noise").status for _ in range(100)] == [400] * LIMITS.burst + [429] * (
        100 - LIMITS.burst
    )


def test_all_ranks_of_a_pod_may_start_at_the_same_moment(world: World) -> None:
    for local in range(messages.LOCAL_RANKS):
        assert [world.say(localRank=local, step=step).status for step in range(3)] == [200] * 3
    statuses = Counter(world.say(localRank=number % 128).status for number in range(10_000))
    assert statuses[200] == messages.LOCAL_RANKS * (LIMITS.burst - 3), "no rank is a reason for more than its own"


def test_eight_ranks_of_a_pod_that_report_in_time_and_save_checkpoints_are_never_rejected(world: World) -> None:
    for turn in range(100):
        for local in range(8):
            assert world.say(localRank=local, step=turn).status == 200
            assert world.say(localRank=local, step=turn, checkpoint={"step": turn, "ago": 0}).status == 200
        world.clock.advance(5)


def test_the_interval_grows_with_the_ranks_that_report_and_shrinks_when_they_end() -> None:
    world = World(target_rate=1.0)
    assert world.say(worker(0)).body["interval"] == 5.0
    for index in range(12):
        world.say(worker(index))
    assert world.store.reporting == 12
    assert world.say(worker(0)).body["interval"] == 12.0
    for index in range(100):
        world.say(worker(index))
    assert world.say(worker(0)).body["interval"] == LIMITS.interval_max
    for _ in range(20):
        world.clock.advance(10)
        world.say(worker(0))
    assert world.store.reporting == 1
    assert world.say(worker(0)).body["interval"] == 5.0
    world.clock.advance(180)
    assert world.store.reporting == 0


# How much


def held(world: World) -> int:
    """Bytes that the store keeps."""
    visited: set[int] = set()

    def size(thing: Any) -> int:
        if id(thing) in visited or isinstance(thing, (type, datetime)):
            return 0
        visited.add(id(thing))
        inside: list[Any] = []
        if isinstance(thing, dict):
            inside = [*thing.keys(), *thing.values()]
        elif isinstance(thing, (list, tuple)):
            inside = [*thing]
        elif hasattr(thing, "__slots__"):
            inside = [getattr(thing, name) for name in thing.__slots__ if hasattr(thing, name)]
        return sys.getsizeof(thing) + sum(size(part) for part in inside)

    return size(world.store._jobs)


def test_a_pod_that_invents_names_and_ranks_stays_within_the_limits_of_its_job(world: World) -> None:
    limits = {"taken": 0}
    for number in range(20_000):
        names = {f"{number}-{n}": 1.0 for n in range(messages.METRICS)}
        answer = world.say(localRank=number % messages.LOCAL_RANKS, step=number, metrics=names)
        limits["taken"] += answer.status == 200
        world.clock.advance(1)
    assert limits["taken"] == 20_000
    assert len(world.ranks()) == messages.LOCAL_RANKS
    assert len({name for rank in world.ranks() for name in rank.metrics}) <= LIMITS.metric_names_per_job
    assert held(world) < 200_000


def test_the_ranks_and_metrics_of_a_job_are_limited() -> None:
    world = World(ranks_per_job=10, metric_values_per_job=12)
    statuses = [world.say(worker(n), step=1, metrics={"a": 1, "b": 2}).status for n in range(12)]
    assert statuses == [200] * 10 + [503] * 2
    assert [len(rank.metrics) for rank in world.ranks()] == [2] * 6 + [0] * 4
    assert world.say(worker(3), step=2, metrics={"a": 1, "b": 2}).status == 200, "a present rank is not affected"
    world.say(worker(0, restart=1, pod_uid="new"), step=1)
    assert world.say(worker(11), step=1).status == 503
    assert world.say(worker(9), metrics={"a": 1, "b": 2}).status == 200
    assert sum(len(rank.metrics) for rank in world.ranks()) == 12


def test_the_limits_of_the_store_do_not_affect_present_ranks() -> None:
    world = World(jobs=3, ranks=4)  # one of them for other namespaces
    other, third = ("team", "other"), ("team", "third")
    assert world.say(worker(0)).status == 200
    assert world.say(worker(0, job=other)).status == 200
    assert world.say(worker(0, job=third)).status == 503
    assert world.say(worker(1)).status == 200
    assert world.say(worker(2)).status == 503
    assert world.say(worker(0, job=other)).status == 200
    world.store.forget(JOB)
    assert world.say(worker(0, job=third)).status == 200
    assert world.say(worker(1, job=third)).status == 200
    assert world.say(worker(2, job=third)).status == 503


def test_ranks_of_one_namespace_leave_room_for_others() -> None:
    world = World(ranks=8)
    assert [world.say(worker(number)).status for number in range(8)] == [200] * 6 + [503] * 2
    assert world.say(worker(0, job=("calm", "job"))).status == 200
    assert world.say(worker(0)).status == 200


def test_jobs_of_one_namespace_leave_room_for_others_and_have_a_name() -> None:
    world = World(jobs=8)
    jobs = [("team", f"job-{number}") for number in range(8)]
    assert [world.say(worker(0, job=job)).status for job in jobs] == [200] * 6 + [503] * 2
    calm = worker(0, job=("calm", "job"))
    assert world.say(calm).status == 200
    assert world.store.large == {"report_ranks": {}, "report_jobs": {"team": 6 / 8}}
    for job in jobs[:2]:
        world.store.forget(job)
    assert world.say(worker(0, job=jobs[7])).status == 200, "the room of one of them is for other namespaces again"
    assert world.say(calm).status == 200


def test_a_silent_job_is_dropped_when_the_store_is_full() -> None:
    world = World(jobs=3, ranks=4)  # one of them for other namespaces
    for index in range(2):
        world.say(worker(index), step=1)
    world.clock.advance(LIMITS.silent_seconds)
    other, third = ("team", "other"), ("team", "third")
    assert world.say(worker(0, job=other)).status == 200
    assert len(world.ranks()) == 2
    assert world.say(worker(0, job=third)).status == 200
    assert world.ranks() == ()
    assert world.say(worker(1, job=other)).status == 200
    assert world.say(worker(1, job=third)).status == 503, "they are not silent"


def test_ranks_of_former_attempts_and_restarts_are_not_counted() -> None:
    world = World(ranks=5)  # one of them for other namespaces
    for attempt in range(50):
        for index in range(4):
            sender = worker(index, attempt=attempt, pod_uid=f"{attempt}-{index}")
            assert world.say(sender, step=1, metrics={"a": 1}).status == 200
            again = replace(sender, restart=1, pod_uid=f"{attempt}-{index}-1")
            assert world.say(again, step=1, metrics={"a": 1}).status == 200
    assert len(world.ranks(49)) == 4
    world.store.forget(JOB)
    assert not world.store._share._used


def test_the_largest_job_costs_less_than_25_megabytes(world: World) -> None:
    metrics = {f"some/metric/name/{n}": n / 7 for n in range(8)}
    for number in range(LIMITS.ranks_per_job // 8):
        for local in range(8):
            world.say(worker(number), localRank=local, step=1, epoch=1, metrics=metrics, stepSeconds=0.1, idle=0.5,
                      checkpoint={"step": 1, "ago": 3})  # fmt: skip
    assert len(world.ranks()) == LIMITS.ranks_per_job
    assert held(world) < 25e6


def test_the_notifier_keeps_nothing_of_forgotten_jobs(world: World) -> None:
    for number in range(2000):
        job = ("team", f"job-{number}")
        world.say(replace(SENDER, job=job, pod_uid=str(number)))
        world.store.forget(job)
        world.clock.advance(0.01)
    world.clock.advance(60)
    notifier = world.store._notifier
    assert (notifier._queue, notifier._waiting, notifier._notified_at, world.clock.timers) == ([], {}, {}, [])
    assert len(world.notified) <= rate_limit.NOTIFICATIONS_PER_SECOND * 20


def test_what_nccl_says_is_kept_for_the_job_and_is_no_report_of_a_rank(world: World) -> None:
    state = {"launched": 15, "size": 2, "operation": "AllReduce", "number": 8, "behind": [1], "behindCount": 1}

    def kept() -> tuple[Any, ...]:
        reports = world.store.snapshot(JOB, "uid-1", 0)
        found = reports.collectives
        assert found
        assert reports.ranks == ()
        return (found.operation, found.behind, found.moved_at - START, found.received_at - START)

    assert world.say(nccl=state).status == 200
    world.clock.advance(30)
    world.say(nccl=state)
    assert kept() == ("AllReduce", (1,), timedelta(0), timedelta(seconds=30))
    world.clock.advance(30)
    world.say(nccl=state | {"launched": 16})
    assert kept()[2] == timedelta(seconds=60), "a collective was launched"
    assert world.notified
    assert world.store.snapshot(JOB, "uid-1", 1).collectives is None, "another attempt"


@pytest.mark.parametrize(
    "state",
    [
        {"size": 2},
        {"launched": -1, "size": 2},
        {"launched": 1, "size": 2, "operation": "All Reduce\n"},
        {"launched": 1, "size": 2, "operation": "A" * 33},
        {"launched": 1, "size": 2, "behind": list(range(9))},
        {"launched": 1, "size": 2, "missing": [-1]},
    ],
)
def test_what_nccl_says_is_bounded(world: World, state: dict[str, Any]) -> None:
    assert world.say(nccl=state).status == 400
    assert world.store.snapshot(JOB, "uid-1", 0).collectives is None


def test_a_list_of_checkpoints_is_kept_for_the_job_and_is_no_report_of_a_rank(world: World) -> None:
    def kept() -> list[tuple[Any, ...]]:
        reports = world.store.snapshot(JOB, "uid-1", 0)
        assert reports.ranks == ()
        assert reports.checkpoints is not None
        return [(each.step, each.time - START, each.path, each.complete) for each in reports.checkpoints]

    world.clock.advance(100)
    entries = [{"step": 8, "ago": 10, "path": "/c/step-8", "complete": True}, {"step": 4, "ago": 50}]
    assert world.say(checkpoints=entries).status == 200
    assert world.notified
    expected = [(4, timedelta(seconds=50), "", None), (8, timedelta(seconds=90), "/c/step-8", True)]
    assert kept() == expected
    world.clock.advance(1)
    world.say(checkpoints=[{**entry, "ago": entry["ago"] + 1.4} for entry in entries])  # type: ignore[operator]
    assert kept() == expected, "the same files have the same times"
    world.say(checkpoints=[{"step": 1, "path": "\x1b[31m/c"}])
    assert kept()[0][2] == "/c"
    assert world.store.snapshot(JOB, "uid-1", 0).damage_elsewhere == frozenset()
    world.say(checkpoints=[], damageElsewhere=True)
    [pod] = world.store.snapshot(JOB, "uid-1", 0).damage_elsewhere
    assert pod == "demo-worker-0-0"
    later = world.store.snapshot(JOB, "uid-1", 1)
    assert (later.checkpoints, later.damage_elsewhere) == (None, frozenset()), "another attempt"


@pytest.mark.parametrize(
    "entries",
    [
        [{}],
        [{"step": -1}],
        [{"step": 2**31}],
        [{"step": 1, "path": "x" * 257}],
        [{"step": 1}] * 6,
        [{"step": 1, "ago": -1}],
    ],
)
def test_a_list_of_checkpoints_is_bounded(world: World, entries: list[dict[str, Any]]) -> None:
    assert world.say(checkpoints=entries).status == 400
    assert world.store.snapshot(JOB, "uid-1", 0).checkpoints is None


def test_after_a_silence_of_all_ranks_listening_starts_again(world: World) -> None:
    world.say(step=1)
    world.say(worker(1, ("team", "other")), step=1)
    world.clock.advance(100)
    world.say(step=1)
    assert world.store.snapshot(JOB, "uid-1", 0).since == START
    world.store.stack_dump_id(JOB, "0-1")
    world.clock.advance(121)
    assert world.say(step=900).body["stacks"] == "", "a request from the time without reports"
    reports = world.store.snapshot(JOB, "uid-1", 0)
    assert (reports.since, reports.any_job_at) == (START + timedelta(seconds=221),) * 2
    assert world.store.snapshot(("team", "other"), "uid-1", 0).since == START


def test_only_reports_of_the_same_namespace_show_that_reports_of_a_job_can_arrive(world: World) -> None:
    world.say(step=1)
    world.clock.advance(60)
    world.say(worker(1, ("other", "job")), step=1)
    assert world.store.snapshot(JOB, "uid-1", 0).any_job_at == START
    world.say(worker(1, (JOB[0], "neighbour")), step=1)
    assert world.store.snapshot(JOB, "uid-1", 0).any_job_at == START + timedelta(seconds=60)


def test_a_pod_reports_no_more_ranks_than_its_job_declares(world: World) -> None:
    world.store.bound(JOB, "uid-1", {"worker": 2, "ps": 1})
    assert [world.say(localRank=local).status for local in (0, 1, 2, 127)] == [200, 200, 400, 400]
    assert [rank.local_rank for rank in world.ranks()] == [0, 1]
    assert world.say(localRank=1, step=3).status == 200, "the ranks that are there go on"
    assert world.say(trainerStatus={"progressPercentage": 10}).status == 200
    assert "the job declares 2 processes for this pod" in world.say(localRank=5).body["error"]
    world.store.bound(JOB, "uid-1", None)
    assert world.say(localRank=2).status == 400, "without pods nothing changes"


def test_ranks_that_were_believed_before_the_operator_looked_at_the_job_are_dropped(world: World) -> None:
    """512 pods could fill the store within the first seconds of an operator."""
    world = World(ranks=512)
    assert all(world.say(worker(pod), localRank=local).status == 200 for pod in range(3) for local in range(128))
    other = worker(0, ("other", "job"), job_uid="uid-2")
    assert world.say(worker(3)).status == 503
    world.store.bound(JOB, "uid-1", {"worker": 8})
    assert len(world.ranks()) == 24
    assert world.say(other).status == 200
    assert all(world.say(worker(pod), localRank=local).status == 200 for pod in range(3, 40) for local in range(8))


def test_the_bound_is_that_of_the_job_with_this_uid(world: World) -> None:
    world.store.bound(JOB, "uid-of-an-earlier-job", {"worker": 1})
    assert [world.say(localRank=local).status for local in (0, 1)] == [200, 200]
    world.store.bound(JOB, "uid-1", {"worker": 1})
    assert len(world.ranks()) == 1
    world.store.forget(JOB)
    assert [world.say(localRank=local).status for local in (0, 1)] == [200, 200]


def test_the_times_of_the_last_reports_with_new_steps_are_kept(world: World) -> None:
    for step, seconds in ((1, None), (5, 0.1), (5, 0.1), (9, 0.2), (13, 0.3), (17, 0.4)):
        assert world.say(step=step, stepSeconds=seconds, busySeconds=seconds).status == 200
        world.clock.advance(5)
    assert world.rank().windows == ((0.2, 0.2), (0.3, 0.3), (0.4, 0.4))


# --- the record of metrics -------------------------------------------------------------------------------------------

ACCURACY = {
    "accuracy": {
        "first": [10, 0.5], "lowest": [60, 0.1], "highest": [20, 0.99],
        "values": [[10, 0.5, 2.5], [20, 0.99, 2.0], [60, None, 0]], "notFinite": 60, "count": 40, "mean": 0.4,
    }
}  # fmt: skip


def test_the_record_of_the_rank_with_the_lowest_number_is_kept_and_its_values_are_passed_on():
    passed: list[tuple[int, list[MetricValues]]] = []
    clock = Clock()
    store = ReportStore(
        clock.now,
        lambda _: None,
        monotonic=clock.monotonic,
        later=clock.later,
        recorded=lambda *values: passed.append(values),
    )
    clock.advance(100)

    def say(index: int, **message: Any) -> bool | None:
        metrics = {"accuracy": 0.1, "loss": 3.0}
        answer = store.ingest(worker(index), json.dumps({"step": 60, "metrics": metrics, **message}).encode())
        assert answer.status == 200
        return answer.body.get("record")

    def kept() -> dict[str, MetricRecord]:
        return dict(store.snapshot(JOB, "uid-1", 0).metrics)

    other = {"loss": {"first": [1, 9.0], "values": [[1, 9.0, 0]]}}
    assert say(7, rank=7, record=other) is True  # until a lower one reports metrics
    assert kept()["loss"].first == 9.0
    assert say(3, rank=3) is True
    assert say(7, rank=7, record=other) is None
    assert kept() == {}
    assert say(0, rank=0, record=ACCURACY) is None  # rank 0 needs no word
    assert say(3, rank=3, record=other) is None
    assert kept() == {
        "accuracy": MetricRecord(
            first_step=10, first=0.5, last_step=60, lowest_step=60, lowest=0.1, highest_step=20, highest=0.99,
            not_finite_step=60,
        )
    }  # fmt: skip
    now = clock.now()
    times = [now - timedelta(seconds=seconds) for seconds in (2.5, 2.0, 0)]
    values = tuple(zip(times, (10, 20, 60), (0.5, 0.99, None), strict=True))
    assert passed[-1] == (0, [MetricValues("accuracy", values, 40, 0.4)])
    assert len(passed) == 2


def test_processes_without_a_number_know_that_only_one_of_them_sends_a_record(world: World) -> None:
    answers = [world.say(worker(index), step=1, metrics={"loss": 1.0}, record={}).body for index in range(3)]
    assert [answer.get("record") for answer in answers] == [None, False, False]


def test_the_record_is_bounded(world: World) -> None:
    entry = {"first": [1, 0.5], "values": [[1, 0.5, 0]]}
    for part in range(10):
        names = {f"m{part}-{number}": entry for number in range(messages.METRICS)}
        assert world.say(step=1, metrics={"loss": 1.0}, record=names).status == 200
        world.clock.advance(2)
    assert len(world.store.snapshot(JOB, "uid-1", 0).metrics) == messages.METRICS
    many = {"m": {"first": [1, 0.5], "values": [[1, 0.5, 0]] * (messages.VALUES + 1)}}
    assert world.say(step=1, metrics={"loss": 1.0}, record=many).status == 400


def test_the_record_of_an_earlier_attempt_is_dropped(world: World) -> None:
    world.say(step=60, metrics={"accuracy": 0.1}, record=ACCURACY)
    assert world.store.snapshot(JOB, "uid-1", 1).metrics == {}
