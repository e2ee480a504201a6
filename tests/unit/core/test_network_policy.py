"""The NetworkPolicy of a job: which ports of its pods others can reach."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.api.status import Status
from allranks.core.facts.model import Platform
from allranks.core.objects import pods
from allranks.frameworks import FRAMEWORKS
from support.builders import CLUSTER, job

OWN = {"matchLabels": {"allranks.dev/job-name": "job"}}
WITH = Platform(helper_image="helper:1", network_policies=True)
JOBS: dict[str, dict[str, Any]] = {
    "pytorch": {"roles": {"master": 1, "worker": 2}},
    "tensorflow": {"roles": {"worker": 2, "ps": 1}},
    "horovod": {"roles": {"worker": 2}},
    "jax": {"roles": {"worker": 2}},
    "ray": {"roles": {"head": 1, "worker": 2}},
    "mpi": {"roles": {"worker": 2, "launcher": 1}},
    "spmd": {"roles": {"worker": 2, "data": 1}},
    "horovod with mpi": {"horovod": {"controller": "MPI"}, "roles": {"worker": 2, "launcher": 1}},
    "horovod, elastic": {"roles": {"worker": 2}, "elastic": {"minReplicas": 1, "maxReplicas": 4}},
}


def policy(name: str, **fields: Any) -> dict[str, Any]:
    made = pods.objects(job(name.split(maxsplit=1)[0].strip(","), **JOBS[name], **fields), Status(), WITH)
    [found] = [companion for companion in made.companions if companion["kind"] == "NetworkPolicy"]
    for pod in made.pods:
        assert OWN["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert found["spec"]["podSelector"] == OWN
    assert found["spec"]["policyTypes"] == ["Ingress"], "egress is not restricted"
    return found["spec"]


def container(name: str, *ports: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ports": list(ports)}


def test_every_framework_is_covered():
    assert {name.split()[0].strip(",") for name in JOBS} == set(FRAMEWORKS)


@pytest.mark.parametrize("name", JOBS)
def test_only_the_jobs_own_pods_reach_the_ports_that_connect_ranks(name):
    assert policy(name)["ingress"] == [{"from": [{"podSelector": OWN}]}]


def test_ports_that_the_users_containers_declare_stay_open():
    board = container("tensorboard", {"containerPort": 6006}, {"containerPort": 6007, "protocol": "UDP"})
    proxy = container("proxy", {"containerPort": 15020, "name": "metrics"})
    template = {
        "spec": {"containers": [container("trainer", {"containerPort": 9000}), board], "initContainers": [proxy]}
    }
    _, opened = policy("pytorch", template=template)["ingress"]
    assert opened == {
        "ports": [
            {"port": 6006, "protocol": "TCP"},
            {"port": 9000, "protocol": "TCP"},
            {"port": 15020, "protocol": "TCP"},
            {"port": 6007, "protocol": "UDP"},
        ]
    }


def test_a_declared_port_that_connects_ranks_is_not_opened():
    template = {"spec": {"containers": [container("trainer", {"containerPort": 29400})]}}
    assert len(policy("horovod", template=template)["ingress"]) == 1


def test_there_is_none_unless_the_operator_is_set_to_create_them():
    made = pods.objects(job(), Status(), CLUSTER)
    assert [companion["kind"] for companion in made.companions] == ["Service"]
