"""Simulated programs: they are scheduled, run, fail, hang, and make their peers fail."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from allranks.core.facts.naming import ATTEMPT_LABEL, INDEX_LABEL
from support.simulator import Cluster, Node, Program, Workload

from .budget import share
from .jobs import KEY, Spec, manifest

FAILURE = st.tuples(st.integers(0, 2), st.integers(0, 300), st.sampled_from([1, 3, 137, 139]))
"""(rank, after so many seconds, exit code)"""


def _job(workers: int, **spec: Any) -> dict[str, Any]:
    whole: Spec = {"framework": "pytorch", "image": "example.org/train:1", "roles": {"worker": {"replicas": workers}}}
    return manifest(whole | spec)


def _status(cluster: Cluster) -> dict[str, Any]:
    job = cluster.job(KEY)
    assert job is not None
    status: dict[str, Any] = job["status"]
    return status


@share(0.02)
@given(
    fates=st.lists(FAILURE, max_size=5),
    peers=st.sampled_from(["hangs", "crashes"]),
    crash_seconds=st.integers(1, 20),
    seed=st.integers(0, 2**16),
)
def test_each_failed_attempt_counts_once_with_the_first_failed_rank_as_root_cause(
    fates: list[tuple[int, int, int]], peers: Any, crash_seconds: int, seed: int
) -> None:
    def program(pod: dict[str, Any]) -> Program:
        labels = pod["metadata"]["labels"]
        attempt, rank = int(labels[ATTEMPT_LABEL]), int(labels[INDEX_LABEL])
        if attempt < len(fates) and fates[attempt][0] == rank:
            _, seconds, code = fates[attempt]
            # Different last lines: the same failure twice would count as a bug of the program.
            return Program(seconds, code, message=f"boom {'!' * attempt}")
        return Program(1000, when_peer_is_lost=peers, crash_seconds=crash_seconds)

    cluster = Cluster(seed, workload=Workload(program))
    cluster.create_job(_job(3, restart={"maxRestarts": len(fates)}))
    cluster.advance(4000)
    status = _status(cluster)
    assert status["phase"] == "Succeeded"
    assert (status["attempt"], status["restarts"]["counted"]) == (len(fates), len(fates))
    if fates:
        last = status["lastFailure"]
        assert (last["index"], last["exitCode"], last["attempt"]) == (fates[-1][0], fates[-1][2], len(fates) - 1)


def test_a_rank_without_room_is_reported_and_scheduled_when_there_is_room() -> None:
    gpus = {"limits": {"nvidia.com/gpu": 4}}
    cluster = Cluster(nodes=[Node("small", {"pods": 9, "nvidia.com/gpu": 4})], workload=Workload())
    cluster.create_job(_job(2, resources=gpus))
    cluster.advance(10)
    running = next(c for c in _status(cluster)["conditions"] if c["type"] == "Running")
    assert (_status(cluster)["phase"], _status(cluster)["ready"]) == ("Pending", "1/2")
    assert running["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in running["message"]
    cluster.kubelets.add(Node("big", {"pods": 9, "nvidia.com/gpu": 8}))
    cluster.advance(10)
    assert _status(cluster)["phase"] == "Running"


def test_an_image_that_does_not_exist_fails_the_job_after_its_startup_deadline() -> None:
    bad = {"example.org/train:1": ("ImagePullBackOff", "not found")}
    cluster = Cluster(workload=Workload(bad_images=bad))
    cluster.create_job(_job(2, startupDeadlineSeconds=60))
    cluster.advance(59)
    assert _status(cluster)["phase"] == "Pending"
    cluster.advance(1)
    assert _status(cluster)["phase"] == "Failed"


def test_a_rank_on_a_lost_node_is_replaced_elsewhere_and_its_pod_is_deleted_when_the_node_returns() -> None:
    cluster = Cluster(nodes=[Node("a", {"pods": 2}), Node("b", {"pods": 2})], workload=Workload())
    cluster.create_job(_job(2))
    cluster.advance(10)
    cluster.kubelets.lose("a")
    cluster.advance(60)
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in cluster.pods()}
    assert nodes == {"demo-worker-0-0": "a", "demo-worker-1-0": "a", "demo-worker-0-1": "b", "demo-worker-1-1": "b"}
    assert (_status(cluster)["phase"], _status(cluster)["restarts"]["disruptions"]) == ("Running", 1)
    cluster.kubelets.recover("a")
    cluster.advance(60)
    assert {pod["metadata"]["name"] for pod in cluster.pods()} == {"demo-worker-0-1", "demo-worker-1-1"}


def test_a_program_that_ignores_sigterm_is_killed_after_its_grace_period() -> None:
    cluster = Cluster(workload=Workload(lambda pod: Program(stop_seconds=None)))
    cluster.create_job(_job(1))
    cluster.advance(10)
    cluster.patch_job(KEY, {"suspend": True})
    cluster.advance(29)
    assert len(cluster.pods()) == 1
    cluster.advance(1)
    assert cluster.pods() == []


def test_the_same_seed_gives_the_same_history() -> None:
    def life() -> tuple[Any, ...]:
        cluster = Cluster(7, workload=Workload(lambda pod: Program(20, int(pod["metadata"]["name"][-1] == "0"))))
        cluster.create_job(_job(3))
        cluster.advance(200)
        return _status(cluster), list(cluster.audit.creates), cluster.audit.events, cluster.store.version

    assert life() == life()
