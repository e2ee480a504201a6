"""The status that `transformers` sends to Kubeflow Trainer, as a report: what is read, and what takes precedence."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any

import pytest

from allranks.core.facts.rank_reports import RankReport
from allranks.telemetry import messages
from allranks.telemetry.store import Answer, StoreLimits
from support.builders import table

from .test_report_store import JOB, START, World, worker


@pytest.fixture
def world() -> World:
    return World()


def send(world: World, percent: float | None = None, index: int = 0, **metrics: Any) -> Answer:
    """As `KubeflowCallback` of transformers 5.23 does: all values are text."""
    status: dict[str, Any] = {"lastUpdatedTime": "2026-01-01T00:00:00+00:00"}
    if percent is not None:
        status |= {"progressPercentage": percent, "estimatedRemainingSeconds": 12}
    if metrics:
        status["metrics"] = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    return world.say(worker(index), trainerStatus=status)


def one(world: World) -> RankReport:
    [rank] = world.ranks()
    return rank


def test_a_training_from_its_start_to_its_end(world: World) -> None:
    assert send(world, 0, total_steps=200) == Answer(200, {"interval": 5.0, "stacks": "", "checkpoint": 0})
    rank = one(world)
    assert (rank.rank, rank.local_rank, rank.step, rank.total_steps, rank.done) == (0, 0, None, 200, False)
    world.clock.advance(20)
    send(world, 5, current_step=10, total_steps=200, current_epoch=0.1)
    assert (one(world).step, one(world).step_seconds, one(world).first_step_at) == (10, None, world.clock.now())
    world.clock.advance(5)
    send(world, 10, loss=0.25, epoch=1.2, learning_rate=5e-05, current_step=20, total_steps=200, current_epoch=1.24)
    rank = one(world)
    assert (rank.step, rank.total_steps, rank.epoch, rank.step_seconds) == (20, 200, 1, 0.5)
    assert rank.metrics == {"loss": 0.25, "learning_rate": 5e-05}
    assert rank.stepped_at == rank.received_at == START + timedelta(seconds=25)
    world.clock.advance(90)
    send(world, 100, train_loss=0.2, loss=0.1)  # without counters
    rank = one(world)
    assert (rank.step, rank.total_steps, rank.epoch, rank.step_seconds, rank.done) == (200, 200, 1, 0.5, True)
    assert rank.metrics == {"train_loss": 0.2, "loss": 0.1}
    assert rank.first_step_at == START + timedelta(seconds=20)
    assert not rank.heartbeat


def test_a_second_training_of_the_same_program_starts_again(world: World) -> None:
    send(world, 0, total_steps=10)
    send(world, 100)
    send(world, 0, total_steps=7)
    assert (one(world).step, one(world).total_steps, one(world).done) == (None, 7, False)
    world.clock.advance(5)
    send(world, 42, current_step=3, total_steps=7)
    assert (one(world).step, one(world).total_steps, one(world).step_seconds) == (3, 7, None)


def test_a_program_that_reports_percent_alone_has_100_steps(world: World) -> None:
    send(world, 0)
    assert one(world).step is None
    world.clock.advance(10)
    send(world, 20, accuracy=0.5)
    world.clock.advance(10)
    send(world, 30)
    assert (one(world).step, one(world).total_steps, one(world).step_seconds) == (30, 100, 1.0)


def test_the_first_step_is_passed_on_at_once(world: World) -> None:
    send(world, 0, total_steps=10)
    world.clock.advance(1)
    world.notified.clear()
    send(world, 10, current_step=1, total_steps=10)
    assert world.notified == [JOB]


@table(
    ("not finite", "nan"),
    ("infinite", "inf"),
    ("empty", ""),
    ("text", "great"),
    ("too long", "1" * 41),
    ("too large for a float", 10**400),
    ("null", None),
    ("a list", [1, 2]),
    ("an object", {"a": 1}),
)
def test_a_value_that_is_no_number_is_dropped_and_the_others_are_kept(case: Any) -> None:
    [value] = case
    world = World()
    metrics = [{"name": "odd", "value": value}, {"name": "loss", "value": "0.5"}, {"name": "current_step", "value": 3}]
    assert world.say(worker(0), trainerStatus={"metrics": metrics}).status == 200
    assert (one(world).metrics, one(world).step) == ({"loss": 0.5}, 3)


def test_a_name_that_no_report_may_have_is_dropped(world: World) -> None:
    send(world, 10, **{"": 1, "a b": 2, "rewards/mean": 3, "x" * 64: 4, "é": 5, "current_step": -1})
    assert (one(world).metrics, one(world).step) == ({"rewards/mean": 3.0}, 10)


def test_of_many_metrics_the_first_are_kept(world: World) -> None:
    send(world, 10, **{f"m{number}": number for number in range(60)}, current_step=5, total_steps=50)
    assert list(one(world).metrics) == [f"m{number}" for number in range(messages.METRICS)]
    assert (one(world).step, one(world).total_steps) == (5, 50)


@table(
    ("no object", {"trainerStatus": 3}),
    ("a list", {"trainerStatus": []}),
    ("more than all", {"trainerStatus": {"progressPercentage": 101}}),
    ("less than nothing", {"trainerStatus": {"progressPercentage": -1}}),
    ("percent as text", {"trainerStatus": {"progressPercentage": "10"}}),
    ("metrics as an object", {"trainerStatus": {"metrics": {"loss": 1}}}),
    ("a metric that is text", {"trainerStatus": {"metrics": ["loss"]}}),
    ("a name that is a number", {"trainerStatus": {"metrics": [{"name": 1, "value": "1"}]}}),
)
def test_a_wrong_body_is_rejected_with_the_place_and_nothing_of_it_is_kept(case: Any) -> None:
    [body] = case
    world = World()
    answer = world.say(worker(0), **body)
    assert answer.status == 400
    assert "$.trainerStatus" in answer.body["error"]
    assert world.ranks() == ()


def test_limits_for_messages_hold_for_statuses(world: World) -> None:
    statuses = [send(world, 1).status for _ in range(100)]
    burst = StoreLimits().burst
    assert statuses == [200] * burst + [429] * (100 - burst)


def test_a_status_takes_the_place_of_one_rank() -> None:
    world = World(ranks_per_job=2)
    assert [send(world, 1, index).status for index in range(3)] == [200, 200, 503]
    assert len(world.ranks()) == 2
    world.store.forget(JOB)
    assert send(world, 1, 3).status == 200


def test_a_status_of_a_former_attempt_or_restart_is_refused(world: World) -> None:
    send(world, 1)
    world.store.snapshot(JOB, "uid-1", 1)
    assert send(world, 2).status == 409
    assert world.ranks(1) == ()


def test_the_library_takes_precedence_in_a_pod_and_nothing_is_counted_twice(world: World) -> None:
    for step in range(1, 4):
        world.clock.advance(10)
        world.say(worker(0), rank=0, step=step, totalSteps=10, metrics={"loss": 0.5})
        send(world, 50, current_step=5 * step, total_steps=99, loss=9)
        assert (one(world).step, one(world).total_steps, one(world).metrics) == (step, 10, {"loss": 0.5})
        assert one(world).heartbeat


def test_the_order_of_the_first_messages_does_not_matter(world: World) -> None:
    send(world, 50, current_step=5, total_steps=99)
    assert one(world).step == 5
    world.say(worker(0), rank=0, localRank=0, step=1)
    assert one(world).step == 1


def test_the_other_ranks_of_the_pod_are_kept_beside_the_library(world: World) -> None:
    for local in range(2):
        world.say(worker(0), rank=local, localRank=local, step=7)
    send(world, 50, current_step=5)
    assert [(rank.rank, rank.step) for rank in world.ranks()] == [(0, 7), (1, 7)]


def test_a_rank_whose_library_reports_no_steps_gets_those_of_the_status(world: World) -> None:
    world.say(worker(0), rank=4, localRank=0, metrics={"reward": 2}, checkpoint={"step": 3, "ago": 0})
    world.say(worker(0), rank=5, localRank=1)
    world.clock.advance(20)
    send(world, 50, current_step=5, total_steps=10, loss=1)
    world.clock.advance(20)
    world.say(worker(0), rank=4, localRank=0, metrics={"reward": 3}, checkpoint={"step": 3, "ago": 40})
    first, second = world.ranks()
    assert (first.rank, first.step, first.total_steps, first.checkpoint_step) == (4, 5, 10, 3)
    assert first.metrics == {"loss": 1.0, "reward": 3.0}
    assert (first.heartbeat, first.received_at, first.stepped_at) == (
        True,
        world.clock.now(),
        START + timedelta(seconds=20),
    )
    assert (second.rank, second.step) == (5, None)


def test_random_bodies_never_raise(world: World) -> None:
    chance = random.Random(1)
    values: list[Any] = [None, -1, 0, 1, 100, 1e300, "1", "nan", "x" * 99, [], {}, True, [{"name": "a", "value": "1"}]]

    def some(depth: int = 0) -> Any:
        if depth < 2 and chance.random() < 0.6:
            keys = ["trainerStatus", "metrics", "progressPercentage", "name", "value", "step", "rank", "done"]
            return {key: some(depth + 1) for key in chance.sample(keys, chance.randrange(5))}
        return chance.choice(values)

    for index in range(3000):
        body = json.dumps({"trainerStatus": some()}).encode()
        assert world.store.ingest(worker(index % 50), body).status in (200, 400, 429)
        world.clock.advance(1)
    world.ranks()
