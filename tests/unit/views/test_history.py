"""The record of metrics, read back: from the files of a run, from a status, as a table."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from allranks.local.run_directories import StoredRun
from allranks.views.report.history import MetricValue, as_csv, of_job, of_run
from support import reported
from support.reported import at, stamp


def line(attempt: int, second: float, step: int, **metrics: float | None) -> dict[str, Any]:
    return {"time": at(second).isoformat(), "attempt": attempt, "step": step, "metrics": metrics}


def stored(path: Path, *lines: dict[str, Any], status: dict[str, Any] | None = None) -> list[MetricValue]:
    (path / "job.json").write_text(json.dumps(reported.job(status=status)))
    (path / "progress.jsonl").write_text("".join(json.dumps(item) + "\n" for item in lines))
    return of_run(StoredRun(path))


def test_steps_that_an_attempt_repeats_are_marked_for_each_metric(tmp_path: Path) -> None:
    values = stored(
        tmp_path,
        *(line(0, step, step, loss=9.0 - step) for step in range(1, 5)),
        line(0, 4, 3, accuracy=0.5),
        *(line(1, 10 + step, step, loss=8.0 - step) for step in range(3, 6)),
        line(1, 19, 4, accuracy=0.6),
        line(2, 30, 5, loss=1.0, accuracy=0.7),
    )
    losses = [(value.attempt, value.step, value.repeated) for value in values if value.metric == "loss"]
    first = [(0, step, False) for step in range(1, 5)]
    assert losses == [*first, (1, 3, True), (1, 4, True), (1, 5, False), (2, 5, True)]
    accuracies = [(value.step, value.value, value.repeated) for value in values if value.metric == "accuracy"]
    assert accuracies == [(3, 0.5, False), (4, 0.6, False), (5, 0.7, False)]


def test_each_value_has_its_time_and_a_value_that_is_not_finite_is_nan(tmp_path: Path) -> None:
    values = stored(tmp_path, line(0, 1, 7, loss=None), line(0, 2.5, 7, accuracy=0.5), line(0, 3, 8, loss=2.0))
    assert [(value.metric, value.step, value.time) for value in values] == [
        ("loss", 7, at(1)),
        ("accuracy", 7, at(2.5)),
        ("loss", 8, at(3)),
    ]
    assert math.isnan(values[0].value)


def test_the_end_of_a_run_that_states_a_value_in_four_digits_again_keeps_the_value_and_its_time(tmp_path: Path) -> None:
    values = stored(tmp_path, line(0, 1, 7, loss=0.1234567), line(0, 9, 7, loss=0.1235))
    assert [(value.value, value.time) for value in values] == [(0.1234567, at(1))]
    values = stored(tmp_path, line(0, 1, 7, loss=0.1234567), line(0, 9, 7, loss=0.5))
    assert [(value.value, value.time) for value in values] == [(0.5, at(9))]


def status(attempt: int, **progress: Any) -> dict[str, Any]:
    record = {"firstStep": 10, "first": 0.5, "lastStep": 60, "lowestStep": 60, "lowest": 0.1, "highestStep": 20}
    curve = [
        {"time": stamp(10 + step), "attempt": attempt, "step": step, "value": value}
        for step, value in ((1, 3.0), (60, 1.0))
    ]
    return {
        "phase": "Running",
        "attempt": attempt,
        "progress": {
            "step": 60,
            "metrics": {"loss": 1.0, "accuracy": 0.1},
            "records": {
                "accuracy": record | {"highest": 0.99},
                "loss": {
                    "firstStep": 1,
                    "first": 3.0,
                    "lastStep": 60,
                    "lowestStep": 60,
                    "lowest": 1.0,
                    "notFiniteStep": 40,
                },
            },
            "curveMetric": "loss",
            "curve": curve,
            **progress,
        },
    }


def test_a_status_has_its_curve_and_the_recorded_values_without_their_times() -> None:
    values = of_job(reported.job(status=status(0)))
    assert [(value.metric, value.step, value.value, value.time) for value in values if value.value == value.value] == [
        ("loss", 1, 3.0, at(11)),
        ("loss", 60, 1.0, at(70)),
        ("accuracy", 10, 0.5, None),
        ("accuracy", 20, 0.99, None),
        ("accuracy", 60, 0.1, None),
    ]
    assert [(value.metric, value.step) for value in values if math.isnan(value.value)] == [("loss", 40)]
    assert {(value.attempt, value.repeated) for value in values} == {(0, False)}


def test_which_attempt_reported_a_recorded_value_is_unknown_after_a_restart() -> None:
    values = of_job(reported.job(status=status(2)))
    assert {(value.attempt, value.repeated) for value in values if value.time is None} == {(None, None)}
    assert {(value.attempt, value.repeated) for value in values if value.time is not None} == {(2, False)}


def test_a_run_without_lines_has_what_its_status_has(tmp_path: Path) -> None:
    assert [value.metric for value in stored(tmp_path, status=status(0))][:2] == ["loss", "loss"]
    assert of_job(reported.job()) == []


def test_a_table_has_a_row_for_each_value_and_no_control_sequences() -> None:
    complete = MetricValue(3, at(1.5), 0, "a,\x1b]0;x\x07b", 0.1, True)
    rows = list(csv.reader(as_csv([complete, MetricValue(4, None, None, "loss", math.nan, None)]).splitlines()))
    assert rows[0] == ["step", "time", "attempt", "metric", "value", "repeated"]
    assert rows[1] == ["3", "2026-03-04T10:00:01.500000Z", "0", "a,b", "0.1", "true"]
    assert rows[2] == ["4", "", "", "loss", "nan", ""]


@pytest.mark.parametrize("damage", ["[]", '{"time": "x"}', '{"time'])
def test_damaged_lines_are_left_out(tmp_path: Path, damage: str) -> None:
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "progress.jsonl").write_text(f"{json.dumps(line(0, 1, 2, loss=3.0))}\n{damage}")
    assert [value.step for value in of_run(StoredRun(tmp_path))] == [2]
