"""The operator with gang schedulers: real ones for PodGroups of Kubernetes and for Coscheduling, and for Volcano the
schema of its PodGroups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allranks.api.job import KIND
from support import live
from support.api import Api, Manifest
from support.controlplane import ControlPlane, install
from support.live import eventually
from support.scheduler import COSCHEDULING_NAME, COSCHEDULING_POD_GROUP, POD_GROUP, Scheduler, add_node

TIMING = replace(live.TIMING, optional_apis=0.5)
VOLCANO_POD_GROUP = "PodGroup.v1beta1.scheduling.volcano.sh"
VOLCANO = Path(__file__).parent / "volcano-podgroups.yaml"
PODS = 4


@pytest.fixture
def operator(control_plane: ControlPlane, namespace: str) -> Iterator[None]:
    settings = {"gangs": True, "coscheduling_scheduler": COSCHEDULING_NAME}
    with live.operator(live.connection(control_plane), namespace, timing=TIMING, **settings):
        yield


@pytest.fixture
def two_nodes(control_plane: ControlPlane, namespace: str) -> Iterator[None]:
    """Two nodes with four GPUs each, in two racks."""
    for rack in ("a", "b"):
        labels = {"tests": namespace, "rack": rack}
        add_node(control_plane.api, f"{namespace}-{rack}", labels, cpu="64", memory="64Gi", **{"nvidia.com_gpu": "4"})
    yield
    control_plane.api.request("DELETE", f"/api/v1/nodes?labelSelector=tests%3D{namespace}")


def job(namespace: str, name: str, gang: str = "Native", **scheduling: Any) -> Manifest:
    """Four pods with a GPU each, for the nodes of this test."""
    return live.job(
        name,
        roles={"worker": {"replicas": PODS}},
        resources={"limits": {"nvidia.com/gpu": 1}},
        template={"spec": {"nodeSelector": {"tests": namespace}}},
        scheduling={"gang": gang, **scheduling},
    )


def status_of(api: Api, namespace: str, name: str) -> Manifest:
    found: Manifest = api.get(KIND, namespace, name).get("status", {})
    return found


def condition(api: Api, namespace: str, name: str, kind: str = "GangScheduling") -> Manifest:
    found = status_of(api, namespace, name).get("conditions", ())
    return next((each for each in found if each["type"] == kind), {})


def pods_of(api: Api, namespace: str, name: str) -> list[Manifest]:
    return [each for each in api.list("Pod", namespace) if each["metadata"]["labels"]["allranks.dev/job-name"] == name]


def bound(api: Api, namespace: str, *names: str) -> list[int]:
    """The numbers of pods of these jobs that have a node."""
    return [sum(bool(each["spec"].get("nodeName")) for each in pods_of(api, namespace, name)) for name in names]


def three_jobs_on_two_nodes(api: Api, namespace: str, gang: str, log: Callable[[], str]) -> None:
    names = ("one", "two", "three")
    for name in names:
        api.create(job(namespace, name, gang, gangTimeoutSeconds=10), namespace)
    eventually(lambda: sorted(bound(api, namespace, *names)) == [0, PODS, PODS], what=log())
    last = next(name for name in names if bound(api, namespace, name) == [0])
    eventually(lambda: len(pods_of(api, namespace, last)) == PODS)
    assert bound(api, namespace, last) == [0], "it holds no node"
    first = next(name for name in names if name != last)
    api.delete(KIND, namespace, first)
    for each in pods_of(api, namespace, first):
        api.delete("Pod", namespace, each["metadata"]["name"], grace=0)  # its node has no kubelet
    eventually(lambda: bound(api, namespace, last) == [PODS], what=log())


def test_of_three_native_gangs_with_room_for_two_one_waits_whole(
    control_plane: ControlPlane, native_scheduler: Scheduler, namespace: str, two_nodes: None, operator: None
) -> None:
    three_jobs_on_two_nodes(control_plane.api, namespace, "Native", native_scheduler.log)


@pytest.mark.nightly
def test_of_three_gangs_of_coscheduling_with_room_for_two_one_waits_whole(
    control_plane: ControlPlane, coscheduling: Scheduler, namespace: str, two_nodes: None, operator: None
) -> None:
    three_jobs_on_two_nodes(control_plane.api, namespace, "Coscheduling", coscheduling.log)


def test_a_native_gang_that_does_not_fit_says_so_and_starts_when_it_does(
    control_plane: ControlPlane, native_scheduler: Scheduler, namespace: str, operator: None
) -> None:
    api = control_plane.api
    labels = {"tests": namespace}
    add_node(api, f"{namespace}-1", labels, cpu="64", memory="64Gi", **{"nvidia.com_gpu": str(PODS - 1)})
    api.create(job(namespace, "demo", "Auto"), namespace)
    eventually(lambda: condition(api, namespace, "demo").get("reason") == "Unschedulable", what=native_scheduler.log())
    assert "PodGroup demo-0: " in condition(api, namespace, "demo")["message"]
    assert bound(api, namespace, "demo") == [0]
    assert status_of(api, namespace, "demo")["gang"] == {
        "backend": "Native",
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "minCount": PODS,
    }
    add_node(api, f"{namespace}-2", labels, cpu="64", memory="64Gi", **{"nvidia.com_gpu": "1"})
    eventually(lambda: bound(api, namespace, "demo") == [PODS], what=native_scheduler.log())
    eventually(lambda: condition(api, namespace, "demo").get("status") == "True")
    api.request("DELETE", f"/api/v1/nodes?labelSelector=tests%3D{namespace}")


def test_each_attempt_has_a_pod_group_and_a_suspended_job_none(
    control_plane: ControlPlane, namespace: str, operator: None
) -> None:
    api = control_plane.api

    def groups() -> list[str]:
        found = api.list(POD_GROUP, namespace)
        return [each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]]

    def members() -> list[str]:
        return [each["spec"]["schedulingGroup"]["podGroupName"] for each in pods_of(api, namespace, "demo")]

    api.create(job(namespace, "demo"), namespace)
    eventually(lambda: len(pods_of(api, namespace, "demo")) == PODS)
    assert groups() == ["demo-0"]
    api.patch(KIND, namespace, "demo", {"spec": {"roles": {"worker": {"replicas": 2}}}})
    eventually(lambda: members() == ["demo-1", "demo-1"])
    eventually(lambda: groups() == ["demo-1"])
    assert api.get(POD_GROUP, namespace, "demo-1")["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    api.patch(KIND, namespace, "demo", {"spec": {"suspend": True}})
    eventually(lambda: groups() == [])


def test_a_constraint_that_the_api_server_drops_is_reported(
    control_plane: ControlPlane, namespace: str, operator: None
) -> None:
    """It drops it without the feature gate TopologyAwareWorkloadScheduling, and says nothing."""
    api = control_plane.api
    api.create(job(namespace, "demo", topology={"required": "rack"}), namespace)
    eventually(lambda: condition(api, namespace, "demo").get("reason") == "FieldDropped")
    assert "spec.schedulingConstraints of PodGroup demo-0" in condition(api, namespace, "demo")["message"]
    eventually(lambda: "GangNotEnforced" in {each["reason"] for each in api.list("Event", namespace)})


def test_a_job_waits_for_volcano_and_starts_when_it_is_installed(
    control_plane: ControlPlane, namespace: str, operator: None
) -> None:
    api = control_plane.api
    api.create(
        job(
            namespace,
            "demo",
            "Volcano",
            topology={"preferred": "volcano.sh/tier-2"},
            priorityClassName="system-cluster-critical",
        ),
        namespace,
    )
    eventually(lambda: condition(api, namespace, "demo", "Running").get("reason") == "GangBackendNotServed")
    assert "install Volcano" in condition(api, namespace, "demo", "Running")["message"]
    assert pods_of(api, namespace, "demo") == []
    install(api, [VOLCANO])
    eventually(lambda: len(pods_of(api, namespace, "demo")) == PODS)
    # The API server prunes what the schema does not have, and rejects values that it does not allow.
    assert api.get(VOLCANO_POD_GROUP, namespace, "demo-0")["spec"] == {
        "minMember": PODS,
        "minTaskMember": {"worker": PODS},
        "minResources": {"nvidia.com/gpu": str(PODS)},
        "priorityClassName": "system-cluster-critical",
        "queue": "default",
        "networkTopology": {"mode": "soft", "highestTierAllowed": 2},
    }
    for each in pods_of(api, namespace, "demo"):
        assert each["spec"]["schedulerName"] == "volcano"
        assert each["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "demo-0"
    eventually(lambda: condition(api, namespace, "demo").get("reason") == "Volcano")


@pytest.mark.nightly
def test_the_pod_group_of_coscheduling_is_stored_as_it_was_sent(
    control_plane: ControlPlane, coscheduling: Scheduler, namespace: str, operator: None
) -> None:
    api = control_plane.api
    api.create(job(namespace, "demo", "Coscheduling", gangTimeoutSeconds=60), namespace)
    eventually(lambda: len(pods_of(api, namespace, "demo")) == PODS)
    assert api.get(COSCHEDULING_POD_GROUP, namespace, "demo-0")["spec"] == {
        "minMember": PODS,
        "scheduleTimeoutSeconds": 60,
    }
