"""What is left of past attempts: a job that restarts for months must not fill the cluster's storage."""

from __future__ import annotations

import random
from typing import Any

import pytest

from allranks.api.job import KIND
from allranks.api.status import Status
from allranks.core.facts.model import Platform
from allranks.core.objects import companions, pods
from allranks.core.reconcile import reconcile
from support.builders import CLUSTER, job, manifest, table
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


@pytest.mark.nightly
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


PS = {"framework": "tensorflow", "roles": {"chief": 1, "worker": 1, "ps": 1}}
ELASTIC = {"framework": "horovod", "roles": {"worker": 2}, "elastic": {"minReplicas": 1, "maxReplicas": 4}}
SIDECAR = {"name": "logs", "image": "example.org/logs:1"}
PROBE = {"exec": {"command": ["true"]}}


def containers(*others: Any, **trainer: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", **trainer}, *others]}}


@table(
    ("ranks that restart together look for each other before they are ready", {}, True),
    ("a parameter server is replaced alone", PS, False),
    ("elastic workers are replaced alone", ELASTIC, False),
    ("every replica is replaced alone", {"restart": {"scope": "Pod"}}, False),
    ("an init container ends", PS | {"template": {"spec": {"initContainers": [SIDECAR]}}}, False),
    ("a sidecar may fail", PS | {"template": containers(SIDECAR)}, True),
    ("of one role", PS | {"roles": {"chief": 1, "ps": {"replicas": 1, "template": containers(SIDECAR)}}}, True),
    (
        "a native sidecar may fail",
        PS | {"template": {"spec": {"initContainers": [{**SIDECAR, "restartPolicy": "Always"}]}}},
        True,
    ),
    ("a program may be ready late", PS | {"template": containers(readinessProbe=PROBE)}, True),
    ("a program may start late", PS | {"template": containers(startupProbe=PROBE)}, True),
    ("another controller decides", PS | {"template": {"spec": {"readinessGates": [{"conditionType": "x"}]}}}, True),
)
def test_names_resolve_before_pods_are_ready_unless_a_pod_that_is_replaced_alone_is_ready_with_its_program(case):
    fields, published = case
    [service] = [
        each for each in pods.objects(job(**fields), Status(), CLUSTER).companions if each["kind"] == "Service"
    ]
    assert service["spec"].get("publishNotReadyAddresses", False) == published


def test_a_disruption_budget_blocks_the_eviction_of_every_rank():
    of = job(roles={"master": 1, "worker": 2})
    made = pods.objects(of, Status(), Platform(helper_image="helper:1", disruption_budgets=True))
    [budget] = [each for each in made.companions if each["kind"] == "PodDisruptionBudget"]
    assert budget["metadata"]["ownerReferences"] == made.pods[0]["metadata"]["ownerReferences"]
    assert budget["spec"]["minAvailable"] > 10_000, "more than the pods of any job"
    selector = budget["spec"]["selector"]
    assert all(selector["matchLabels"].items() <= pod["metadata"]["labels"].items() for pod in made.pods)
    [others] = selector["matchExpressions"]
    assert others == {"key": "allranks.dev/role", "operator": "NotIn", "values": ["placeholder"]}
    assert "PodDisruptionBudget" not in [each["kind"] for each in pods.objects(of, Status(), CLUSTER).companions]
