"""Lost nodes, with real kubelets and ranks."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from .cluster import KEPT_FREE, Cluster
from .jobs import Team, penguins
from .nodes import Node

ANYWHERE = {"tolerations": [{"key": KEPT_FREE, "value": "node-2"}]}


@pytest.fixture
def node_2(cluster: Cluster) -> Iterator[Node]:
    """A node whose kubelet the test stops. The operator runs on another node."""
    node = Node(cluster, "node-2")
    yield node
    node.send(signal.SIGCONT, node.processes("kubelet"))
    node.has_condition("Ready", "True")


def test_a_lost_node_becomes_the_root_cause_and_does_not_count(team: Team, node_2: Node) -> None:
    """Two jobs. The rank of the first on the node keeps running. The rank of the second dies with the node: its peer
    fails within a second and is the root cause until Kubernetes detects the lost node."""
    silent, dead = (team.start(penguins(name, epochs=1000, **ANYWHERE)) for name in ("silent", "dead"))
    there = {}
    for job in (silent, dead):
        team.says(f"{job}-master-0-0", "epoch 2/1000")
        pods = {role: team.get("pod", f"{job}-{role}-0-0") for role in ("master", "worker")}
        assert sorted(pod["spec"]["nodeName"] for pod in pods.values()) == ["node-1", node_2.name]
        [there[job]] = [role for role, pod in pods.items() if pod["spec"]["nodeName"] == node_2.name]
        tolerated = {t["key"]: t.get("tolerationSeconds") for t in pods["worker"]["spec"]["tolerations"]}
        assert tolerated["node.kubernetes.io/unreachable"] == 30

    node_2.send(signal.SIGSTOP, node_2.processes("kubelet"))
    node_2.send(signal.SIGKILL, node_2.ranks(dead))
    team.wait(f"dt/{dead}", "--for=jsonpath={.status.restarts.counted}=1")
    assert team.status(dead)["lastFailure"]["reason"] == "Error"
    assert team.status(silent)["attempt"] == 0

    for job in (silent, dead):
        team.reports(job, '"reason":"NodeLost"')
        team.wait(f"dt/{job}", "--for=jsonpath={.status.restarts.counted}=0")
        team.wait(f"dt/{job}", "--for=condition=Running")
        status = team.status(job)
        last, first = status["attempt"], status["history"][0]
        found = (first["attempt"], first["reason"], first["failure"]["role"], first["failure"]["node"])
        assert found == (0, "NodeLost", there[job], node_2.name), json.dumps(status, indent=1)
        assert status["restarts"]["disruptions"] == last
        # The peer of the dead rank may fail so late that its job restarts once: after the node got its taint,
        # and before its loss is reported.
        assert status["avoidedNodes"] == ([] if job == dead and last == 1 else [node_2.name])
        assert team.get("pod", f"{job}-{there[job]}-0-0")["metadata"]["deletionTimestamp"]  # nothing waits for its end
        placed = [team.get("pod", f"{job}-{role}-0-{last}")["spec"]["nodeName"] for role in ("master", "worker")]
        assert placed == ["node-1", "node-1"]
        assert "resumed from epoch" in team.says(f"{job}-master-0-{last}", "epoch ")
