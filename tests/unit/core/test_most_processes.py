"""How many processes of a pod may report: as many as its job declares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allranks.api.status import Status
from allranks.core.facts.attempt import UNDECLARED_PROCESSES, most_processes
from allranks.core.objects.pods import ranks_of_one_machine
from support.builders import CLUSTER, job, table

FEW = UNDECLARED_PROCESSES
LOCAL = replace(CLUSTER, local=True)


def gpus(count: int) -> dict[str, Any]:
    return {"resources": {"limits": {"nvidia.com/gpu": count}}}


@table(
    ("a job that declares nothing", job(), {"worker": FEW}),
    ("an option of the framework", job(pytorch={"processesPerNode": 32}), {"worker": 32}),
    ("slots", job("mpi", {"launcher": 1, "worker": 2}, mpi={"slotsPerWorker": 40}), {"launcher": FEW, "worker": 40}),
    ("GPUs", job(**gpus(16)), {"worker": 16}),
    ("CPUs", job(resources={"requests": {"cpu": "48"}}), {"worker": 48}),
    ("torchrun", job(command=["torchrun", "--nproc-per-node=24", "train.py"]), {"worker": 24}),
    ("a variable", job(command=["torchrun", "--nproc-per-node=$(N)", "train.py"]), {"worker": FEW}),
    (
        "a role of its own",
        job(roles={"master": 1, "worker": {"replicas": 1, **gpus(16)}}),
        {"master": FEW, "worker": 16},
    ),
)
def test_the_most_processes_of_a_pod(case: tuple[Any, dict[str, int]]) -> None:
    of, expected = case
    assert most_processes(of, Status(), CLUSTER) == expected


def test_without_its_pool_the_number_is_not_determined() -> None:
    assert most_processes(job(pool="a100"), Status(), CLUSTER) is None


@table(
    ("one per pod", job(roles={"worker": 3}), 3),
    ("torchrun limits the threads of several", job(pytorch={"processesPerNode": 2}), 0),
    ("slots of a launcher", job("mpi", {"launcher": 1, "worker": 2}, mpi={"slotsPerWorker": 4}), 8),
    ("roles without ranks do not count", job("spmd", {"worker": 2, "data": 3}), 2),
    ("the largest size", job("horovod", {"worker": 2}, elastic={"minReplicas": 1, "maxReplicas": 6}), 6),
    ("Ray limits the threads of its tasks", job("ray", {"head": 1, "worker": 2}), 0),
)
def test_how_many_ranks_share_the_cpus_of_one_machine(case: tuple[Any, int]) -> None:
    of, expected = case
    assert ranks_of_one_machine(of, LOCAL) == expected
