"""What people see of the checkpoints of a job."""

from __future__ import annotations

from typing import Any

from allranks.api.status import CheckpointSchedule, Status
from allranks.views.format.checkpoints import schedule
from support.builders import table


@table(
    ("no everySeconds: nothing", None, {}, ""),
    (
        "Auto, and nobody asks",
        "Auto",
        None,
        "by everySeconds, as soon as a rank reports steps and calls checkpoint_due()",
    ),
    ("a number, and nobody asks", 90, None, "every 90s, as soon as a rank reports steps and calls checkpoint_due()"),
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
