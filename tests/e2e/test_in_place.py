"""Ranks that restart in their pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .jobs import KILL_RANK, Manifest, Team, example, training

STEPS = """
import os, signal, subprocess, sys, time
from allranks.report import report
attempt = int(os.environ["ALLRANKS_ATTEMPT"])
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"], start_new_session=True)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))
print(f"attempt {attempt} begins", flush=True)
for step in range(100 if attempt < 2 else 5):
    report(step=step + 100 * attempt)
    time.sleep(0.2)
"""
"""Leaves a process in a session of its own. Exits with 3 at SIGUSR1. The third attempt completes."""


def pods_of(team: Team, job: str) -> dict[str, str]:
    """Return name -> UID of the job's pods."""
    listed = json.loads(team.kubectl("get", "pods", "-l", f"allranks.dev/job-name={job}", "-o", "json"))
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in listed["items"]}


def stepping(name: str, **spec: Any) -> list[Manifest]:
    restart = {"backoffSeconds": 0, **spec.pop("restart", {})}
    roles = {"master": {}, "worker": {"replicas": 2}}
    return training(name, "python3", "-c", STEPS, progress={}, restart=restart, roles=roles, **spec)


SIGNAL = """
import os, signal
for name in filter(str.isdigit, os.listdir("/proc")):
    words = open(f"/proc/{name}/cmdline").read().split("\\0")
    if words[1:2] == ["-c"] and "allranks.report import" in words[2] and "listdir" not in words[2]:
        os.kill(int(name), signal.SIGUSR1)
"""


def fail_a_rank(team: Team, pod: str) -> None:
    """Make the program of a pod exit with 3. kubectl exec may fail because the container ends."""
    team.cluster.ask("-n", team.namespace, "exec", pod, "-c", "trainer", "--", "python3", "-c", SIGNAL)


def test_all_ranks_restart_in_their_pods_and_nothing_of_the_old_attempt_is_left(team: Team) -> None:
    job = team.start(stepping("in-place"))
    team.attempt(job, 0)
    before = pods_of(team, job)
    for attempt in (0, 1):
        team.says(f"{job}-worker-1-0", f"attempt {attempt} begins")
        fail_a_rank(team, f"{job}-worker-1-0")
        team.attempt(job, attempt + 1)
        assert pods_of(team, job) == before
    status = team.completes(job)
    assert [(past["how"], past["failure"]["exitCode"]) for past in status["history"][:2]] == [("InPlace", 3)] * 2
    assert status["restarts"]["counted"] == 2
    assert status["podsOfAttempt"] == 0


def test_with_never_a_failed_rank_costs_new_pods(team: Team) -> None:
    job = team.start(stepping("new-pods", restart={"inPlace": "Never"}))
    team.attempt(job, 0)
    before = pods_of(team, job)
    team.says(f"{job}-worker-1-0", "attempt 0 begins")
    fail_a_rank(team, f"{job}-worker-1-0")
    team.attempt(job, 1)
    assert {name.removesuffix("-0") + "-1" for name in before} <= pods_of(team, job).keys()
    assert "how" not in team.status(job)["history"][0]


@pytest.mark.nightly
def test_a_killed_rank_of_the_example_resumes_in_its_pods(team: Team) -> None:
    job = team.start(example("penguins-pytorch-watched"))
    team.attempt(job, 0)
    before = pods_of(team, job)
    team.says(f"{job}-worker-0-0", "epoch 2/")
    team.run(f"{job}-worker-1-0", "python3", "-c", KILL_RANK)
    team.attempt(job, 1)
    assert pods_of(team, job) == before
    log = team.says(f"{job}-worker-0-0", "resumed")
    assert "attempt 1 begins in this pod" in log
    status = team.completes(job)
    assert status["lastFailure"]["signal"] == 9
