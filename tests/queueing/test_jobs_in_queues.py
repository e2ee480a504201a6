"""Jobs in the queues of a real Kueue, with the real operator and a fake kubelet that runs every pod."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from allranks.api.job import KIND
from support import live
from support.api import ApiError, Manifest
from support.controlplane import ControlPlane
from support.kubelet import Hand
from support.kueue import CLUSTER_QUEUE, PRIORITY_CLASS, WORKLOAD, Kueue, add_queue, remove_queue
from support.live import eventually
from support.simulator.kubelets import Program

pytestmark = pytest.mark.nightly

PREEMPTION = {"withinClusterQueue": "LowerPriority"}
LONG = Program()


@pytest.fixture
def queue(control_plane: ControlPlane, kueue: Kueue, namespace: str) -> Iterator[str]:
    """A LocalQueue with a quota of 4 CPUs, of the same name as the namespace."""
    add_queue(control_plane.api, namespace, namespace, {"cpu": "4"}, preemption=PREEMPTION)
    yield namespace
    with contextlib.suppress(ApiError):
        for job in control_plane.api.list(KIND, namespace):
            control_plane.api.delete(KIND, namespace, job["metadata"]["name"])
    eventually(lambda: not control_plane.api.list(WORKLOAD, namespace), what="the garbage collector deletes Workloads")
    remove_queue(control_plane.api, namespace, namespace)


@contextlib.contextmanager
def running(control_plane: ControlPlane, namespace: str, program: Program = LONG) -> Iterator[None]:
    connection = live.connection(control_plane)
    with live.operator(connection, namespace, queues=True), live.kubelet(connection, program, namespace=namespace):
        yield


def job(queue: str, name: str, cpus: int, label: str = "") -> Manifest:
    """Two ranks with this many CPUs together."""
    resources = {"requests": {"cpu": f"{500 * cpus}m"}}
    made = live.job(name, scheduling={"queue": queue}, resources=resources)
    labels = {"kueue.x-k8s.io/priority-class": label} if label else {}
    return {**made, "metadata": {**made["metadata"], "labels": labels}}


def phase(control_plane: ControlPlane, queue: str, name: str) -> str:
    return live.phase(control_plane, queue, name)


def message(control_plane: ControlPlane, queue: str, name: str) -> str:
    status = control_plane.api.get(KIND, queue, name).get("status", {})
    found = [one["message"] for one in status.get("conditions", ()) if one["type"] == "Running"]
    return found[0] if found else ""


def usage(control_plane: ControlPlane, queue: str) -> str:
    """CPUs in use, as Kueue counts them."""
    found = control_plane.api.get(CLUSTER_QUEUE, None, queue).get("status", {}).get("flavorsUsage") or []
    totals = [str(one["total"]) for flavor in found for one in flavor["resources"]]
    return totals[0] if totals else ""


def pods(control_plane: ControlPlane, queue: str, name: str) -> list[Manifest]:
    return control_plane.api.list("Pod", queue, labelSelector=f"allranks.dev/job-name={name}")


def test_a_job_waits_for_quota_without_pods_and_begins_when_another_one_has_finished(
    control_plane: ControlPlane, queue: str
) -> None:
    api = control_plane.api
    hand = Hand(api, queue, lambda: datetime.now(UTC), lambda _: datetime.now(UTC))
    with running(control_plane, queue):
        api.create(job(queue, "first", cpus=3), queue)
        eventually(lambda: pods(control_plane, queue, "first"), what="the first one is admitted")
        api.create(job(queue, "second", cpus=2), queue)
        eventually(lambda: "insufficient" in message(control_plane, queue, "second"), what="Kueue's message")
        assert phase(control_plane, queue, "second") == "Queued"
        assert pods(control_plane, queue, "second") == []
        for name in ("first", "second"):
            eventually(lambda n=name: phase(control_plane, queue, n) == "Running")  # type: ignore[misc]
            for role in ("worker", "master"):  # the job ends with its master
                hand.end(f"{name}-{role}-0-0", 0)
            eventually(lambda n=name: phase(control_plane, queue, n) == "Succeeded")  # type: ignore[misc]
        eventually(lambda: usage(control_plane, queue) == "0", what="all quota is free")
        conditions = api.list(WORKLOAD, queue)[0]["status"]["conditions"]
        assert {"Finished", "PodsReady"} <= {one["type"] for one in conditions if one["status"] == "True"}


def test_a_job_is_preempted_by_one_of_higher_priority_and_continues_after_it(
    control_plane: ControlPlane, queue: str
) -> None:
    api = control_plane.api
    urgent = f"urgent-{queue}"
    api.create(
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": urgent}}
        | {"value": 100}
    )
    try:
        with running(control_plane, queue):
            api.create(job(queue, "usual", cpus=3), queue)
            eventually(lambda: phase(control_plane, queue, "usual") == "Running")
            api.create(job(queue, "urgent", cpus=3, label=urgent), queue)
            eventually(lambda: phase(control_plane, queue, "urgent") == "Running")
            eventually(lambda: "insufficient" in message(control_plane, queue, "usual"))
            status = api.get(KIND, queue, "usual")["status"]
            assert (status["phase"], status["restarts"]["disruptions"]) == ("Queued", 0)
            assert status["queue"]["evictions"] == 1
            assert status["queue"]["lastEviction"]["reason"] == "Preempted"
            assert pods(control_plane, queue, "usual") == []
            assert usage(control_plane, queue) == "3"
            api.delete(KIND, queue, "urgent")
            eventually(lambda: phase(control_plane, queue, "usual") == "Running", what="it continues")
            assert api.get(KIND, queue, "usual")["status"]["attempt"] == 1
    finally:
        api.delete(PRIORITY_CLASS, None, urgent)


def test_while_kueue_is_away_the_job_says_so_and_continues_when_it_is_back(
    control_plane: ControlPlane, kueue: Kueue, queue: str
) -> None:
    with running(control_plane, queue):
        kueue.stop()
        try:
            control_plane.api.create(job(queue, "demo", cpus=2), queue)
            eventually(lambda: "webhook" in message(control_plane, queue, "demo"))
            assert phase(control_plane, queue, "demo") == "Queued"
        finally:
            kueue.start()
        eventually(lambda: phase(control_plane, queue, "demo") == "Running")


def test_a_stopped_clusterqueue_evicts_its_jobs_and_they_continue_when_it_admits_again(
    control_plane: ControlPlane, queue: str
) -> None:
    api = control_plane.api
    with running(control_plane, queue):
        api.create(job(queue, "demo", cpus=2), queue)
        eventually(lambda: phase(control_plane, queue, "demo") == "Running")
        api.patch(CLUSTER_QUEUE, None, queue, {"spec": {"stopPolicy": "HoldAndDrain"}})
        eventually(lambda: phase(control_plane, queue, "demo") == "Queued" and not pods(control_plane, queue, "demo"))
        eventually(lambda: usage(control_plane, queue) == "0")
        api.patch(CLUSTER_QUEUE, None, queue, {"spec": {"stopPolicy": "None"}})
        eventually(lambda: phase(control_plane, queue, "demo") == "Running")
        assert api.get(KIND, queue, "demo")["status"]["queue"]["lastEviction"]["reason"] == "ClusterQueueStopped"
