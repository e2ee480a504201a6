"""The fake kubelet, on the real API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from allranks.kube.auth import Connection
from support.api import Api, path
from support.controlplane import ControlPlane
from support.kubelet import Hand, Kubelet
from support.simulator.kubelets import Program

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


def test_a_pod_is_bound_started_ended_and_deleted_step_by_step(control_plane: ControlPlane, namespace: str) -> None:
    api = control_plane.api
    hand = Hand(api, namespace, lambda: NOW, lambda pod: NOW)
    api.create(_pod("one"), namespace)
    hand.place("one", "node-1")
    hand.start("one")
    api.delete("Pod", namespace, "one")
    assert api.get("Pod", namespace, "one")["status"]["phase"] == "Running"
    assert hand.next_stop() is not None
    hand = Hand(api, namespace, lambda: NOW.replace(second=2), lambda pod: NOW)
    before = _state(api, namespace, "one")
    assert before == {"running": {"startedAt": "2026-05-04T03:02:01Z"}}
    hand.stop_due()
    assert api.find("Pod", namespace, "one") is None


def test_pods_on_a_lost_node_remain_until_it_recovers(control_plane: ControlPlane, namespace: str) -> None:
    api = control_plane.api
    hand = Hand(api, namespace, lambda: NOW, lambda pod: datetime.fromtimestamp(0, UTC))
    api.create(_pod("one"), namespace)
    hand.place("one", "node-1")
    hand.start("one")
    hand.lose("node-1")
    hand.stop_due()
    pod = api.get("Pod", namespace, "one")
    assert {"type", "reason"} <= set(pod["status"]["conditions"][-1])
    assert "deletionTimestamp" in pod["metadata"]
    hand.recover("node-1")
    hand.stop_due()
    assert api.find("Pod", namespace, "one") is None


def test_the_automatic_kubelet_runs_ends_and_removes_pods(control_plane: ControlPlane, namespace: str) -> None:
    api = control_plane.api
    programs = {"ends": Program(seconds=0.1), "fails": Program(seconds=0.1, code=3), "runs": Program(stop_seconds=0.1)}

    async def play() -> None:
        stop = asyncio.Event()
        connection = Connection(control_plane.url, str(control_plane.ca_file), control_plane.admin_token)
        kubelet = Kubelet(connection, lambda pod: programs[pod["metadata"]["name"]], namespace=namespace)
        work = asyncio.create_task(kubelet.run(stop))
        for name in programs:
            await asyncio.to_thread(api.create, _pod(name), namespace)
        phases = {"ends": "Succeeded", "fails": "Failed", "runs": "Running"}
        await _until(
            lambda: {p["metadata"]["name"]: p["status"]["phase"] for p in api.list("Pod", namespace)} == phases
        )
        ending = _state(api, namespace, "fails")["terminated"]
        assert (ending["exitCode"], ending["reason"]) == (3, "Error")
        assert ending["finishedAt"] >= ending["startedAt"]
        await asyncio.to_thread(api.request, "DELETE", path("Pod", namespace))
        await _until(lambda: not api.list("Pod", namespace) and bool(kubelet.removed))
        assert (kubelet.started, kubelet.exited, kubelet.removed) == (3, 2, 1)
        stop.set()
        await work

    asyncio.run(play())


async def _until(there: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(there):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def _pod(name: str) -> dict:
    spec = {"restartPolicy": "Never", "containers": [{"name": "trainer", "image": "example.org/train:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _state(api: Api, namespace: str, pod: str) -> dict:
    return api.get("Pod", namespace, pod)["status"]["containerStatuses"][0]["state"]


def _phases(api: Api, namespace: str) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in api.list("Pod", namespace)}
