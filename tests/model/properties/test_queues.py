"""Jobs in a queue, with evictions, restarts, kills of the operator, suspensions and changes of size.

No pod runs without quota, and in the end every job has finished and all quota is free."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from allranks.api.job import KIND
from allranks.core.facts.naming import ATTEMPT_LABEL
from support.simulator import Cluster, Lag, Node, Program, Workload
from support.simulator.queue_manager import QueueManager, used_by
from support.simulator.store import Change, controller_of, ended

from .budget import note, share
from .jobs import manifest

ACTIONS = ("evict", "deactivate", "kill", "suspend", "resume", "resize", "label", "fail", "advance", "restart", "quota")
STEP = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 7))


def _attempt(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["labels"][ATTEMPT_LABEL])


_FAILURES = itertools.cycle(range(60))


def _job(number: int, size: int) -> dict[str, Any]:
    spec = {
        "framework": "pytorch",
        "image": "example.org/train:1",
        "roles": {"worker": {"replicas": size}},
        "restart": {"maxRestarts": 99, "backoffSeconds": 0},
    }
    made = manifest(spec)
    labels = {"kueue.x-k8s.io/queue-name": "team-a"}
    return {**made, "metadata": {**made["metadata"], "name": f"job-{number}", "labels": labels}}


class Quota:
    """Compares the pods of each job with the quota of its Workload, at every change of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.violations: list[str] = []
        cluster.store.watchers.append(self._check)

    def _check(self, change: Change) -> None:
        if change.key[0] not in ("Pod", "Workload"):
            return
        store = self._cluster.store
        pods = [pod for pod in store.all("Pod") if not ended(pod["status"])]
        all_pods = Counter(map(controller_of, pods))
        # A restart does not wait for the pods that it replaces.
        newest: dict[str | None, int] = {}
        for pod in pods:
            newest[controller_of(pod)] = max(newest.get(controller_of(pod), 0), _attempt(pod))
        current = [pod for pod in pods if _attempt(pod) == newest[controller_of(pod)]]
        staying = Counter(controller_of(pod) for pod in current if "deletionTimestamp" not in pod["metadata"])
        quota = Counter[str | None]()
        for workload in store.all("Workload"):
            quota[controller_of(workload)] += used_by(workload)
        for job in store.all(KIND):
            uid = job["metadata"]["uid"]
            if staying[uid] > quota[uid] or (all_pods[uid] and not quota[uid]):
                what = f"{all_pods[uid]} pods, {staying[uid]} of them stay, quota {quota[uid]}"
                name = job["metadata"]["name"]
                self.violations.append(f"{self._cluster.now:%H:%M:%S} {name}: {what}: {change.kind} {change.key}")


@share(0.01, least=20)
@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    history=st.lists(STEP, max_size=12),
    lag=st.sampled_from([0.0, 2.0]),
    seed=st.integers(0, 2**16),
)
def test_no_pod_runs_without_quota_and_every_job_finishes(
    sizes: list[int], history: list[tuple[str, int]], lag: float, seed: int
) -> None:
    ends = {"seconds": None}

    def program(pod: dict[str, Any]) -> Program:
        return Program(ends["seconds"], stop_seconds=5)

    nodes = [Node(f"node-{number}") for number in range(2)]
    cluster = Cluster(seed, nodes=nodes, workload=Workload(program), lag=Lag(seconds=lag))
    kueue, quota = QueueManager(cluster, quota=4, queues=("team-a", "team-b")), Quota(cluster)
    for number, size in enumerate(sizes):
        cluster.create_job(_job(number, size))
    cluster.advance(5)
    for action, number in history:
        note(f"{cluster.now:%H:%M:%S} {action} {number}")
        _act(cluster, kueue, action, number, len(sizes))
        cluster.advance(number)
    note("calm")
    ends["seconds"] = 10  # type: ignore[assignment]
    kueue.quota = 100
    for job in range(len(sizes)):
        cluster.patch_job((KIND, "default", f"job-{job}"), {"suspend": False})
    for workload in cluster.store.all("Workload"):
        cluster.store.patch(("Workload", "default", workload["metadata"]["name"]), {"spec": {"active": True}})
    for _ in range(4):
        _fail(cluster, 0, everyone=True)
        kueue.schedule()
        cluster.advance(900)
    assert not quota.violations, quota.violations[:3]
    phases = {job["metadata"]["name"]: job["status"]["phase"] for job in cluster.store.all(KIND)}
    assert set(phases.values()) == {"Succeeded"}, phases
    assert kueue.used() == 0
    assert all(pod["spec"]["nodeSelector"] == {"gpu": "h100"} for pod in cluster.pods())


def _act(cluster: Cluster, kueue: QueueManager, action: str, number: int, jobs: int) -> None:
    key = (KIND, "default", f"job-{number % jobs}")
    match action:
        case "evict":
            kueue.evict(number, "Preempted")
        case "deactivate":
            kueue.evict(number, "PodsReadyTimeout")
        case "kill":
            cluster.kill_operator_after(number + 1)
        case "restart":
            cluster.restart_operator()
        case "suspend" | "resume":
            cluster.patch_job(key, {"suspend": action == "suspend"})
        case "resize":
            cluster.patch_job(key, {"roles": {"worker": {"replicas": 1 + number % 3}}})
        case "label":
            queue = "team-b" if number % 2 else "team-a"
            cluster.store.patch(key, {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": queue}}})
        case "fail":
            _fail(cluster, number)
        case "quota":
            kueue.quota = number
        case "advance":
            cluster.advance(10 * number)


def _fail(cluster: Cluster, number: int, everyone: bool = False) -> None:
    """Running pods fail: the program of the next attempt may be another one."""
    running = [pod for pod in cluster.pods() if pod["status"]["phase"] == "Running"]
    for pod in running if everyone else running[number : number + 1]:
        metadata = pod["metadata"]
        if "deletionTimestamp" not in metadata:
            # Different last lines: the same failure twice would count as a bug of the program.
            message = f"boom {'!' * next(_FAILURES)}"
            cluster.kubelets.end(("Pod", "default", metadata["name"]), 1, message=message)
