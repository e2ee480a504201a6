"""What people see of the checkpoints of a job."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.api.status import CheckpointSchedule, Rollback, Status, StoredCheckpoint
from allranks.views.format import checkpoints
from allranks.views.format.checkpoints import schedule
from support.builders import NOW, at, table


@table(
    ("no everySeconds: nothing", None, {}, ""),
    (
        "Auto, and no rank asks",
        "Auto",
        None,
        "by everySeconds, as soon as a rank reports steps and calls checkpoint_due()",
    ),
    ("a number, and no rank asks", 90, None, "every 90s, as soon as a rank reports steps and calls checkpoint_due()"),
    (
        "Auto before a save is measured",
        "Auto",
        {"interval_seconds": 600, "fault_seconds": 86400, "step": 10},
        "every 10m until the duration of a save is measured",
    ),
    (
        "Auto with a step that all ranks have received",
        "Auto",
        {"interval_seconds": 749, "save_seconds": 10, "fault_seconds": 28800, "step": 4120, "agreed": True},
        "every 12m, because a save takes 10.0s and a failure is expected every 8h; next after step 4120",
    ),
    (
        "a number",
        90,
        {"interval_seconds": 90, "save_seconds": 10, "step": 7, "agreed": True},
        "every 90s; next after step 7",
    ),
)
def test_describe_says_how_often_checkpoints_are_due_and_why(case: tuple[Any, dict[str, Any] | None, str]) -> None:
    every, recorded, text = case
    status = Status(checkpoint_schedule=CheckpointSchedule(**recorded) if recorded is not None else None)
    assert schedule({"checkpoint": {"claim": "a", "everySeconds": every}}, status) == text


def stored(step: int, complete: bool | None = True, **fields: Any) -> StoredCheckpoint:
    return StoredCheckpoint(step=step, time=at(step), path=f"/c/{step}", complete=complete, **fields)


def lines(*of: StoredCheckpoint, **status: Any) -> list[str]:
    grid = checkpoints.table(Status(checkpoints=list(of), **status), at(100))
    assert grid
    return list(grid.plain())


def test_the_table_marks_the_checkpoint_from_which_the_program_resumes() -> None:
    assert lines(stored(4, bytes=2048), stored(8, bytes=2048, verified=False), stored(12, False, bytes=5)) == [
        "STEP   AGE   COMPLETE   VERIFIED   SIZE      RESUME   PATH",
        "4      96s   yes                   2.0 KiB   yes      /c/4",
        "8      92s   yes        no         2.0 KiB            /c/8",
        "12     88s   no                    5 B                /c/12",
    ]
    assert lines(stored(4, None), stored(8, None)) == [
        "STEP   AGE   RESUME   PATH",
        "4      96s            /c/4",
        "8      92s   yes      /c/8",
    ]


def test_no_checkpoint_is_marked_if_an_older_one_may_be_complete() -> None:
    assert "RESUME" not in lines(*(stored(step, None) for step in range(5)))[0]
    assert "RESUME" in lines(*(stored(step, True if step == 2 else None) for step in range(5)))[0]


@pytest.mark.parametrize(("running", "marked"), [(None, "4"), (NOW, "8")])
def test_after_a_rollback_the_older_one_is_marked_until_the_attempt_runs(running: Any, marked: str) -> None:
    back = Rollback(step=4, unreadable_step=6, attempt=1)
    status = Status(checkpoints=[stored(4), stored(8)], rollback=back, attempt=2, running_time=running)
    table = checkpoints.table(status, at(100))
    assert table
    assert [row[0] for row in table.rows if "yes" in row[3:]] == [marked]
    assert checkpoints.rollback(status) == (
        "Attempt 2 resumes from step 4: attempt 1 could not read the one of step 6."
    )
    assert checkpoints.rollback(Status()) == ""
