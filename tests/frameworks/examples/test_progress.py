"""A straggler, a killed rank and a hang with PyTorch and TensorFlow under `allranks run`: root cause, stacks, lost
time."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from frameworks.examples.test_recovery import workers_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(500)]

ARGS = "--epochs=24, --checkpoint-every=4, --work=0.05, --slow-rank=1, --hang-rank=1"
ARGS += ", --hang-attempt=1, --hang-at-step=110"
TOLERANCE = 2.5
"""Seconds between a line in the log and the report of the rank."""


@pytest.mark.parametrize(
    ("job", "ours", "theirs"),
    [("penguins-pytorch-watched", "begin_step", "train_step"), ("penguins-tensorflow", "begin_step", "quick_execute")],
)
def test_a_job_that_is_slow_killed_and_stuck_is_accounted_for(run_job, job, ours, theirs) -> None:
    watched = ("--set", f"args=[{ARGS}]", "--set", "hang.timeoutSeconds=10", "--set", "restart.backoffSeconds=1")
    run = run_job(f"examples/{job}.yaml", *watched)
    run.wait_for(r"epoch 4/24")
    saved = time.monotonic()
    run.wait_for(r"epoch 7/24")  # about 70 % of the way to the next checkpoint
    [victim] = workers_of(run, "worker-0")
    os.kill(victim, signal.SIGKILL)
    thrown_away = time.monotonic() - saved
    run.wait_for(r"Restarting: attempt 1")
    run.wait_for(r"stacks, asked for because the job makes no progress")
    run.wait_for(r"rank 1 \(worker-1 on \S+\) did not complete step 110, and the other ranks wait for it")
    run.finish()

    assert run.code == 0, run.output
    assert re.search(r"rank 1 \(worker-1 on \S+\) takes \d\.\d times as long as its peers", run.output)
    status, logs = run.status, run.logs()
    killed, stuck, completed = status["history"]
    assert [past["reason"] for past in status["history"]] == ["Error", "Hang", "Completed"]
    assert killed["failure"]["signal"] == 9
    assert abs(killed["lostSeconds"] - thrown_away) < TOLERANCE, (killed, thrown_away)
    assert (stuck["failure"]["rank"], stuck["failure"]["pod"]) == (1, f"{job}-worker-1-1")
    assert (stuck["counted"], stuck["lastStep"]) == (True, 109)
    assert stuck["lostSeconds"] >= 10 + 10  # until the timeout, and until its stacks were dumped
    assert f"in {ours}" in logs[f"{job}-worker-1-1"]
    assert f"in {theirs}" in logs[f"{job}-worker-0-1"]
    assert completed["firstStep"] == 13 * 8 + 1, "after SIGTERM rank 0 saved its last whole epoch"
    times = status["times"]
    parts = [times[kind] for kind in ("queued", "starting", "productive", "lost")]
    assert abs(sum(parts) - sum(times["byReason"].values()) - sum(parts[:3])) < 0.01
    assert times["byReason"]["Error"] >= killed["lostSeconds"]
    assert status["goodput"] == pytest.approx(parts[2] / sum(parts[1:]), abs=0.001)
    assert status["progress"]["summary"].endswith("100%")
