"""The day that docs/platform/queues.md shows happens as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import tools
from support.controlplane import ControlPlane
from support.kueue import Kueue
from support.scheduler import Scheduler

from .team_day import TeamDay


@pytest.fixture(scope="session")
def frameworks() -> Path:
    return tools.built("frameworks.sh", "pytorch")


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_preempted_job_loses_no_step_and_a_gang_that_does_not_fit_holds_no_node(
    control_plane: ControlPlane, kueue: Kueue, native_scheduler: Scheduler, frameworks: Path, tmp_path: Path
) -> None:
    day = TeamDay(control_plane, tmp_path, frameworks)
    with day.begun():
        assert any("second" in line and "Queued" in line for line in day.waits()[2].lines)
        assert any("usual was preempted" in line and "by urgent" in line for line in day.preempts()[1].lines)
        day.continues()
        status = day.job("usual")["status"]
        [first] = status["history"][:1]
        assert (first["reason"], first["requeued"]) == ("Preempted", True)
        steps = [(point["attempt"], point["step"]) for point in status["progress"]["curve"]]
        last, resumed = max(step for attempt, step in steps if not attempt), status["progress"]["firstStep"]
        assert resumed <= last + 1 + first["lostSeconds"] * 60, "it continues at the checkpoint of the preemption"
        assert first["lostSeconds"] < 2, "the time between the checkpoint and the end of the pods"
        assert "CheckpointRequested" in str(day.events("usual"))
        day.gang_waits()
