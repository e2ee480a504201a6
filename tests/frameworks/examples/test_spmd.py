"""SPMD jobs with real processes under `allranks run`: a service that is lost, and several ranks in one pod."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from frameworks.examples.conftest import processes_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_a_lost_service_restarts_alone_and_the_ranks_continue(run_job) -> None:
    run = run_job("examples/penguins-spmd.yaml", "--", "--pause=1")
    run.wait_for(r"epoch 2/20 ")
    [service] = processes_of(run.marker, "ALLRANKS_ROLE=data")
    os.kill(service, signal.SIGKILL)
    run.finish()
    assert run.code == 0, run.output
    assert run.status["attempt"] == 0
    assert run.status["replicaRestarts"]["data-0"]["count"] == 1
    assert len(run.accuracies()) == 2
    assert "resumed from" not in run.output


PROGRAM = """
import os, sys, time

rank = int(os.environ["RANK"])
sys.stdout.write(f"rank {rank} of {os.environ['WORLD_SIZE']}, {os.environ['LOCAL_RANK']} here\\n")
sys.stdout.flush()
if rank == 3:
    raise ValueError("no data in rank 3")
time.sleep(600)
"""


def test_a_rank_that_fails_in_a_pod_with_several_is_the_root_cause(run_job, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    spec = {
        "framework": "spmd",
        "image": "none",
        "command": ["python3", str(tmp_path / "program.py")],
        "spmd": {"ranks": ["trainer"], "processesPerPod": 2},
        "roles": {"trainer": {"replicas": 2}},
        "restart": {"maxRestarts": 0},
    }
    job = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "metadata": {"name": "several"}}
    (tmp_path / "job.yaml").write_text(json.dumps(job | {"spec": spec}))
    run = run_job(tmp_path / "job.yaml").finish()
    assert run.code == 1, run.output
    failure = run.status["lastFailure"]
    assert (failure["role"], failure["index"], failure["rank"], failure["exitCode"]) == ("trainer", 1, 3, 1)
    assert "ValueError: no data in rank 3" in failure["message"]
