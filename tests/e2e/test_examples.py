"""Every manifest of examples/ with `kubectl apply`, in restricted pods. Only the image names are changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from .cluster import REPOSITORY, Cluster
from .jobs import Team, example

ELSEWHERE = ("kind: TrainingPool", "kind: TrainingSweep")
"""The pool has a test of its own below, and sweeps have tests on one machine and on an API server."""
JOBS = sorted(
    path.stem
    for path in (REPOSITORY / "examples").glob("*.yaml")
    if not any(word in path.read_text() for word in ELSEWHERE)
)
RESULT = {"lm-transformers": "test loss", "lora-trl": "training loss"}
"""What rank 0 prints at the end, instead of its test accuracy."""
RANK_0 = {
    "penguins-tensorflow-ps": "chief",
    "penguins-horovod-mpi": "launcher",
    "penguins-mpi": "launcher",
    "penguins-ray": "head",
    "penguins-ray-tune": "head",
}
"""The role whose log has the output of rank 0, if it is neither the master nor the worker."""


@pytest.mark.parametrize("name", JOBS)
def test_an_example_trains_to_its_end(team: Team, name: str, cluster: Cluster) -> None:
    [*_, document] = documents = example(name)
    if "/libraries:" in document["spec"]["image"] and "/libraries:" not in cluster.kubectl(
        "get", "nodes", "-o", "json"
    ):
        pytest.skip("the nodes do not have the image libraries: tools/images.sh, tools/image-store.sh")
    job = team.start(documents)
    status = team.completes(job)
    assert status["attempt"] == 0
    first = RANK_0.get(name, "master" if "master" in document["spec"]["roles"] else "worker")
    assert_learned(team.kubectl("logs", f"{job}-{first}-0-0"), RESULT.get(name, "test accuracy"))
    team.kubectl("delete", "dt", job, "--cascade=foreground", timeout=300)
    assert team.left_of(job) == ""


def assert_learned(log: str, result: str = "test accuracy") -> None:
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", log)]
    assert losses[-1] < losses[0], log
    assert result in log


@pytest.fixture
def pool_node(cluster: Cluster) -> Iterator[str]:
    """A node that offers twice the GPUs of the example's pool."""
    label, node = "node.kubernetes.io/instance-type", "node-1"
    cluster.has(node, {"nvidia.com/gpu": "16", "rdma/hca": "16"})
    cluster.kubectl("label", "node", node, f"{label}=h200-8")
    yield node
    cluster.has(node, {"nvidia.com/gpu": "4", "rdma/hca": None})
    cluster.kubectl("label", "node", node, f"{label}-")
    cluster.kubectl("delete", "trainingpool", "h200", "--ignore-not-found")


def test_the_pool_example_trains_on_its_nodes_with_a_process_for_each_gpu(team: Team, pool_node: str) -> None:
    job = team.start(example("trainingpool"))
    team.completes(job)
    pods = [team.get("pod", f"{job}-worker-{index}-0") for index in (0, 1)]
    assert [pod["spec"]["nodeName"] for pod in pods] == [pool_node, pool_node]
    log = team.kubectl("logs", f"{job}-worker-0-0")
    assert "rank 0 of 16: started on cpu (gloo)" in log
    assert_learned(log)


def test_the_addresses_of_ranks_resolve_by_dns(team: Team) -> None:
    job = team.start(
        example("penguins-tensorflow", args=["--epochs=2", "--pause=5"], roles={"worker": {"replicas": 2}})
    )
    team.wait(f"dt/{job}", "--for=condition=Running")
    resolve = "import json, os, socket; print(json.dumps([socket.gethostbyname(a.rpartition(':')[0]) for a in "
    resolve += "json.loads(os.environ['TF_CONFIG'])['cluster']['worker']]))"
    pods = [team.get("pod", f"{job}-worker-{index}-0") for index in (0, 1)]
    found = json.loads(team.run(pods[1]["metadata"]["name"], "python3", "-c", resolve))
    assert found == [pod["status"]["podIP"] for pod in pods]
    team.completes(job)
