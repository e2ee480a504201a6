"""The schedulers of these tests are real ones: they bind all pods of a gang, or none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.api import Api, Manifest
from support.controlplane import ControlPlane
from support.live import eventually
from support.scheduler import COSCHEDULING_NAME, POD_GROUP, POD_GROUP_VERSION, Scheduler, add_node

pytestmark = pytest.mark.nightly
SIZE = 4


@pytest.fixture
def nodes(control_plane: ControlPlane, namespace: str) -> Iterator[list[str]]:
    """Names of two nodes; the first exists, and has room for three pods."""
    names = [f"{namespace}-{number}" for number in (1, 2)]
    add_node(control_plane.api, names[0], {"tests": namespace}, cpu="3", memory="8Gi")
    yield names
    control_plane.api.request("DELETE", f"/api/v1/nodes?labelSelector=tests%3D{namespace}")


def test_a_native_gang_is_bound_as_a_whole(
    control_plane: ControlPlane, native_scheduler: Scheduler, namespace: str, nodes: list[str]
) -> None:
    api = control_plane.api
    spec = {"schedulingPolicy": {"gang": {"minCount": SIZE}}}
    group = {"apiVersion": f"scheduling.k8s.io/{POD_GROUP_VERSION}", "kind": "PodGroup", "metadata": {"name": "gang"}}
    api.create({**group, "spec": spec}, namespace)
    for number in range(SIZE):
        api.create(pod(f"rank-{number}", namespace, schedulingGroup={"podGroupName": "gang"}), namespace)

    def initially_scheduled() -> str:
        found = api.get(POD_GROUP, namespace, "gang").get("status", {}).get("conditions", ())
        types = ("PodGroupInitiallyScheduled", "PodGroupScheduled")  # the second one in 1.36
        return next((one["status"] for one in found if one["type"] in types), "")

    eventually(lambda: initially_scheduled() == "False", what=native_scheduler.log())
    assert bound(api, namespace) == 0
    add_node(api, nodes[1], {"tests": namespace}, cpu="1", memory="8Gi")
    eventually(lambda: bound(api, namespace) == SIZE, what=native_scheduler.log())
    assert initially_scheduled() == "True"


def test_a_gang_of_coscheduling_is_bound_as_a_whole(
    control_plane: ControlPlane, coscheduling: Scheduler, namespace: str, nodes: list[str]
) -> None:
    api, label = control_plane.api, {"scheduling.x-k8s.io/pod-group": "gang"}
    spec = {"minMember": SIZE}
    group = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "gang"}}
    api.create({**group, "spec": spec}, namespace)
    for number in range(SIZE):
        api.create(pod(f"rank-{number}", namespace, label, schedulerName=COSCHEDULING_NAME), namespace)

    def unschedulable() -> int:
        conditions = [
            one for found in api.list("Pod", namespace) for one in found.get("status", {}).get("conditions", ())
        ]
        return sum((one["type"], one["status"]) == ("PodScheduled", "False") for one in conditions)

    eventually(lambda: unschedulable() == SIZE, what=coscheduling.log())
    assert bound(api, namespace) == 0
    add_node(api, nodes[1], {"tests": namespace}, cpu="1", memory="8Gi")
    eventually(lambda: bound(api, namespace) == SIZE, what=coscheduling.log())


def pod(name: str, namespace: str, labels: dict[str, str] | None = None, **spec: object) -> Manifest:
    """It needs a CPU, and runs only on the nodes of this test."""
    container = {"name": "rank", "image": "example.org/x:1", "resources": {"requests": {"cpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": [container], "nodeSelector": {"tests": namespace}, **spec},
    }


def bound(api: Api, namespace: str) -> int:
    return sum(bool(found["spec"].get("nodeName")) for found in api.list("Pod", namespace))
