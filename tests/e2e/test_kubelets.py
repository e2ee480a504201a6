"""Pods that end with their node: shutdown, reboot, a full disk, limits of a pod, a deleted node, a drain.

In each job the master begins on the node, and the worker is on another one, which loses its peer.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from .cluster import KEPT_FREE, Cluster
from .jobs import Manifest, Team, penguins
from .nodes import Node, logind, manager, until
from .watching import PodWatch, watched

NAME = "node-3"
HOSTNAME = "kubernetes.io/hostname"
DRAIN = ("drain", NAME, "--ignore-daemonsets", "--delete-emptydir-data")


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    assert cluster.folder
    if cluster.ask("get", "node", NAME).returncode:
        pytest.skip("needs a third node: tools/cluster.sh up --nodes 3")
    node = Node(cluster, NAME)
    yield node
    node.restore()


@pytest.fixture
def pods(team: Team) -> Iterator[PodWatch]:
    """All states of the test's pods. No two attempts of a job ever run side by side."""
    with watched(team) as watch:
        yield watch
    assert watch.overlaps() == []


def on_two_nodes(name: str, epochs: int = 16, on_sigterm: int = 143, **fields: Any) -> list[Manifest]:
    """A job whose worker is on node-1, and whose master is on the node as long as pods can be scheduled there."""
    documents = penguins(name, epochs, tolerations=[{"key": KEPT_FREE, "value": NAME}])
    spec = documents[-1]["spec"]
    spec["command"] = [word.replace("exit 143", f"exit {on_sigterm}") for word in spec["command"]]
    here = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [NAME]}]}
    # Less than the weight with which the operator avoids nodes.
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "preference": here}]}
    spec["roles"] = {
        "master": {"template": {"spec": {"affinity": {"nodeAffinity": preferred}}}},
        "worker": {"template": {"spec": {"nodeSelector": {HOSTNAME: "node-1"}}}},
    }
    spec["resources"]["limits"] |= fields.pop("limits", {})
    spec["template"]["spec"] |= fields.pop("pod", {})
    spec |= fields
    return documents


def train(team: Team, *jobs: list[Manifest]) -> None:
    """Starts the jobs and waits until they train."""
    for job in [team.start(documents) for documents in jobs]:
        team.says(f"{job}-master-0-0", "epoch 2/")
        placed = [team.get("pod", f"{job}-{role}-0-0")["spec"]["nodeName"] for role in ("master", "worker")]
        assert placed == [NAME, "node-1"]


def uncounted(team: Team, job: str) -> dict[str, int]:
    """Waits for the end of the training; returns the reasons of the restarts, none of which counted."""
    status = team.completes(job)
    restarts = status["restarts"]
    assert (restarts["counted"], restarts["disruptions"]) == (0, status["attempt"]), json.dumps(status, indent=1)
    assert "resumed from epoch" in team.kubectl("logs", f"{job}-master-0-{status['attempt']}")
    return dict(restarts["byReason"])


def end_of(pod: PodWatch, name: str) -> tuple[Any, ...]:
    """Phase, reason, exit code and reason of the trainer, and reasons of DisruptionTarget: what its kubelet wrote."""
    states = [state for state in pod.states(name) if state["phase"] in ("Failed", "Succeeded")]
    assert states, f"{name} never ended: {[state['phase'] for state in pod.states(name)]}"
    status = states[-1]
    ended = [c["state"].get("terminated", {}) for c in status.get("containerStatuses", ()) if c["name"] == "trainer"]
    exits = [(each.get("exitCode"), each.get("reason")) for each in ended]
    return status["phase"], status.get("reason", ""), exits, pod.disruptions(name)


def test_a_graceful_shutdown_of_a_node_does_not_count_and_is_no_success(team: Team, node: Node, pods: PodWatch) -> None:
    """The program exits with 0 on SIGTERM, as after saving its state."""
    with logind(node) as powered_off:
        node.configure(shutdownGracePeriod="20s", shutdownGracePeriodCriticalPods="5s")
        until(lambda: "kubelet" in manager(node, "ListInhibitors"), "the inhibitor of the kubelet")
        train(team, on_two_nodes("down", on_sigterm=0))
        manager(node, "PowerOff", "b", "false")
        until(powered_off.exists, "the end of the kubelet's inhibitor")
        node.power_off()
    team.reports("down", '"reason":"Evicted"')
    assert NAME in team.status("down")["avoidedNodes"]
    reasons = uncounted(team, "down")
    # A restart that comes before the taint of the node may be rejected there.
    assert set(reasons) - {"NodeShutdown"} == {"Evicted"}
    # The phase of the pod is Succeeded all the same.
    assert end_of(pods, "down-master-0-0") == ("Succeeded", "", [(0, "Completed")], ["TerminationByKubelet"])
    [first] = [past for past in team.status("down")["history"] if past["attempt"] == 0]
    assert (first["failure"]["role"], first["failure"]["node"]) == ("master", NAME)


