"""Tests that real ranks make before their program, with torch on CPUs and gloo, and faults of one rank.

A fault is in a `sitecustomize.py` of the test: it changes torch in the pod of rank 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.builders import manifest, table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = "import sys; print('the program runs, torch imported:', 'torch' in sys.modules)"
FAULT = """
import os, sys

if os.environ.get("ALLRANKS_INDEX") == "1" and "--test" in sys.orig_argv:
    import torch, torch.distributed as dist
{lines}
"""
WRONG_PRODUCT = """
    product = torch.matmul
    def wrong(left, right):
        out = product(left, right)
        out[17, 4] += 1
        return out
    torch.matmul = wrong
"""
WRONG_SUM = """
    class Group(dist.ProcessGroupGloo):
        def allreduce(self, tensors):
            work = super().allreduce(tensors)
            work.wait()
            tensors[0][4711] += 1
            return work
    dist.ProcessGroupGloo = Group
"""
NO_ANSWER = """
    class Group(dist.ProcessGroupGloo):
        def allreduce(self, tensors):
            raise RuntimeError("no route to the other rank")
    dist.ProcessGroupGloo = Group
"""


@pytest.fixture
def run_tested(run_job, tmp_path: Path):
    """Runs a job whose pods are tested, with lines that change torch in the pod of rank 1."""

    def run(lines: str = "", ranks: int = 3, **preflight: Any):
        (tmp_path / "sitecustomize.py").write_text(FAULT.format(lines=lines or "    pass"))
        env = [{"name": "PYTHONPATH", "value": str(tmp_path)}]
        command = ["python3", "-c", PROGRAM]
        of = manifest(roles={"worker": ranks}, command=command, env=env, preflight={"timeoutSeconds": 240} | preflight)
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps(of))
        return run_job(path).finish()

    return run


def test_the_program_runs_after_the_tests_of_all_ranks(run_tested):
    run = run_tested(gpu=True, network=True, disk=True)
    assert run.code == 0, run.output
    for rank in range(3):
        log = run.logs()[f"job-worker-{rank}-0"]
        line, program, *_ = log.splitlines()
        assert line.startswith("allranks: preflight in "), log
        assert "disk passed (64 MiB" in line
        assert "gpu passed (torch sees no GPU: the CPU)" in line
        assert "network passed (2 of 2 other ranks)" in line
        assert program == "the program runs, torch imported: False"


@table(
    ("a matrix product is wrong", WRONG_PRODUCT, {"gpu": True}, "gpu: cpu: a matrix product is wrong"),
    ("a sum is wrong", WRONG_SUM, {"network": True}, "network: all-reduce failed with "),
    ("others get no answer", NO_ANSWER, {"network": True, "timeoutSeconds": 120}, "network: all-reduce failed with "),
)
def test_the_rank_with_the_fault_is_named_and_the_program_does_not_run(case, run_tested):
    lines, tests, words = case
    run = run_tested(lines, **tests)
    assert run.code == 1, run.output
    failure = run.status["lastFailure"]
    assert {name: failure[name] for name in ("index", "rank", "reason", "because", "verdict")} == {
        "index": 1,
        "rank": 1,
        "reason": "PreflightFailed",
        "because": "PreflightFailed",
        "verdict": "Node",
    }
    assert failure["message"].startswith(words)
    assert run.status["restarts"]["counted"] == 0
    assert "the program runs" not in run.logs()["job-worker-1-0"]


def test_of_two_ranks_none_is_named_and_the_program_runs(run_tested):
    run = run_tested(WRONG_SUM, ranks=2, network=True)
    assert run.code == 0, run.output
    assert "network undecided (no node is suspected, but 1 of 1 exchanges failed: the sum is wrong)" in run.output
