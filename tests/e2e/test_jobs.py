"""Examples in real pods: the chart installs the operator's image, kubelet starts the ranks, DNS lets them meet.

Set ALLRANKS_E2E to the folder of a cluster that runs already and has the images (tools/cluster.sh up --dir, load): then
nothing is built or loaded, and the cluster is left running.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from allranks.version import __version__

from .cluster import REPOSITORY, Cluster

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may start nodes")

EXAMPLES = REPOSITORY / "examples"
IMAGES = ("operator", "pytorch", "tensorflow", "horovod")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node that says that it has four GPUs, the images, and the operator by its chart."""
    given = os.environ.get("ALLRANKS_E2E")
    cluster = Cluster(Path(given) if given else tmp_path_factory.mktemp("e2e") / "cluster")
    try:
        cluster.up("--gpus", "4")
        if not given:
            folder = tmp_path_factory.mktemp("images")
            subprocess.run(
                [REPOSITORY / "tools" / "images.sh", "--push-tar", folder, *IMAGES], check=True, timeout=3000
            )
            for image in IMAGES:
                done = cluster.script("load", str(folder / f"{image}.tar"))
                assert done.returncode == 0, done.stderr
                (folder / f"{image}.tar").unlink()  # gigabytes
        install(cluster)
        yield cluster
    finally:
        if not given:
            cluster.down()


def install(cluster: Cluster) -> None:
    helm = subprocess.run([REPOSITORY / "tools" / "helm.sh"], stdout=subprocess.PIPE, text=True, check=True)
    command = [f"{helm.stdout.strip()}/helm", "upgrade", "--install", "allranks", REPOSITORY / "charts" / "allranks"]
    command += ["--namespace=allranks-system", "--create-namespace", f"--set=image.tag={__version__}", "--wait"]
    env = {**os.environ, "KUBECONFIG": f"{cluster.folder}/kubeconfig"}
    done = subprocess.run([*command, "--timeout=120s"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + cluster.ask("get", "pods,events", "-A").stdout


@pytest.fixture
def team(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace that lets only restricted pods in."""
    name = f"e2e-{abs(hash(request.node.name)) % 10**8}"
    metadata = {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=true", timeout=120)


def example(name: str, **spec: Any) -> list[dict[str, Any]]:
    """The documents of an example, with the image that was loaded, and parts of its spec replaced."""
    text = (EXAMPLES / f"{name}.yaml").read_text().replace(":latest", f":{__version__}")
    documents = [document for document in yaml.safe_load_all(text) if document]
    for document in documents:
        if document["kind"] == "DistributedTraining":
            document["spec"] |= spec
    return documents


def start(cluster: Cluster, namespace: str, documents: list[dict[str, Any]]) -> str:
    """The job's name."""
    text = "---\n".join(json.dumps(document) for document in documents)
    cluster.kubectl("apply", "-n", namespace, "-f", "-", input=text.replace("}---\n", "}\n---\n"))
    [job] = [d["metadata"]["name"] for d in documents if d["kind"] == "DistributedTraining"]
    return str(job)


def status(cluster: Cluster, namespace: str, job: str) -> dict[str, Any]:
    return dict(json.loads(cluster.kubectl("get", "dt", job, "-n", namespace, "-o", "json"))["status"])


@pytest.mark.parametrize("name", ["penguins-pytorch", "penguins-tensorflow", "penguins-horovod"])
def test_an_example_trains_in_restricted_pods_to_its_end(cluster: Cluster, team: str, name: str) -> None:
    job = start(cluster, team, example(name))
    cluster.wait("--for=condition=Complete", f"dt/{job}", "-n", team, seconds=420)
    first = "master" if name == "penguins-pytorch" else "worker"
    log = cluster.kubectl("logs", f"{job}-{first}-0-0", "-n", team)
    assert "test accuracy" in log, log[-2000:]
    cluster.kubectl("delete", "dt", job, "-n", team, "--cascade=foreground", timeout=120)
    left = cluster.kubectl("get", "pods,services,configmaps,secrets", "-n", team, "-l", f"allranks.dev/job-name={job}")
    assert left == ""


def test_a_rank_that_is_killed_in_its_container_takes_all_back_to_the_checkpoint(cluster: Cluster, team: str) -> None:
    job = start(cluster, team, example("penguins-pytorch", args=["--epochs=12", "--pause=1"]))
    cluster.eventually("logs", f"{job}-master-0-0", "-n", team, contains="epoch 3/12", seconds=240)
    # By hand, as a fault would: the training process, not torchrun.
    cluster.kubectl(
        "exec", f"{job}-worker-1-0", "-n", team, "--", "pkill", "-9", "-f", "python.* train/penguins_pytorch.py"
    )
    cluster.wait("--for=condition=Complete", f"dt/{job}", "-n", team, seconds=420)
    seen = status(cluster, team, job)
    assert seen["restarts"]["counted"] == 1
    assert (seen["lastFailure"]["role"], seen["lastFailure"]["index"], seen["lastFailure"]["signal"]) == (
        "worker",
        1,
        9,
    )
    assert "resumed from epoch" in cluster.kubectl("logs", f"{job}-master-0-1", "-n", team)


def test_more_gpus_than_there_are_is_told_in_the_schedulers_words(cluster: Cluster, team: str) -> None:
    resources = {"limits": {"nvidia.com/gpu": 8}}
    job = start(cluster, team, example("penguins-pytorch", resources=resources))
    cluster.eventually("get", "dt", job, "-n", team, "-o", "json", contains="Insufficient nvidia.com/gpu", seconds=30)


def test_an_image_that_does_not_exist_is_told(cluster: Cluster, team: str) -> None:
    job = start(cluster, team, example("penguins-pytorch", image="ghcr.io/allranks/pytorch:nowhere"))
    cluster.eventually("get", "dt", job, "-n", team, "-o", "json", contains="ErrImagePull", seconds=90)


def test_the_operator_may_go_in_the_midst_of_it(cluster: Cluster, team: str) -> None:
    job = start(cluster, team, example("penguins-pytorch", args=["--epochs=5"]))
    cluster.kubectl("delete", "pods", "-n", "allranks-system", "--all", "--force", "--grace-period=0")
    cluster.wait("--for=condition=Complete", f"dt/{job}", "-n", team, seconds=420)
    assert status(cluster, team, job)["attempt"] == 0
