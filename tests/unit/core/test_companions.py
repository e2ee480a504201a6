"""What is left of past attempts: a job that restarts for months must not fill the cluster's storage."""

from __future__ import annotations

import random
from typing import Any

import pytest

from allranks.api.job import KIND
from allranks.api.status import Status
from allranks.core.manifests import companions
from allranks.core.reconcile import reconcile
from support.builders import job, manifest, table
from support.simulator import Cluster

KEY = (KIND, "team", "job")
MPI = manifest("horovod", {"worker": 2, "launcher": 1}, horovod={"controller": "MPI"})
TENSORFLOW = manifest("tensorflow", {"chief": 1, "worker": 1, "ps": 1})


def cluster() -> Cluster:
    return Cluster(reconcile=reconcile)


def config_maps(of: Cluster) -> list[str]:
    return [found["metadata"]["name"] for found in of.store.all("ConfigMap")]


def next_attempt(of: Cluster) -> None:
    """A new attempt that counts against nothing."""
    for suspend in (True, False):
        of.patch_job(KEY, {"suspend": suspend})
        of.advance(120)


@pytest.mark.parametrize(("document", "kills"), [(MPI, False), (TENSORFLOW, True)], ids=["mpi", "tensorflow, killed"])
def test_after_200_restarts_two_config_maps_are_left(document: dict[str, Any], kills: bool):
    world, dice = cluster(), random.Random(18)
    world.create_job(document)
    world.advance(60)
    for _ in range(200):
        if kills:
            world.kill_operator_after(dice.randint(1, 12))
        next_attempt(world)
        assert len(config_maps(world)) <= 3
    next_attempt(world)
    assert world.store.get(KEY)["status"]["attempt"] == 201
    assert config_maps(world) == ["job-files-200", "job-files-201"]
    assert len(world.pods()) == 3


def test_a_config_map_of_somebody_else_stays():
    world = cluster()
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "job-files-1", "namespace": "team"}}
    world.create_job(MPI)
    world.advance(60)
    created = world.store.create(foreign)
    for _ in range(4):
        next_attempt(world)
    assert world.store.get(("ConfigMap", "team", "job-files-1")) == created


@table(
    ("the first attempt has nothing to delete", 0, ()),
    ("pods of the previous attempt may still terminate", 1, ()),
    ("the one before is deleted", 2, ("job-files-0",)),
    ("an operator that was killed may have left more", 9, tuple(f"job-files-{n}" for n in (3, 4, 5, 6, 7))),
)
def test_superseded_config_maps(case):
    attempt, expected = case
    assert companions.superseded_config_maps(job(), Status(attempt=attempt)) == expected
