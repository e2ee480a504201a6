"""Converted jobs of other operators train with real ranks: programs that were written for these operators run
unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.commands import allranks

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

# Ranks of a pod share its output, so each line is one write.
PYTORCH = """
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
sys.stdout.write(f"rank {dist.get_rank()}: the sum is {int(total)}\\n")
dist.destroy_process_group()
"""
TENSORFLOW = """
import sys

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
index = strategy.cluster_resolver.task_id
sys.stdout.write(f"rank {index}: the sum is {strategy.num_replicas_in_sync}\\n")
"""
JAX = """
import os
import sys

import jax

address = f"{os.environ['COORDINATOR_ADDRESS']}:{os.environ['COORDINATOR_PORT']}"
number, index = int(os.environ["NUM_PROCESSES"]), int(os.environ["PROCESS_ID"])
jax.distributed.initialize(address, number, index)
total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(jax.numpy.ones(1))
sys.stdout.write(f"rank {index}: the sum is {int(total[0])}\\n")
"""
HOROVOD = """
import sys

import horovod.torch as hvd
import torch

hvd.init()
total = hvd.allreduce(torch.ones(1), op=hvd.Sum)
sys.stdout.write(f"rank {hvd.rank()}: the sum is {int(total)}\\n")
"""


def role(container: str, replicas: int, *command: str) -> dict[str, Any]:
    own = {"name": container, "image": "me/train:1", "command": list(command)}
    return {"replicas": replicas, "template": {"spec": {"containers": [own]}}}


def torchrun(replicas: int) -> dict[str, Any]:
    return role("pytorch", replicas, "torchrun", "--rdzv_backend=c10d", "train.py")


# Kind, its fields, the program, the number of ranks.
JOBS: list[tuple[str, dict[str, Any], str, int]] = [
    (
        "PyTorchJob",
        {"nprocPerNode": "2", "pytorchReplicaSpecs": {"Master": torchrun(1), "Worker": torchrun(1)}},
        PYTORCH,
        4,
    ),
    ("TFJob", {"tfReplicaSpecs": {"Worker": role("tensorflow", 2, "python3", "train.py")}}, TENSORFLOW, 2),
    ("JAXJob", {"jaxReplicaSpecs": {"Worker": role("jax", 2, "python3", "train.py")}}, JAX, 2),
    (
        "MPIJob",
        {
            "mpiReplicaSpecs": {
                "Launcher": role("mpi", 1, "horovodrun", "-np", "2", "python3", "train.py"),
                "Worker": role("mpi", 2, "/usr/sbin/sshd", "-De"),
            }
        },
        HOROVOD,
        2,
    ),
]


@pytest.mark.parametrize(("kind", "spec", "program", "ranks"), JOBS, ids=[job[0] for job in JOBS])
def test_a_converted_job_trains_with_real_ranks(kind, spec, program, ranks, frameworks, tmp_path):
    job = {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": "converted"}, "spec": spec}
    Path(tmp_path, "job.yaml").write_text(yaml.safe_dump(job))
    Path(tmp_path, "train.py").write_text(program)
    done = allranks("convert", "job.yaml", "--check", folder=tmp_path, programs=frameworks / "bin", seconds=550)
    assert done.returncode == 0, done.stderr
    for rank in range(ranks):
        assert f"rank {rank}: the sum is {ranks}\n" in done.stderr
