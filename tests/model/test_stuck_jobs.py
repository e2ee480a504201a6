"""Jobs that can never be placed, beside one that only waits for its nodes: three hours in the simulated cluster."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.api.job import KIND
from allranks.core.facts.model import Manifest
from support.builders import manifest
from support.simulator import Cluster, Node, Workload, admission
from support.simulator.store import Forbidden

GPU = "nvidia.com/gpu"
HONEST = (KIND, "team", "honest")


def gpus(count: int, name: str = GPU) -> dict[str, Any]:
    return {"resources": {"limits": {name: count}}}


def two_pods(worker: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A job whose master needs 10m CPU, and is placed at once."""
    roles = {
        "master": {"replicas": 1, "resources": {"requests": {"cpu": "10m"}}},
        "worker": {"replicas": 1, **worker},
    }
    return manifest(roles=roles, name="stuck", **spec)


STUCK: dict[str, dict[str, Any]] = {
    "one pod can never be placed": two_pods(gpus(1, "example.com/unknown")),
    "a typo in the GPU count": two_pods(gpus(80)),
    "it never gives up": two_pods(gpus(80), scheduling={"gangTimeoutSeconds": 0}),
    "a high priority": two_pods(gpus(80)),
    "a quota": two_pods(gpus(80)),
    "its nodes scale from zero": two_pods(gpus(1, "amd.com/gpu")),
}


def three_hours(case: str, namespace: str = "", explains: bool = True) -> Manifest:
    """The status of the honest job: 8 pods, whose last node comes after ten minutes. The other job is older, if any."""

    def admit(before: Manifest | None, after: Manifest) -> None:
        admission.admit(before, after)
        name = after["metadata"]["name"]
        if after["kind"] != "Pod" or not name.startswith("stuck-"):
            return
        if case == "a high priority":
            after["spec"]["priority"] = 1000
        if case == "a quota" and name.startswith("stuck-worker"):
            amounts = f"requested: requests.{GPU}=80, used: requests.{GPU}=0, limited: requests.{GPU}=8"
            raise Forbidden(f'pods "{name}" is forbidden: exceeded quota: team, {amounts}')

    nodes = [Node(f"node-{number}", {"pods": 110, GPU: 1}) for number in range(7)]
    cluster = Cluster(nodes=nodes, workload=Workload(explains_preemption=explains), admit=admit)
    if namespace:
        other = STUCK[case]
        cluster.create_job({**other, "metadata": {**other["metadata"], "namespace": namespace}})
        cluster.advance(60)
    cluster.create_job(manifest(roles={"worker": {"replicas": 8, **gpus(1)}}, name="honest"))
    cluster.advance(600)
    cluster.kubelets.add(Node("node-7", {"pods": 110, GPU: 1}))
    cluster.advance(3 * 3600)
    if namespace:
        other_job = cluster.job((KIND, namespace, "stuck"))
        assert other_job
        assert other_job["status"]["phase"] == "Pending"
    honest = cluster.job(HONEST)
    assert honest
    status: Manifest = honest["status"]
    assert status["phase"] == "Running"
    return status


@pytest.mark.parametrize("namespace", ["team", "other"])
@pytest.mark.parametrize("case", STUCK)
def test_a_stuck_job_restarts_no_other_job(case: str, namespace: str) -> None:
    assert three_hours(case, namespace)["attempt"] == 0


@pytest.mark.parametrize("case", STUCK)
def test_nor_does_it_for_ever_if_the_scheduler_does_not_say_that_it_is_stuck(case: str) -> None:
    assert three_hours(case, "team", explains=False)["attempt"] <= 2
    assert three_hours(case, "other", explains=False)["attempt"] == 0
