"""Faults that need real pods: killed processes, out of memory, eviction."""

from __future__ import annotations

import json
from typing import Any

from .jobs import KILL_RANK, SECOND_TIME, Team, penguins, training


def test_a_rank_killed_an_exit_138_and_too_much_memory_cost_the_work_since_the_checkpoint(team: Team) -> None:
    job = team.start(penguins("faults", epochs=16))

    def failure(attempt: int) -> tuple[Any, ...]:
        team.attempt(job, attempt)
        status = team.status(job)
        found = status["lastFailure"]
        assert status["restarts"] == {"counted": attempt, "disruptions": 0, "byReason": status["restarts"]["byReason"]}
        return found["attempt"], found["role"], found["index"], found["reason"], found.get("exitCode")

    team.says(f"{job}-master-0-0", "epoch 2/16")
    team.run(f"{job}-worker-0-0", "python3", "-c", KILL_RANK)
    assert failure(1)[:4] == (0, "worker", 0, "Error")
    assert team.status(job)["lastFailure"]["signal"] == 9

    assert "resumed" in team.says(f"{job}-master-0-1", "epoch 4/16")
    team.signal(f"{job}-master-0-1", "USR1")
    assert failure(2) == (1, "master", 0, "Error", 138)

    assert "resumed" in team.says(f"{job}-master-0-2", "epoch 6/16")
    team.signal(f"{job}-worker-0-2", "USR2")
    assert failure(3) == (2, "worker", 0, "OOMKilled", 137)

    status = team.completes(job)
    assert (status["attempt"], status["restarts"]["counted"]) == (3, 3)
    log = team.kubectl("logs", f"{job}-master-0-3")
    assert "resumed" in log
    assert "epoch 1/16" not in log
    assert "test accuracy" in log


def test_a_pod_evicted_by_the_api_does_not_count(team: Team) -> None:
    gpu = {"limits": {"nvidia.com/gpu": 1}}
    job = team.start(training("evicted", "sh", "-c", SECOND_TIME, resources=gpu))
    pod = f"{job}-master-0-0"
    team.says(pod, "ready")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": team.namespace}}
    path = f"/api/v1/namespaces/{team.namespace}/pods/{pod}/eviction"
    team.cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    status = team.completes(job)
    assert status["lastFailure"]["reason"] == "Evicted"
    assert (status["restarts"]["counted"], status["restarts"]["disruptions"]) == (0, 1)
