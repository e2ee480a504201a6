"""The progress of a rank from given numbers: no clock, no thread, no network."""

from __future__ import annotations

import pytest

from allranks.report.meter import Meter
from allranks.report.state import Means, State, advance, message


def reports(*calls: tuple[float, dict]) -> State:
    state = State()
    for now, call in calls:
        unset = dict.fromkeys(("step", "total_steps", "epoch", "samples", "busy")) | {"checkpoint": False}
        state = advance(state, now, **(unset | call))
    return state


def message_of(state: State, now: float, means: Means | None = None) -> dict:
    means = means or Means()
    means.update(state, (0.0, 0))
    return message(state, means, {}, now, None, False)


def test_a_rank_without_reports(monkeypatch):
    for name in ("ALLRANKS_ATTEMPT", "RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert message_of(State(), 10.0) == {
        "attempt": None,
        "rank": None,
        "localRank": 0,
        "step": None,
        "totalSteps": None,
        "epoch": None,
        "metrics": {},
        "samplesPerSecond": None,
        "stepSeconds": None,
        "busySeconds": None,
        "loadSeconds": None,
        "checkpoint": None,
        "savesOnRequest": False,
        "handledRequest": 0,
        "idle": None,
        "waiting": None,
        "done": False,
    }


def test_omitted_values_keep_their_last_value():
    state = reports((1.0, {"step": 3, "total_steps": 9, "epoch": 1}), (2.0, {"samples": 4}))
    assert (state.step, state.total_steps, state.epoch) == (3, 9, 1)


def test_the_first_report_has_no_step_time():
    """Before it the program may have compiled for minutes."""
    found = message_of(reports((100.0, {"step": 1, "samples": 32})), 100.5)
    assert (found["stepSeconds"], found["samplesPerSecond"], found["idle"]) == (None, None, 0.5)


def test_means_cover_steps_that_are_not_reported_one_by_one():
    state = reports(
        (0.0, {"step": 10, "samples": 1}), (4.0, {"step": 30, "samples": 80}), (6.0, {"step": 40, "samples": 40})
    )
    found = message_of(state, 6.0)
    assert (found["stepSeconds"], found["samplesPerSecond"]) == (0.2, 20.0)


def test_means_cover_the_time_since_the_last_message_with_new_steps():
    means = Means()
    state = reports((0.0, {"step": 1}), (1.0, {"step": 2, "busy": 0.5}))
    assert message_of(state, 1.0, means)["stepSeconds"] == 1.0
    assert message_of(state, 3.0, means)["stepSeconds"] == 1.0  # no new step
    state = advance(state, 4.0, 3, None, None, None, False, 2.5)
    found = message_of(state, 4.0, means)
    assert (found["stepSeconds"], found["busySeconds"]) == (3.0, 2.5)


def test_a_step_that_goes_back_is_not_progress_and_takes_no_time():
    """Elastic Horovod returns to its last commit in the same process."""
    state = reports((0.0, {"step": 10}), (1.0, {"step": 11}), (5.0, {"step": 8}), (6.0, {"step": 9}))
    assert (state.step, state.steps, state.step_seconds) == (9, 2, 2.0)
    assert message_of(state, 6.5)["idle"] == 0.5


def test_the_same_step_again_is_not_progress():
    assert message_of(reports((0.0, {"step": 10}), (7.0, {"step": 10})), 8.0)["idle"] == 8.0


def test_a_checkpoint_is_that_of_its_step_and_gets_older():
    state = reports((0.0, {"step": 5}), (1.0, {"checkpoint": True}), (2.0, {"step": 6}))
    assert message_of(state, 3.5)["checkpoint"] == {"step": 5, "ago": 2.5}


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1"}, (3, 1)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, (2, 0)),
        ({"HOROVOD_RANK": "7", "HOROVOD_LOCAL_RANK": "3"}, (7, 3)),
        ({"RANK": "many"}, (None, 0)),
        ({}, (None, 0)),
    ],
)
def test_a_ranks_number_is_the_launchers(monkeypatch, variables, found):
    for name in ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    sent = message_of(State(), 0.0)
    assert (sent["rank"], sent["localRank"]) == found


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("allranks.report.meter.time.perf_counter", lambda: now[0])
    return now


def test_busy_is_from_the_end_of_a_step_to_the_last_gradient(clock):
    meter = Meter()
    meter.step_over()
    for _ in range(2):
        clock[0] += 0.25
        meter.work_done()
        clock[0] += 0.5
        meter.work_done()
        clock[0] += 7.0  # waiting for other ranks
        meter.step_over()
    assert meter.totals == (1.5, 2)


def test_time_in_a_collective_is_not_busy_time(clock):
    meter = Meter()
    meter.step_over()
    with meter.wait:
        clock[0] += 3.0
        with meter.wait:
            clock[0] += 1.0
    clock[0] += 0.5
    meter.work_done()
    with meter.wait:
        clock[0] += 3.0
    meter.step_over()
    assert meter.totals == (0.5, 1)


def test_a_rank_waits_after_its_part_of_a_step_or_inside_a_collective():
    meter = Meter()
    assert meter.waits() is None
    meter.step_over()
    assert meter.waits() is False
    with meter.wait:
        assert meter.waits() is True
    assert meter.waits() is False
    meter.work_done()
    assert meter.waits() is True
    meter.step_over()
    assert meter.waits() is False


def test_an_evaluation_or_a_checkpoint_between_two_steps_belongs_to_neither(clock):
    meter = Meter()
    meter.step_over()
    clock[0] += 60.0
    meter.restart()
    clock[0] += 0.5
    meter.work_done()
    meter.step_over()
    assert meter.totals == (0.5, 1)


def test_steps_that_are_reported_together_have_no_busy_time(clock):
    meter = Meter()
    meter.step_over()
    clock[0] += 5.0
    meter.work_done()
    meter.step_over(10)
    assert meter.totals == (0.0, 0)


def test_the_wait_for_data_is_that_of_the_steps_since_the_last_message():
    means = Means()
    state = advance(State(), 10.0, 1, None, None, None, False, None)
    means.update(state, (0.0, 0), loaded=3.0)  # before the first step
    assert means.load_seconds is None
    state = advance(state, 14.0, 3, None, None, None, False, None)
    means.update(state, (0.0, 0), loaded=4.0)
    assert (means.step_seconds, means.load_seconds) == (2.0, 0.5)
    means.update(state, (0.0, 0), loaded=4.2)
    assert means.load_seconds == 0.5, "no step since"
    assert message_of(state, 15.0, means)["loadSeconds"] == 0.5


def test_loading_passes_items_on_and_counts_only_the_wait_for_them(monkeypatch):
    from allranks import report

    waits: list[float] = []
    clock = iter([0.0, 2.0, 10.0, 13.0, 20.0])
    monkeypatch.setattr(report, "loaded", waits.append)
    monkeypatch.setattr(report.time, "perf_counter", lambda: next(clock))
    assert list(report.loading(["a", "b"])) == ["a", "b"]
    assert waits == [2.0, 3.0]
