"""What only real pods show: processes that die in containers, nodes that are lost, evictions, an operator that dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .cluster import Cluster
from .jobs import Manifest, Team, training
from .release import NAMESPACE

PENGUINS = """
trap 'exit 143' TERM
trap 'exit 138' USR1
trap 'exec python3 -c "b = bytearray(8 << 30)"' USR2
torchrun train/penguins_pytorch.py --epochs=@EPOCHS@ --pause=1 &
wait $!
"""
KILL_RANK = """
import glob, os
for file in glob.glob("/proc/[0-9]*/cmdline"):
    if "-u\\0train/" in open(file).read():
        os.kill(int(file.split("/")[2]), 9)
"""
SECOND_TIME = """
if [ "$ALLRANKS_ATTEMPT" -gt 0 ]; then exit 0; fi
trap 'exit 138' USR1
trap 'exit 143' TERM
echo ready
sleep 600 & wait
"""
"""Waits for what may come, and ends well when it is started again."""


def penguins(name: str, epochs: int) -> list[Manifest]:
    """The unmodified program on two nodes, with ways to make it exit with 138 and need too much memory."""
    spread = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"allranks.dev/job-name": name}},
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor",  # a node that is cordoned or lost is not one to spread to
    }
    fields = {
        "roles": {"master": {"replicas": 1}, "worker": {"replicas": 1}},
        "resources": {"requests": {"memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "restart": {"maxRestarts": 3, "backoffSeconds": 1},
        "template": {"spec": {"topologySpreadConstraints": [spread]}},
    }
    return training(name, "sh", "-c", PENGUINS.replace("@EPOCHS@", str(epochs)), claim=name, **fields)


def test_a_rank_killed_an_exit_138_and_too_much_memory_cost_the_work_since_the_checkpoint(team: Team) -> None:
    job = team.start(penguins("faults", epochs=16))

    def failure(attempt: int) -> tuple[Any, ...]:
        team.attempt(job, attempt)
        status = team.status(job)
        found = status["lastFailure"]
        assert status["restarts"] == {"counted": attempt, "disruptions": 0, "byReason": status["restarts"]["byReason"]}
        return found["attempt"], found["role"], found["index"], found["reason"], found.get("exitCode")

    team.says(f"{job}-master-0-0", "epoch 2/16")
    team.run(f"{job}-worker-0-0", "python3", "-c", KILL_RANK)
    assert failure(1)[:4] == (0, "worker", 0, "Error")
    assert team.status(job)["lastFailure"]["signal"] == 9

    assert "resumed" in team.says(f"{job}-master-0-1", "epoch 4/16")
    team.signal(f"{job}-master-0-1", "USR1")
    assert failure(2) == (1, "master", 0, "Error", 138)

    assert "resumed" in team.says(f"{job}-master-0-2", "epoch 6/16")
    team.signal(f"{job}-worker-0-2", "USR2")
    assert failure(3) == (2, "worker", 0, "OOMKilled", 137)

    status = team.completes(job)
    assert (status["attempt"], status["restarts"]["counted"]) == (3, 3)
    log = team.kubectl("logs", f"{job}-master-0-3")
    assert "resumed" in log
    assert "epoch 1/16" not in log
    assert "test accuracy" in log


@pytest.fixture
def node_2(cluster: Cluster) -> Iterator[str]:
    """For a test that stops it, or its kubelet. The operator is on the other one."""
    assert cluster.folder
    cluster.arrived("node-2")
    cluster.kubectl("uncordon", "node-2")
    yield "node-2"
    for kubelet in kubelets(cluster, "node-2"):
        os.kill(kubelet, signal.SIGCONT)
    cluster.kubectl("cordon", "node-2")
    cluster.wait("node/node-2", "--for=condition=Ready", seconds=90)


def kubelets(cluster: Cluster, node: str) -> list[int]:
    """Process IDs on this machine."""
    wanted = ["kubelet", "--config", str(cluster.folder / node / "kubelet.yaml")]
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if file.read_text(errors="replace").split("\0")[:3] == wanted:
                found.append(int(file.parent.name))
    return found


def ranks(cluster: Cluster, node: str, job: str) -> list[int]:
    """Process IDs on this machine of a job's programs on a node."""
    cgroup, found = f"allranks-{cluster.mark}/{node}/", []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            ours = f"ALLRANKS_JOB={job}".encode() in (file.parent / "environ").read_bytes().split(b"\0")
            if ours and "train/" in file.read_text() and cgroup in (file.parent / "cgroup").read_text():
                found.append(int(file.parent.name))
    return found


