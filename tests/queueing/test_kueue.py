"""The Kueue of these tests is a real one: it admits, rejects, converts, answers who waits, and can be away."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from support.api import Api, ApiError, Manifest
from support.controlplane import ControlPlane
from support.kueue import WORKLOAD, Kueue, add_queue, remove_queue
from support.live import eventually

pytestmark = pytest.mark.nightly

V1BETA2 = "kueue.x-k8s.io/v1beta2"
VISIBILITY = "/apis/visibility.kueue.x-k8s.io/v1beta2"


@pytest.fixture
def queue(control_plane: ControlPlane, kueue: Kueue, namespace: str) -> Iterator[str]:
    """A LocalQueue in the namespace, with a quota of 4 CPUs. They have the same name."""
    add_queue(control_plane.api, namespace, namespace, {"cpu": "4"})
    yield namespace
    remove_queue(control_plane.api, namespace, namespace)


def test_a_workload_within_the_quota_is_admitted_and_one_beyond_it_waits(
    control_plane: ControlPlane, queue: str
) -> None:
    api = control_plane.api
    created = api.create(workload("first", queue, count=3), queue)
    assert created["spec"]["podSets"][0]["name"] == "main", "its webhook sets the default name"
    eventually(lambda: condition(api, queue, "first", "Admitted") == "True")
    api.create(workload("second", queue, count=2), queue)
    eventually(lambda: condition(api, queue, "second", "QuotaReserved") == "False")

    [assignment] = api.get(WORKLOAD, queue, "first")["status"]["admission"]["podSetAssignments"]
    assert (assignment["count"], assignment["flavors"]) == (3, {"cpu": queue})
    api.patch(WORKLOAD, queue, "first", {"status": finished(api, queue, "first")}, "status")
    eventually(lambda: condition(api, queue, "second", "Admitted") == "True", what="its quota is free again")


def test_who_waits_and_at_which_position(control_plane: ControlPlane, queue: str) -> None:
    api = control_plane.api
    for name, count in (("running", 4), ("next-1", 1), ("next-2", 1)):
        api.create(workload(name, queue, count), queue)
        eventually(functools.partial(condition, api, queue, name, "QuotaReserved"))

    def positions() -> dict[int, str]:
        found = api.request("GET", f"{VISIBILITY}/namespaces/{queue}/localqueues/{queue}/pendingworkloads")
        return {item["positionInLocalQueue"]: item["metadata"]["name"] for item in found["items"]}

    eventually(lambda: condition(api, queue, "running", "Admitted") == "True")
    # The API server learns within seconds that the visibility server is there. The order of two Workloads of the same
    # second is not defined.
    eventually(lambda: served(api) and len(positions()) == 2)
    assert (set(positions()), set(positions().values())) == ({0, 1}, {"next-1", "next-2"})


def test_it_serves_both_versions(control_plane: ControlPlane, queue: str) -> None:
    api = control_plane.api
    api.create(workload("demo", queue, count=1), queue)
    older = api.get("Workload.v1beta1.kueue.x-k8s.io", queue, "demo")
    assert (older["apiVersion"], older["spec"]["podSets"][0]["count"]) == ("kueue.x-k8s.io/v1beta1", 1)


def test_while_it_is_away_workloads_cannot_be_created(control_plane: ControlPlane, kueue: Kueue, queue: str) -> None:
    api = control_plane.api
    kueue.stop()
    try:
        with pytest.raises(ApiError, match="webhook"):
            api.create(workload("demo", queue, count=1), queue)
    finally:
        kueue.start()
    api.create(workload("demo", queue, count=1), queue)
    eventually(lambda: condition(api, queue, "demo", "Admitted") == "True")


def workload(name: str, queue: str, count: int) -> Manifest:
    """Pods with 1 CPU each."""
    container = {"name": "rank", "image": "example.org/x:1", "resources": {"requests": {"cpu": "1"}}}
    pods = {"count": count, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    return {
        "apiVersion": V1BETA2,
        "kind": "Workload",
        "metadata": {"name": name},
        # Without a priority Kueue 0.15 panics when it is asked who waits.
        "spec": {"queueName": queue, "podSets": [pods], "priority": 0},
    }


def condition(api: Api, namespace: str, name: str, type_: str) -> str:
    found = api.get(WORKLOAD, namespace, name).get("status", {}).get("conditions", ())
    return next((str(one["status"]) for one in found if one["type"] == type_), "")


def finished(api: Api, namespace: str, name: str) -> Manifest:
    """The status with the condition by which an integration ends its Workload."""
    status: Manifest = api.get(WORKLOAD, namespace, name)["status"]
    end = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "done"}
    status["conditions"].append({**end, "lastTransitionTime": "2026-01-01T00:00:00Z"})
    return status


def served(api: Api) -> bool:
    found = api.request("GET", "/apis/apiregistration.k8s.io/v1/apiservices/v1beta2.visibility.kueue.x-k8s.io")
    conditions = found.get("status", {}).get("conditions", ())
    return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)
