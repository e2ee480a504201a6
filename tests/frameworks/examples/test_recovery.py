"""Killed ranks and failing programs under `allranks run` with real frameworks."""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap
from pathlib import Path

import pytest

from frameworks.examples.conftest import Run, processes_of

pytestmark = pytest.mark.slow

LONG = ("--set", "args=[--epochs=12, --pause=0.5]")


def workers_of(run: Run, pod: str) -> dict[int, str]:
    """pid -> command of the training processes (not torchrun itself) of a pod such as `worker-0`."""
    role, index = pod.rsplit("-", 1)
    found = processes_of(run.marker, f"ALLRANKS_ROLE={role}", f"ALLRANKS_INDEX={index}")
    return {pid: command for pid, command in found.items() if "torchrun" not in command and "train/" in command}


@pytest.mark.parametrize(("pod", "rank"), [("worker-1", 1), pytest.param("worker-0", 0, marks=pytest.mark.nightly)])
def test_kill_9_of_one_rank_restarts_the_group_from_its_checkpoint(pod, rank, run_job, tmp_path: Path) -> None:
    claim = tmp_path / "claim"
    run = run_job("examples/penguins-pytorch.yaml", *LONG, "--volume", f"penguins-pytorch={claim}")
    run.wait_for(r"epoch 4/12")
    victims = workers_of(run, pod)
    assert len(victims) == 1, victims
    os.kill(next(iter(victims)), signal.SIGKILL)
    resumed = run.wait_for(r"resumed from epoch (\d+) .*\(loss (\d\.\d+)\)")
    run.finish()

    assert run.code == 0, run.output
    status = run.status
    assert status["phase"] == "Succeeded"
    assert status["restarts"]["counted"] == 1
    assert status["attempt"] == 1
    failure = status["lastFailure"]
    assert (failure["rank"], failure["signal"], failure["exitCode"]) == (rank, 9, 137)
    assert f"{failure['role']}-{failure['index']}" == pod
    # The training resumes at the checkpoint: each epoch appears once, with the loss of the checkpoint.
    lines = [json.loads(line) for line in (claim / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 13))
    epoch, loss = int(resumed[1]), float(resumed[2])
    assert epoch >= 4
    assert lines[epoch - 1]["loss"] == pytest.approx(loss, abs=1e-3)
    assert lines[epoch]["loss"] < lines[0]["loss"]


@pytest.mark.nightly
def test_a_program_that_raises_at_once_twice_fails_with_the_last_lines_of_its_exception(
    run_job, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text('raise ValueError("the learning rate must be positive")\n')
    manifest = job(tmp_path, "pytorch", ["torchrun", "broken.py"], "master: {}\n    worker: {replicas: 1}")
    run = run_job(manifest, "--restarts", "3", cwd=tmp_path).finish()

    assert run.code == 1, run.output
    status = run.status
    assert status["phase"] == "Failed"
    assert status["restarts"]["counted"] == 1, "failed the second time, not after all restarts"
    assert status["lastFailure"]["exitCode"] == 1
    assert "ValueError: the learning rate must be positive" in status["lastFailure"]["message"]
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert "the same way twice" in failed["message"]
    assert "ValueError: the learning rate must be positive" in run.output[-3000:]


@pytest.mark.nightly
def test_ctrl_c_ends_every_rank_and_exits_130(run_job) -> None:
    run = run_job("examples/penguins-pytorch.yaml", *LONG)
    run.wait_for(r"epoch 2/12")
    run.process.send_signal(signal.SIGINT)
    run.finish(timeout=300)

    assert run.code == 130, run.output
    assert processes_of(run.marker) == {}


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["torchrun", "plain python"])
def test_third_party_ddp_scripts_run_unchanged(how, run_job, tmp_path: Path) -> None:
    """A script for torchrun, or for RANK and WORLD_SIZE, without any code for allranks."""
    (tmp_path / "ddp.py").write_text(
        textwrap.dedent("""
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        x = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(x)
        # One write: the two ranks of a torchrun share its output.
        print(f"rank {dist.get_rank()} of {dist.get_world_size()} sum {x.item()}\\n", end="", flush=True)
        dist.destroy_process_group()
        """)
    )
    command = ["torchrun", "ddp.py"] if how == "torchrun" else ["python3", "ddp.py"]
    roles = "worker: {replicas: 2}"
    processes = "\n  pytorch: {processesPerNode: 2}" if how == "torchrun" else ""
    run = run_job(job(tmp_path, "pytorch", command, roles + processes), cwd=tmp_path).finish()

    assert run.code == 0, run.output
    size = 4 if how == "torchrun" else 2
    sums = {float(x) for x in re.findall(rf"rank \d of {size} sum (\S+)", run.output)}
    assert sums == {float(size * (size + 1) / 2)}, run.output


@pytest.mark.nightly
def test_two_slots_per_horovod_worker_are_four_ranks(run_job, tmp_path: Path) -> None:
    (tmp_path / "hvd.py").write_text(
        "import horovod.torch as hvd, torch; hvd.init()\n"
        "x = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum)\n"
        "print(f'rank {hvd.rank()} of {hvd.size()} local {hvd.local_rank()} of {hvd.local_size()} sum {x.item()}')\n"
    )
    roles = "worker: {replicas: 2}\n  horovod: {slotsPerWorker: 2}"
    run = run_job(job(tmp_path, "horovod", ["python3", "hvd.py"], roles), cwd=tmp_path).finish()

    assert run.code == 0, run.output
    found = sorted(re.findall(r"rank (\d) of 4 local (\d) of 2 sum 6\.0", run.output))
    assert found == [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")], run.output


def job(directory: Path, framework: str, command: list[str], roles: str) -> Path:
    """A manifest for a program of the test."""
    manifest = directory / "job.yaml"
    manifest.write_text(
        f"apiVersion: allranks.dev/v1alpha1\nkind: DistributedTraining\nmetadata: {{name: mine}}\n"
        f"spec:\n  framework: {framework}\n  image: mine\n  command: {json.dumps(command)}\n  roles:\n    {roles}\n"
    )
    return manifest
