"""Commands of other systems as jobs with real ranks: all ranks are in one group, or the job does not start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.builders import manifest, table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HOROVOD = """
import horovod.torch as hvd
import torch

hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()}: the sum is {total.item():.0f}\\n", end="", flush=True)
"""
TORCH = """
import os
import torch
import torch.distributed as dist

dist.init_process_group(os.environ.get("ALLRANKS_BACKEND"))
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: the sum is {total.item():.0f}\\n", end="", flush=True)
dist.destroy_process_group()
"""
WITH_LAUNCHER = {"horovod": {"controller": "MPI"}, "roles": {"launcher": 1, "worker": 2}}
HOROVODRUN = ["horovodrun", "-np", "2", "-H", "localhost:2", "python3", "program.py"]
MPIRUN = ["mpirun", "-np", "2", "-H", "server1:1,server2:1", "-x", "A=1", "python3", "program.py"]
TWO_IN_ONE = {"roles": {"worker": {"replicas": 1}}}


def written(directory: Path, program: str, framework: str, **fields: Any) -> Path:
    (directory / "program.py").write_text(program)
    file = directory / "job.yaml"
    file.write_text(json.dumps(manifest(framework, **{"restart": {"maxRestarts": 0}, **fields})))
    return file


@table(
    ("horovodrun", HOROVOD, "horovod", {"command": HOROVODRUN}),
    (
        "horovodrun for the slots of one worker",
        HOROVOD,
        "horovod",
        {"command": HOROVODRUN, "horovod": {"slotsPerWorker": 2}, **TWO_IN_ONE},
    ),
    ("horovodrun in a script", HOROVOD, "horovod", {"command": ["bash", "-c", f"cd . && exec {' '.join(HOROVODRUN)}"]}),
    ("mpirun without MPI", HOROVOD, "horovod", {"command": MPIRUN}),
    ("mpirun with a launcher", HOROVOD, "horovod", {"command": MPIRUN, **WITH_LAUNCHER}),
    ("horovodrun with a launcher", HOROVOD, "horovod", {"command": HOROVODRUN, **WITH_LAUNCHER}),
    ("mpirun of MPI", HOROVOD, "mpi", {"command": MPIRUN, "roles": WITH_LAUNCHER["roles"]}),
    (
        "the nodes of torchrun",
        TORCH,
        "pytorch",
        {
            "command": [
                *("python3", "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank=0"),
                *("--master_addr", "server1", "--master_port=1234", "program.py"),
            ]
        },
    ),
    (
        "torchrun in a script",
        TORCH,
        "pytorch",
        {"command": ["sh", "-c", "torchrun --nnodes=2 --node-rank=$RANK --master-addr=server1 program.py"]},
    ),
    (
        "torchrun alone in one pod",
        TORCH,
        "pytorch",
        {"command": ["torchrun", "--standalone", "--nproc-per-node=2", "program.py"], **TWO_IN_ONE},
    ),
    (
        "the backend of the job",
        TORCH,
        "pytorch",
        {"command": ["torchrun", "program.py"], "pytorch": {"backend": "Gloo"}},
    ),
)
@pytest.mark.nightly
def test_the_ranks_of_another_systems_command_are_one_group(case, run_job, tmp_path: Path):
    program, framework, fields = case
    run = run_job(written(tmp_path, program, framework, **fields), cwd=tmp_path).finish()
    assert run.code == 0, run.output
    assert run.status["phase"] == "Succeeded"
    for rank in (0, 1):
        assert run.output.count(f"rank {rank} of 2: the sum is 3\n") == 1


@pytest.mark.nightly
def test_accelerate_with_the_addresses_of_other_machines_is_one_group(libraries, run_job, tmp_path: Path):
    command = ["accelerate", "launch", "--cpu", "--num_machines", "2", "--num_processes=2", "--machine_rank", "0"]
    command += ["--main_process_ip", "server1", "--main_process_port=1234", "program.py"]
    run = run_job(written(tmp_path, TORCH, "pytorch", command=command), cwd=tmp_path).finish()
    assert run.code == 0, run.output
    for rank in (0, 1):
        assert run.output.count(f"rank {rank} of 2: the sum is 3\n") == 1


def test_the_command_of_horovodrun_never_trains_four_models_that_succeed(run_job, tmp_path: Path):
    command = ["horovodrun", "-np", "4", "-H", "localhost:4", "python3", "program.py"]
    run = run_job(written(tmp_path, HOROVOD, "horovod", command=command), cwd=tmp_path).finish()
    assert run.code == 2
    assert "horovodrun starts 4 ranks, and this job has 2" in run.output
    assert "write command: [python3, program.py]" in run.output
    assert "rank 0 of" not in run.output


@pytest.mark.nightly
def test_nccl_without_gpus_is_noted_before_the_program_fails(run_job, tmp_path: Path):
    fields = {"command": ["python3", "program.py"], "pytorch": {"backend": "NCCL"}}
    run = run_job(written(tmp_path, TORCH, "pytorch", **fields), cwd=tmp_path).finish()
    assert run.code != 0
    assert run.output.index("NCCL needs GPUs, and the ranks of this job have none") < run.output.index("worker-0 |")
