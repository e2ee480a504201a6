"""MPI jobs with real processes under `allranks run`: the user's own mpirun, and a rank that hangs."""

from __future__ import annotations

import shutil

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun on this machine (Debian: openmpi-bin)"),
]
EXAMPLE = "examples/penguins-mpi.yaml"


def test_a_command_that_begins_with_mpirun_runs_unchanged(run_job) -> None:
    command = "[mpirun, -np, '3', python3, -m, mpi4py, train/penguins_mpi.py]"
    run = run_job(EXAMPLE, "--set", f"command={command}").finish()
    assert run.code == 0, run.output
    assert len(run.accuracies()) == 3


def test_a_rank_that_hangs_restarts_all_ranks_from_the_checkpoint(run_job) -> None:
    options = ("--hang-rank=1", "--hang-at-step=20", "--pause=0.1")
    run = run_job(EXAMPLE, "--set", "hang.timeoutSeconds=60", "--", *options).finish()
    assert run.code == 0, run.output
    assert run.status["attempt"] == 1
    [attempt, _] = run.status["history"]
    assert attempt["failure"]["reason"] == "Hang"
    assert "resumed from epoch" in run.output
    assert len(run.accuracies()) == 2