def test_a_quick_reboot_of_a_node_does_not_count_also_if_a_peer_failed_first(
    team: Team, node: Node, pods: PodWatch
) -> None:
    """Two jobs. The worker of `quiet` waits for its master, the one of `peer` fails before the node is back."""
    train(team, on_two_nodes("quiet", epochs=60), on_two_nodes("peer", epochs=60))
    for program in ("kubelet", "containerd", "containerd-shim-runc-v2"):
        node.send(signal.SIGSTOP, node.processes(program))
    node.send(signal.SIGKILL, node.ranks("peer"))
    team.wait("dt/peer", "--for=jsonpath={.status.restarts.counted}=1")
    node.power_off()
    node.power_on()
    reasons = {job: uncounted(team, job) for job in ("quiet", "peer")}
    ends = {job: end_of(pods, f"{job}-master-0-0") for job in reasons}
    # A node that was away for longer than Kubernetes waits has been lost.
    assert set(reasons["quiet"]) | set(reasons["peer"]) <= {"ContainerStatusUnknown", "NodeLost"}, ends
    if "ContainerStatusUnknown" in reasons["quiet"]:
        assert ends["quiet"] == ("Failed", "", [(255, "Unknown")], [])


def test_a_full_disk_of_a_node_does_not_count_but_the_limit_of_a_pod_does(
    team: Team, node: Node, pods: PodWatch
) -> None:
    """Two jobs. Another program fills the disk of the node, and the master of `greedy` its own share."""
    node.give_small_disk(400)
    node.configure(
        evictionHard={"memory.available": "100Mi", "nodefs.available": "150Mi"},
        evictionPressureTransitionPeriod="1s",
        volumeStatsAggPeriod="2s",
    )
    scratch = {
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "containers": [{"name": "trainer", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
    }
    train(team, on_two_nodes("greedy", epochs=30, limits={"ephemeral-storage": "50Mi"}, pod=scratch))
    team.run("greedy-master-0-0", "sh", "-c", "head -c 80000000 /dev/zero >/scratch/file")
    team.reports("greedy", '"reason":"LimitExceeded"')
    status = team.status("greedy")
    assert (status["restarts"]["counted"], status["restarts"]["disruptions"]) == (1, 0)
    assert (status["avoidedNodes"], status["lastFailure"]["role"]) == ([], "master")
    assert "ephemeral" in status["lastFailure"]["message"]
    # The kubelet may have lost the end of the container.
    assert end_of(pods, "greedy-master-0-0")[:2] == ("Failed", "Evicted")
    assert pods.disruptions("greedy-master-0-0") == []
    assert team.completes("greedy")["attempt"] == 1

    train(team, on_two_nodes("full"))
    node.run("sh", "-c", "head -c 300M /dev/zero >/var/lib/kubelet/file-of-another-program")
    node.has_condition("DiskPressure", "True")
    assert set(uncounted(team, "full")) == {"Evicted"}
    assert NAME in team.status("full")["avoidedNodes"]
    assert end_of(pods, "full-master-0-0")[:2] == ("Failed", "Evicted")
    assert pods.disruptions("full-master-0-0") == ["TerminationByKubelet"]
    node.run("rm", "/var/lib/kubelet/file-of-another-program")
    node.has_condition("DiskPressure", "False")


def test_a_node_that_is_deleted_does_not_count_and_its_pods_end(team: Team, node: Node, pods: PodWatch) -> None:
    """The pod garbage collector deletes the pods. The kubelet still runs, ends them, and registers the node again."""
    taint = {"key": KEPT_FREE, "value": NAME, "effect": "NoSchedule"}
    node.configure(registerWithTaints=[taint])
    train(team, on_two_nodes("gone", epochs=110))  # the garbage collector waits for a minute
    team.cluster.kubectl("delete", "node", NAME)
    try:
        team.attempt("gone", 1)
        until(lambda: not node.ranks("gone", 0), "the end of the first attempt on the node")
        assert set(uncounted(team, "gone")) == {"NodeLost"}
    finally:
        node.restart_kubelet()
    assert pods.disruptions("gone-master-0-0") == ["DeletionByPodGC"]


@pytest.mark.usefixtures("node")
def test_a_drain_evicts_a_rank_and_does_not_count(team: Team, pods: PodWatch) -> None:
    train(team, on_two_nodes("drained"))
    team.cluster.kubectl(*DRAIN, timeout=300)
    assert uncounted(team, "drained") == {"Evicted": 1}
    assert pods.disruptions("drained-master-0-0") == ["EvictionByEvictionAPI"]
    assert team.get("pod", "drained-master-0-1")["spec"]["nodeName"] == "node-1"
