"""An API server without gangs, as it is by default. `tests/queueing/test_gangs.py` has one with gangs."""

from __future__ import annotations

from allranks.api.job import KIND
from support import live
from support.controlplane import ControlPlane
from support.live import eventually


def test_a_group_that_a_pod_names_is_dropped_without_a_word(control_plane: ControlPlane, namespace: str) -> None:
    container = {"name": "rank", "image": "example.org/x:1"}
    spec = {"containers": [container], "schedulingGroup": {"podGroupName": "gang"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "rank-0"}, "spec": spec}
    stored = control_plane.api.create(pod, namespace)
    assert "schedulingGroup" not in stored["spec"]


def test_a_job_that_needs_native_gangs_waits_and_says_what_to_enable(
    control_plane: ControlPlane, namespace: str
) -> None:
    api = control_plane.api

    def running() -> dict[str, str]:
        conditions = api.get(KIND, namespace, "demo").get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == "Running"), {})

    with live.operator(live.connection(control_plane), namespace, gangs=True):
        api.create(live.job("demo", scheduling={"gang": "Native"}), namespace)
        api.create(live.job("auto"), namespace)
        eventually(lambda: running().get("reason") == "GangBackendNotServed")
        assert "enable the feature gate GenericWorkload" in running()["message"]
        eventually(lambda: len(api.list("Pod", namespace)) == 2)
        assert {each["metadata"]["labels"]["allranks.dev/job-name"] for each in api.list("Pod", namespace)} == {"auto"}
