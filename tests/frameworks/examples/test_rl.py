"""examples/rl with real processes: trainers, rollout engines and a reward service, each kind lost once."""

from __future__ import annotations

import os
import re
import signal

import pytest

from frameworks.examples.conftest import Run, processes_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def kill(run: Run, role: str, index: int) -> None:
    place = (f"ALLRANKS_ROLE={role}", f"ALLRANKS_INDEX={index}")
    pids = [pid for pid, command in processes_of(run.marker, *place).items() if f"{role}.py" in command]
    os.kill(max(pids), signal.SIGKILL)


def test_a_policy_trains_although_an_engine_the_reward_service_and_a_trainer_are_lost(run_job) -> None:
    run = run_job(
        "examples/rl/job.yaml", "--set", "restart.backoffSeconds=0", "--set", "roles.trainer.args=[--pause=0.02]"
    )
    run.wait_for(r"step 20/300 reward")
    kill(run, "rollout", 0)
    run.wait_for(r"step 60/300 reward")
    kill(run, "reward", 0)
    run.wait_for(r"step 100/300 reward")
    assert "resumed from" not in run.output, "trainers do not restart with a service"
    kill(run, "trainer", 1)
    run.finish()

    assert run.code == 0, run.output
    assert run.status["attempt"] == 1
    assert run.status["history"][0]["failure"]["role"] == "trainer"
    assert run.status["restarts"]["counted"] == 3
    assert "rollout-0 does not answer" in run.output
    assert re.search(r"resumed from step (100|120)\b", run.output), run.output
    [reward] = re.findall(r"trained: reward (\S+)", run.output)
    assert float(reward) > 0.9
