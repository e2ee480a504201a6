"""Large jobs and many attempts on a real API server."""

from __future__ import annotations

from allranks.api.job import KIND
from support import live
from support.controlplane import ControlPlane
from support.kubelet import Program
from support.live import eventually, job, phase


def test_attempts_leave_no_more_than_two_config_maps(control_plane: ControlPlane, namespace: str) -> None:
    api, connection = control_plane.api, live.connection(control_plane)

    def names() -> list[str]:
        found = [made["metadata"]["name"] for made in api.list("ConfigMap", namespace)]
        return sorted(name for name in found if name.startswith("demo-"))

    roles = {"chief": {"replicas": 1}, "worker": {"replicas": 1}}
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo-files-2"}, "data": {"a": "b"}}
    with live.operator(connection, namespace), live.kubelet(connection, Program(seconds=None), namespace=namespace):
        api.create(job(framework="tensorflow", roles=roles), namespace)
        eventually(lambda: phase(control_plane, namespace) == "Running")
        for attempt in range(1, 7):
            api.patch(KIND, namespace, "demo", {"spec": {"suspend": True}})
            eventually(lambda: phase(control_plane, namespace) == "Suspended")
            if attempt == 4:
                assert names() == ["demo-files-2", "demo-files-3"]
                api.delete("ConfigMap", namespace, "demo-files-2")
                api.create(foreign, namespace)
            api.patch(KIND, namespace, "demo", {"spec": {"suspend": False}})
            eventually(lambda: phase(control_plane, namespace) == "Running")
        assert names() == ["demo-files-2", "demo-files-5", "demo-files-6"]
        assert api.get("ConfigMap", namespace, "demo-files-2")["data"] == {"a": "b"}, "it belongs to somebody else"
        [pod] = [pod for pod in api.list("Pod", namespace) if pod["metadata"]["name"] == "demo-worker-0-6"]
        assert len(str(pod["spec"]["containers"][0]["env"])) < 2000


def test_a_job_that_is_too_large_is_refused_and_others_are_not_affected(
    control_plane: ControlPlane, namespace: str
) -> None:
    api, connection = control_plane.api, live.connection(control_plane)
    with live.operator(connection, namespace), live.kubelet(connection, Program(seconds=None), namespace=namespace):
        api.create(job("large", framework="tensorflow", roles={"worker": {"replicas": 10_000}}), namespace)
        api.create(job(), namespace)
        eventually(lambda: phase(control_plane, namespace, "large") == "Failed")
        eventually(lambda: phase(control_plane, namespace) == "Running")
        conditions = api.get(KIND, namespace, "large")["status"]["conditions"]
        [message] = [c["message"] for c in conditions if c["reason"] == "InvalidSpec" and c["type"] == "Failed"]
        assert message.startswith("spec.roles.worker.replicas: is too large: TF_CONFIG has ")
        assert message.endswith(" fit with this name and namespace")
        assert {pod["metadata"]["labels"]["allranks.dev/job-name"] for pod in api.list("Pod", namespace)} == {"demo"}
