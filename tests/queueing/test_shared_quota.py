"""Jobs share the quota of a real Kueue: borrowing, a job that never fits, an operator that is killed."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator

import pytest

from allranks.api.job import KIND
from support import live
from support.api import ApiError, Manifest
from support.controlplane import ControlPlane
from support.kueue import WORKLOAD, Kueue, add_queue, remove_queue
from support.live import eventually
from support.simulator.kubelets import Program

from .test_jobs_in_queues import job, message, phase, pods, running, usage

pytestmark = pytest.mark.nightly
BORROW = {"reclaimWithinCohort": "Any"}


@pytest.fixture
def two_queues(control_plane: ControlPlane, kueue: Kueue, namespace: str) -> Iterator[tuple[str, str]]:
    """Two queues of one cohort, with 2 CPUs each; either may borrow those of the other, and gets its own back."""
    api, names = control_plane.api, (f"{namespace}-a", f"{namespace}-b")
    flavor = f"{namespace}-a"
    for name in names:
        add_queue(api, namespace, name, {"cpu": "2"}, cohortName=namespace, preemption=BORROW)
    group = {
        "coveredResources": ["cpu"],
        "flavors": [{"name": flavor, "resources": [{"name": "cpu", "nominalQuota": "2"}]}],
    }
    api.patch("ClusterQueue.v1beta2.kueue.x-k8s.io", None, names[1], {"spec": {"resourceGroups": [group]}})
    yield names
    with contextlib.suppress(ApiError):
        for found in api.list(KIND, namespace):
            api.delete(KIND, namespace, found["metadata"]["name"])
    eventually(lambda: not api.list(WORKLOAD, namespace), what="the garbage collector deletes Workloads")
    for name in reversed(names):
        remove_queue(api, namespace, name)


def in_queue(queue: str, name: str, cpus: int) -> Manifest:
    made = job(queue, name, cpus)
    return {**made, "spec": {**made["spec"], "scheduling": {"queue": queue}}}


def test_a_job_borrows_quota_and_gives_it_back_when_its_owner_needs_it(
    control_plane: ControlPlane, two_queues: tuple[str, str], namespace: str
) -> None:
    api, (ours, theirs) = control_plane.api, two_queues
    with running(control_plane, namespace, Program()):
        api.create(in_queue(ours, "borrower", cpus=4), namespace)
        eventually(lambda: phase(control_plane, namespace, "borrower") == "Running")
        eventually(lambda: usage(control_plane, ours) == "4")
        api.create(in_queue(theirs, "owner", cpus=2), namespace)
        eventually(lambda: phase(control_plane, namespace, "owner") == "Running")
        eventually(lambda: phase(control_plane, namespace, "borrower") == "Queued")
        status = api.get(KIND, namespace, "borrower")["status"]
        assert (status["queue"]["lastEviction"]["reason"], status["restarts"]["counted"]) == ("Preempted", 0)
        assert pods(control_plane, namespace, "borrower") == []
        eventually(lambda: (usage(control_plane, ours), usage(control_plane, theirs)) == ("0", "2"))
        api.delete(KIND, namespace, "owner")
        eventually(lambda: phase(control_plane, namespace, "borrower") == "Running")


def test_a_job_that_never_fits_says_so_and_does_not_hold_up_others(
    control_plane: ControlPlane, two_queues: tuple[str, str], namespace: str
) -> None:
    api, (ours, _) = control_plane.api, two_queues
    with running(control_plane, namespace, Program(seconds=1)):
        api.create(in_queue(ours, "giant", cpus=40), namespace)
        eventually(lambda: "insufficient quota" in message(control_plane, namespace, "giant"))
        api.create(in_queue(ours, "small", cpus=1), namespace)
        eventually(lambda: phase(control_plane, namespace, "small") == "Succeeded")
        assert phase(control_plane, namespace, "giant") == "Queued"
        assert pods(control_plane, namespace, "giant") == []


@pytest.mark.parametrize("seed", range(3))
def test_an_operator_that_is_killed_at_any_moment_loses_and_doubles_nothing(
    control_plane: ControlPlane, two_queues: tuple[str, str], namespace: str, seed: int
) -> None:
    api, names, dice = control_plane.api, [f"job-{number}" for number in range(4)], random.Random(seed)
    connection = live.connection(control_plane)
    with live.kubelet(connection, Program(seconds=2), namespace=namespace):
        for number, name in enumerate(names):
            api.create(in_queue(two_queues[number % 2], name, cpus=2), namespace)
        for _ in range(15):
            with live.operator(connection, namespace, queues=True):  # which is killed at the end
                time.sleep(dice.uniform(0.05, 0.8))  # the moment of the kill
        with live.operator(connection, namespace, queues=True):
            for name in names:
                eventually(lambda n=name: phase(control_plane, namespace, n) == "Succeeded")  # type: ignore[misc]
            eventually(lambda: {usage(control_plane, queue) for queue in two_queues} == {"0"}, what="all quota is free")
        for name in names:
            status = api.get(KIND, namespace, name)["status"]
            assert status["attempt"] == status["queue"]["evictions"], "no attempt but those that Kueue ended"
            assert status["restarts"]["counted"] == status["restarts"]["disruptions"] == 0
            made = {pod["metadata"]["name"] for pod in pods(control_plane, namespace, name)}
            ours = {f"{name}-{role}-0-{status['attempt']}" for role in ("master", "worker")}
            assert made <= ours, "no pod of another attempt"  # a worker that outlives the master is deleted
            assert f"{name}-master-0-{status['attempt']}" in made
        owners = [each["metadata"]["ownerReferences"][0]["name"] for each in api.list(WORKLOAD, namespace)]
        assert sorted(owners) == names