def test_a_lost_node_is_the_cause_and_does_not_count_whoever_was_blamed_first(team: Team, node_2: str) -> None:
    """Two jobs. Of one the rank on the node lives on, out of sight. That of the other dies with the node: its peer
    fails within a second, and is blamed until Kubernetes knows of the node."""
    silent, dead = team.start(penguins("silent", epochs=1000)), team.start(penguins("dead", epochs=1000))
    there = {}
    for job in (silent, dead):
        team.says(f"{job}-master-0-0", "epoch 2/1000")
        pods = {role: team.get("pod", f"{job}-{role}-0-0") for role in ("master", "worker")}
        assert sorted(pod["spec"]["nodeName"] for pod in pods.values()) == ["node-1", node_2]
        [there[job]] = [role for role, pod in pods.items() if pod["spec"]["nodeName"] == node_2]
        tolerated = {t["key"]: t.get("tolerationSeconds") for t in pods["worker"]["spec"]["tolerations"]}
        assert tolerated["node.kubernetes.io/unreachable"] == 30

    [kubelet] = kubelets(team.cluster, node_2)
    os.kill(kubelet, signal.SIGSTOP)
    for rank in ranks(team.cluster, node_2, dead):
        os.kill(rank, signal.SIGKILL)
    team.wait(f"dt/{dead}", "--for=jsonpath={.status.restarts.counted}=1", seconds=60)
    assert team.status(dead)["lastFailure"]["reason"] == "Error"
    assert team.status(silent)["attempt"] == 0

    for job in (silent, dead):
        team.told(job, '"reason":"NodeLost"', seconds=180)
        team.wait(f"dt/{job}", "--for=jsonpath={.status.restarts.counted}=0", seconds=30)
        team.wait(f"dt/{job}", "--for=condition=Running", seconds=60)
        status = team.status(job)
        last, first = status["attempt"], status["history"][0]
        found = (first["attempt"], first["reason"], first["failure"]["role"], first["failure"]["node"])
        assert found == (0, "NodeLost", there[job], node_2), json.dumps(status, indent=1)
        assert status["restarts"]["disruptions"] == last
        assert status["avoidedNodes"] == [node_2]
        assert team.get("pod", f"{job}-{there[job]}-0-0")["metadata"]["deletionTimestamp"]  # nobody waits for it
        placed = [team.get("pod", f"{job}-{role}-0-{last}")["spec"]["nodeName"] for role in ("master", "worker")]
        assert placed == ["node-1", "node-1"]
        assert "resumed from epoch" in team.says(f"{job}-master-0-{last}", "epoch ")


def kill_operator(cluster: Cluster) -> None:
    cluster.kubectl("delete", "pods", "-n", NAMESPACE, "--all", "--force", "--grace-period=0")


def test_a_pod_evicted_by_the_api_does_not_count(team: Team) -> None:
    gpu = {"limits": {"nvidia.com/gpu": 1}}
    job = team.start(training("evicted", "sh", "-c", SECOND_TIME, resources=gpu))
    pod = f"{job}-master-0-0"
    team.says(pod, "ready")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": team.namespace}}
    path = f"/api/v1/namespaces/{team.namespace}/pods/{pod}/eviction"
    team.cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    status = team.completes(job)
    assert status["lastFailure"]["reason"] == "Evicted"
    assert (status["restarts"]["counted"], status["restarts"]["disruptions"]) == (0, 1)


def test_the_operator_may_die_in_the_midst_of_a_restart(team: Team) -> None:
    job = team.start(training("midst", "sh", "-c", SECOND_TIME))
    team.says(f"{job}-master-0-0", "ready")
    team.signal(f"{job}-master-0-0", "USR1")
    kill_operator(team.cluster)
    status = team.completes(job)
    assert (status["attempt"], status["restarts"]["counted"]) == (1, 1)
    assert status["lastFailure"]["exitCode"] == 138
