"""JAX itself under `allranks run`: programs that pass no arguments to `jax.distributed.initialize()`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import jax

jax.distributed.initialize()
from jax.experimental import multihost_utils

while True:
    total = multihost_utils.process_allgather(jax.numpy.array([jax.process_index() + 1])).sum()
    {ending}
"""


def manifest(folder: Path, ending: str) -> Path:
    (folder / "program.py").write_text(PROGRAM.format(ending=ending))
    spec = {
        "framework": "jax",
        "image": "none",
        "command": ["python3", str(folder / "program.py")],
        "roles": {"worker": {"replicas": 3}},
        "restart": {"maxRestarts": 0},
    }
    job = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "metadata": {"name": "jax"}}
    (folder / "job.yaml").write_text(json.dumps(job | {"spec": spec}))
    return folder / "job.yaml"


def test_initialize_needs_no_arguments(run_job, tmp_path: Path):
    ending = "print('rank', jax.process_index(), 'of', jax.process_count(), 'total', total)\n    break"
    run = run_job(manifest(tmp_path, ending)).finish()
    assert run.code == 0, run.output
    assert {line for line in run.output.splitlines() if " total " in line} == {
        f"worker-{rank} | rank {rank} of 3 total 6" for rank in range(3)
    }


@pytest.mark.nightly
def test_a_process_that_raises_ends_at_once_and_is_the_root_cause(run_job, tmp_path: Path):
    run = run_job(manifest(tmp_path, "assert jax.process_index() != 1, 'no data in process 1'")).finish()
    assert run.code == 1, run.output
    failure = run.status["lastFailure"]
    assert (failure["role"], failure["index"], failure["rank"], failure["exitCode"]) == ("worker", 1, 1, 1)
    assert "AssertionError: no data in process 1" in failure["message"]
