"""A drain with disruption budgets, and terminated pods that are collected: both affect all jobs of the cluster.

No other test runs at the same time (tools/e2e.sh).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from .cluster import Cluster
from .jobs import Team, training
from .nodes import until
from .release import install
from .test_kubelets import DRAIN, node, on_two_nodes, pods, train  # noqa: F401  (node, pods: fixtures)

UNTIL_SIGNAL = 'if [ "$ALLRANKS_ROLE" = worker ]; then exit 0; fi; trap "exit 0" USR1; echo ready; sleep 600 & wait'


@pytest.fixture
def budgets(cluster: Cluster) -> Iterator[None]:
    """The operator creates a PodDisruptionBudget for each job."""
    install(cluster, "--set=podDisruptionBudget.jobs=true")
    yield
    install(cluster)


@pytest.mark.usefixtures("budgets", "node", "pods")
def test_with_a_disruption_budget_a_drain_waits_until_the_training_is_complete(team: Team) -> None:
    train(team, on_two_nodes("kept", epochs=25))
    drain = team.cluster.start(*DRAIN, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert drain.stderr
        assert any("would violate the pod's disruption budget" in line for line in drain.stderr)
        status = team.status("kept")
        assert (status["phase"], status["attempt"]) == ("Running", 0)
        status = team.completes("kept")
        assert (status["attempt"], status["restarts"]["disruptions"]) == (0, 0)
        drain.communicate(timeout=300)  # it tries again every five seconds
        assert drain.returncode == 0
    finally:
        drain.kill()
        drain.wait(timeout=300)


@pytest.fixture
def collector(cluster: Cluster) -> Iterator[None]:
    """A second pod garbage collector, which keeps one terminated pod. The default of its threshold is 12,500."""
    command = [cluster.folder / "bin" / "kube-controller-manager", f"--kubeconfig={cluster.kubeconfig}"]
    command += ["--controllers=pod-garbage-collector-controller", "--terminated-pod-gc-threshold=1"]
    with (cluster.folder / "collector.log").open("w") as log:
        process = subprocess.Popen([*command, "--leader-elect=false", "--secure-port=0"], stdout=log, stderr=log)
    yield
    process.terminate()
    process.wait(timeout=300)


@pytest.mark.usefixtures("collector", "pods")
def test_ranks_that_completed_stay_done_when_their_pods_are_collected(team: Team) -> None:
    roles = {"master": {}, "worker": {"replicas": 3}}
    job = team.start(training("collected", "sh", "-c", UNTIL_SIGNAL, roles=roles))
    names = [f"{job}-worker-{index}-0" for index in range(3)]
    team.says(f"{job}-master-0-0", "ready")
    gone = lambda: [name for name in names if team.cluster.ask("-n", team.namespace, "get", "pod", name).returncode]  # noqa: E731
    until(lambda: len(gone()) >= 2, "the garbage collector")
    status = team.status(job)
    assert (status["phase"], status["attempt"], status["roles"]["worker"]["succeeded"]) == ("Running", 0, 3)
    team.signal(f"{job}-master-0-0", "USR1")
    status = team.completes(job)
    assert (status["attempt"], status["restarts"]["counted"], status["restarts"]["disruptions"]) == (0, 0, 0)
