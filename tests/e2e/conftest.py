"""Everything below this folder needs nodes that run containers: `pytest -m e2e` runs it, as root.

ALLRANKS_E2E=DIR takes the cluster that `tools/cluster.sh up --dir DIR` started, with the images, and leaves it running.
ALLRANKS_TEST_CLUSTER=yes and KUBECONFIG take any other, which pulls ALLRANKS_E2E_IMAGES=PREFIX:TAG by itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import REPOSITORY, SCRIPT, Cluster
from .jobs import GIVEN, TAG, Team
from .release import NAMESPACE, install

HERE = Path(__file__).parent
KEPT = REPOSITORY / "build" / "e2e"
"""Where everything about a test that failed is written to."""

IMAGES = ("operator", "pytorch", "tensorflow", "horovod")
ON_SECOND_NODE = ("operator", "pytorch")
"""An image takes room, and time to load, on every node that has it. The second one is cordoned until it is needed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(3600))  # the first one builds images else 1800))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes that each say that they have four GPUs, the images, and the operator by its chart."""
    lent = os.environ.get("ALLRANKS_TEST_CLUSTER") == "yes" and os.environ.get("KUBECONFIG")
    running = os.environ.get("ALLRANKS_E2E")
    if lent:
        cluster = Cluster(None, Path(lent))
    elif os.geteuid() != 0:
        pytest.skip("only root may start nodes")
    else:
        cluster = Cluster(Path(running) if running else tmp_path_factory.mktemp("e2e") / "cluster")
    try:
        if not lent and not running:
            cluster.up("--nodes", "2", "--gpus", "4")
            if not GIVEN:
                give(cluster, "node-1", *IMAGES)
                give(cluster, "node-2", *ON_SECOND_NODE)
        if not lent:
            cluster.ask("cordon", "node-2")
        install(cluster)
        yield cluster
    finally:
        if not lent and not running:
            cluster.down()


def give(cluster: Cluster, node: str, *images: str) -> None:
    """Builds images, as far as they are not, and loads them. PyTorch goes without CUDA here, which takes 4 GB."""
    into = f"{SCRIPT} load --on {node} - --dir {cluster.folder}"
    command = [REPOSITORY / "tools" / "images.sh", "--tag", TAG, "--build-arg", "TEST_ONLY_STUB_CUDA=1", "--into", into]
    subprocess.run([*command, *images], stdout=subprocess.DEVNULL, check=True, timeout=3000)


@pytest.fixture
def team(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Team]:
    """A namespace that lets only restricted pods in."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    metadata = {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    failures = request.session.testsfailed
    yield Team(cluster, name)
    if request.session.testsfailed > failures:
        keep(cluster, name, request.node.name)
    cluster.kubectl("delete", "namespace", name, "--wait=true", timeout=180)


def keep(cluster: Cluster, namespace: str, test: str) -> None:
    """All that the cluster knows of a failed test's namespace, and what the operator said."""
    folder = KEPT / re.sub(r"\W+", "-", test)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    asked = {
        "objects.txt": ("get", "dt,pods,services,pvc,events", "-o", "wide", "-n", namespace),
        "jobs.yaml": ("get", "dt", "-o", "yaml", "-n", namespace),
        "pods.yaml": ("get", "pods", "-o", "yaml", "-n", namespace),
        "nodes.txt": ("describe", "nodes"),
        "operator.log": (
            "logs",
            "-n",
            NAMESPACE,
            "-l",
            "app.kubernetes.io/name=allranks",
            "--tail=-1",
            "--prefix",
        ),
    }
    for pod in cluster.ask("get", "pods", "-o", "name", "-n", namespace).stdout.split():
        asked[f"{pod.removeprefix('pod/')}.log"] = ("logs", pod, "--all-containers", "-n", namespace)
    for name, arguments in asked.items():
        done = cluster.ask(*arguments)
        (folder / name).write_text(done.stdout + done.stderr)
    print(f"kept in {folder.relative_to(REPOSITORY)}")
