"""PyTorch's wiring: the variables of torch.distributed and of torchrun."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.core.facts.model import Platform
from allranks.core.objects import commands, pods
from support.builders import CLUSTER, job, table

GPUS = {"limits": {"nvidia.com/gpu": 8}}
DEFAULTS = {
    "PYTHONUNBUFFERED",
    "PYTHONHASHSEED",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
}


def environments(platform: Platform = CLUSTER, **fields: Any) -> list[dict[str, str]]:
    """The variables of each pod in order, without those that every framework sets."""
    made = pods.objects(job(**fields), Status(), platform)
    return [
        {v["name"]: v["value"] for v in pod["spec"]["containers"][0]["env"] if not v["name"].startswith("ALLRANKS_")}
        for pod in made.pods
    ]


def wiring(found: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if name not in DEFAULTS}


def node(rank: int, nodes: int, processes: int, first: str = "job-master-0-0") -> dict[str, str]:
    torchrun = {
        "MASTER_ADDR": f"{first}.job.team.svc",
        "MASTER_PORT": "29500",
        "NNODES": str(nodes),
        "NODE_RANK": str(rank),
        "NPROC_PER_NODE": str(processes),
    }
    return torchrun | {f"PET_{name}": value for name, value in torchrun.items()}


def process(rank: int, world: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


# Sentence, job, wiring of each pod.
CASES = [
    (
        "with one process in each pod, RANK and WORLD_SIZE are those of processes",
        {"roles": {"master": 1, "worker": 2}},
        [node(rank, 3, 1) | process(rank, 3) for rank in range(3)],
    ),
    (
        "without a master the ranks meet at worker 0",
        {"roles": {"worker": 2}},
        [node(rank, 2, 1, "job-worker-0-0") | process(rank, 2) for rank in range(2)],
    ),
    (
        "a single pod has world size 1",
        {"roles": {"master": 1}},
        [node(0, 1, 1) | process(0, 1)],
    ),
    (
        "with 8 processes in each pod, torchrun sets RANK and WORLD_SIZE",
        {"roles": {"master": 1, "worker": 1}, "pytorch": {"processesPerNode": 8}},
        [node(rank, 2, 8) for rank in range(2)],
    ),
    (
        "auto is one process per GPU of the pod",
        {"roles": {"master": 1, "worker": 1}, "resources": GPUS},
        [node(rank, 2, 8) for rank in range(2)],
    ),
    (
        "GPUs in the template count too",
        {
            "roles": {"master": 1, "worker": 1},
            "template": {"spec": {"containers": [{"name": "trainer", "resources": GPUS}]}},
        },
        [node(rank, 2, 8) for rank in range(2)],
    ),
    (
        "a number overrides the GPUs",
        {"roles": {"master": 1, "worker": 1}, "resources": GPUS, "pytorch": {"processesPerNode": 1}},
        [node(rank, 2, 1) | process(rank, 2) for rank in range(2)],
    ),
    (
        "with different numbers of GPUs in master and workers, torchrun sets RANK and WORLD_SIZE",
        {"roles": {"master": 1, "worker": {"replicas": 1, "resources": GPUS}}},
        [node(0, 2, 1), node(1, 2, 8)],
    ),
]


@table(*CASES)
def test_wiring(case):
    fields, expected = case
    assert [wiring(found) for found in environments(**fields)] == expected


def test_the_port_can_be_set_and_only_rank_0_listens():
    made = pods.objects(job(roles={"master": 1, "worker": 1}, pytorch={"port": 1234}), Status(), CLUSTER)
    ports = [pod["spec"]["containers"][0].get("ports") for pod in made.pods]
    assert ports == [[{"name": "rendezvous", "containerPort": 1234}], None]
    assert {found["MASTER_PORT"] for found in environments(pytorch={"port": 1234})} == {"1234"}


@table(
    ("torchrun kills workers before the pod's grace period is over", {}, "25"),
    ("a longer grace period is used", {"template": {"spec": {"terminationGracePeriodSeconds": 120}}}, "115"),
    ("a very short grace period is used", {"template": {"spec": {"terminationGracePeriodSeconds": 2}}}, "1"),
)
def test_shutdown_timeout(case):
    fields, seconds = case
    assert {found["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] for found in environments(**fields)} == {seconds}


def test_defaults_for_NCCL_are_set_only_where_unset():
    (one, *_) = environments()
    assert one["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    (one, *_) = environments(env=[{"name": "TORCH_NCCL_ASYNC_ERROR_HANDLING", "value": "1"}])
    assert one["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"


@pytest.mark.parametrize(("backend", "variable"), [("Auto", None), ("NCCL", "nccl"), ("Gloo", "gloo")])
def test_the_backend_is_in_a_variable_unless_it_is_auto(backend, variable):
    made = pods.objects(job(pytorch={"backend": backend}), Status(), CLUSTER)
    found = {v["name"]: v["value"] for v in made.pods[0]["spec"]["containers"][0]["env"]}
    assert found.get("ALLRANKS_BACKEND") == variable


def test_an_endpoint_of_the_platform_replaces_the_address_of_rank_0():
    """The rendezvous of a local run uses a free port of the machine."""
    here = Platform(helper_image="", local=True, endpoints={("job-worker-0-0", 29500): ("127.0.0.1", 40001)})
    for found in environments(here):
        assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("127.0.0.1", "40001")
        assert (found["PET_MASTER_ADDR"], found["PET_MASTER_PORT"]) == ("127.0.0.1", "40001")


def test_the_users_command_is_not_changed():
    made = pods.objects(job(command=["torchrun", "train.py"], args=["--epochs=3"]), Status(), CLUSTER)
    for pod in made.pods:
        assert pod["spec"]["containers"][0]["command"] == ["torchrun", "train.py"]
        assert pod["spec"]["containers"][0]["args"] == ["--epochs=3"]
        assert "initContainers" not in pod["spec"], "a user's image needs no helper"


NO_GPUS = ("spec.pytorch.backend", "NCCL needs GPUs, and the ranks of this job have none: use Gloo or Auto", "warning")


@table(
    ("no GPUs", {"pytorch": {"backend": "NCCL"}}, [NO_GPUS]),
    ("GPUs", {"pytorch": {"backend": "NCCL"}, "resources": GPUS}, []),
    ("GPUs of one role", {"pytorch": {"backend": "NCCL"}, "roles": {"worker": {"resources": GPUS}}}, []),
    ("a pool that may have GPUs", {"pytorch": {"backend": "NCCL"}, "pool": "h200"}, []),
    ("Gloo", {"pytorch": {"backend": "Gloo"}}, []),
)
def test_nccl_without_gpus_is_a_warning(case):
    fields, expected = case
    assert commands.remarks(job(**fields)) == expected


def test_nccl_is_a_warning_if_the_pool_has_no_gpus():
    fields = {"pytorch": {"backend": "NCCL"}, "pool": "cpu"}
    assert commands.remarks(job(**fields), replace(CLUSTER, pools={"cpu": PoolSpec()})) == [NO_GPUS]
