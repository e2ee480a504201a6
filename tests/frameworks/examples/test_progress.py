"""A slow rank, a killed rank and a hang with PyTorch, TensorFlow and JAX under `allranks run`: root cause, stacks, lost
time."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import pytest

from frameworks.examples.test_recovery import workers_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]

ARGS = "--checkpoint-every=4, --work=0.05, --slow-rank=1, --hang-rank=1, --hang-attempt=1, --hang-at-step=110"
HANG = 40
"""Seconds of `hang.timeoutSeconds`. TensorFlow's processes can take 20 s from the last step to their end: rank 0 waits
until a process that ended before it counts as lost."""
LATENCY = 2.5
"""Seconds from a report of a rank to its arrival, by which its checkpoint can count as younger."""


@dataclass(frozen=True)
class Watched:
    """A job, and where the two ranks are in the hang."""

    manifest: str
    ours: str
    theirs: str
    """Functions in the stacks of the rank that hangs, and of the one that waits for it."""
    steps: int = 8
    """Of an epoch."""
    epochs: int = 24
    more: str = ""


@pytest.mark.parametrize(
    "job",
    [
        Watched("penguins-pytorch-watched", "begin_step", "train_step"),
        Watched("penguins-tensorflow", "begin_step", "quick_execute"),
        Watched("digits-jax", "begin_step", "__call__", steps=20, epochs=12, more=", --patience=100"),
    ],
    ids=lambda job: job.manifest,
)
def test_a_job_that_is_slow_killed_and_stuck_is_accounted_for(run_job, job: Watched) -> None:
    arguments = f"args=[--epochs={job.epochs}, {ARGS}{job.more}]"
    watched = ("--set", arguments, "--set", f"hang.timeoutSeconds={HANG}", "--set", "restart.backoffSeconds=1")
    run = run_job(f"examples/{job.manifest}.yaml", *watched)
    run.wait_for(rf"epoch 2/{job.epochs}")
    earlier = time.monotonic()  # two epochs before the checkpoint
    run.wait_for(rf"epoch 4/{job.epochs}")
    saved = time.monotonic()
    run.wait_for(rf"epoch 5/{job.epochs}")  # three epochs before the next checkpoint
    [victim] = workers_of(run, "worker-0")
    os.kill(victim, signal.SIGKILL)
    killed_at = time.monotonic()
    run.wait_for(r"Restarting: attempt 1")
    restarted = time.monotonic()
    run.wait_for(r"stacks, asked for because the job makes no progress")
    run.wait_for(r"rank 1 \(worker-1 on \S+\) did not complete step 110.*; rank 0 waits for it")
    run.finish()

    assert run.code == 0, run.output
    status, logs = run.status, run.logs()
    killed, stuck, completed = status["history"]
    assert [past["reason"] for past in status["history"]] == ["Error", "Hang", "Completed"]
    assert killed["failure"]["signal"] == 9
    assert killed_at - saved - LATENCY < killed["lostSeconds"] < restarted - earlier, killed
    assert (stuck["failure"]["rank"], stuck["failure"]["pod"]) == (1, f"{job.manifest}-worker-1-1")
    assert (stuck["counted"], stuck["lastStep"]) == (True, 109)
    assert stuck["lostSeconds"] >= HANG + 10  # until the timeout, and until its stacks were dumped
    assert f"in {job.ours}" in logs[f"{job.manifest}-worker-1-1"]
    assert f"in {job.theirs}" in logs[f"{job.manifest}-worker-0-1"]
    # After SIGTERM rank 0 waits 5 s for the others, and saves its last whole epoch if no new attempt has begun by then.
    replaced = "attempt 1 was replaced by attempt 2" in logs[f"{job.manifest}-worker-0-1"]
    saved_step = stuck["firstStep"] - 1 if replaced else 109 // job.steps * job.steps
    assert completed["firstStep"] == saved_step + 1
    times = status["times"]
    parts = [times[kind] for kind in ("queued", "starting", "productive", "lost")]
    assert abs(sum(parts) - sum(times["byReason"].values()) - sum(parts[:3])) < 0.01
    assert times["byReason"]["Error"] >= killed["lostSeconds"]
    assert status["goodput"] == pytest.approx(parts[2] / sum(parts[1:]), abs=0.001)
    assert status["progress"]["summary"].endswith("100%")
