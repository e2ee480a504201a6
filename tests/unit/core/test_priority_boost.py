"""The boost follows the work that a preemption would lose."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from allranks.api.scheduling import Preemption
from allranks.api.status import ProgressStatus, Status
from allranks.core.objects.queueing.sync import Boost, priority_boost

START = datetime(2026, 1, 1, tzinfo=UTC)
PREEMPTION = Preemption(min_run_seconds=300, boost_until_checkpoint=50)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def boost(seconds: float, progress: ProgressStatus | None = None, **status: Any) -> Boost:
    """The boost at this time after all pods run, for `minRunSeconds: 300` and `boostUntilCheckpoint: 50`."""
    running = {"phase": "Running", "running_time": START, "progress": progress, **status}
    return priority_boost(PREEMPTION, Status(**running), at(seconds))


@pytest.mark.parametrize(
    ("case", "found", "expected"),
    [
        ("a new attempt is protected", boost(10), Boost(50, at(300))),
        ("a program that reports nothing, after that", boost(300), Boost(0)),
        ("a job that does not run", boost(10, phase="Restarting"), Boost(0)),
        ("a job that starts", boost(10, running_time=None), Boost(0)),
        ("steps without a checkpoint", boost(400, ProgressStatus(step=9, first_step_time=at(20))), Boost(50)),
        (
            "just after a checkpoint",
            boost(400, ProgressStatus(step=9, first_step_time=at(20), checkpoint_step=8, checkpoint_time=at(390))),
            Boost(0, at(450)),
        ),
        (
            "a minute after it",
            boost(450, ProgressStatus(step=9, first_step_time=at(20), checkpoint_step=8, checkpoint_time=at(390))),
            Boost(50),
        ),
        (
            "no step since the checkpoint",
            boost(900, ProgressStatus(step=8, first_step_time=at(20), checkpoint_step=8, checkpoint_time=at(390))),
            Boost(0),
        ),
        (
            "just after a checkpoint of a new attempt",
            boost(100, ProgressStatus(step=9, first_step_time=at(20), checkpoint_step=8, checkpoint_time=at(90))),
            Boost(50, at(300)),
        ),
        (
            "ranks that store a checkpoint on request lose nothing",
            boost(900, ProgressStatus(step=9, first_step_time=at(20), saves_on_request=True)),
            Boost(0),
        ),
    ],
)
def test_the_boost_lasts_for_the_shortest_run_and_while_much_work_is_in_no_checkpoint(
    case: str, found: Boost, expected: Boost
) -> None:
    assert found == expected, case
