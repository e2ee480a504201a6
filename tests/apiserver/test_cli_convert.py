"""`allranks convert --live` reads jobs of other operators from a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.controlplane import ControlPlane

DEFINED = {
    "pytorchjobs.kubeflow.org": ("PyTorchJob", "v1", "Namespaced"),
    "trainjobs.trainer.kubeflow.org": ("TrainJob", "v1alpha1", "Namespaced"),
    "clustertrainingruntimes.trainer.kubeflow.org": ("ClusterTrainingRuntime", "v1alpha1", "Cluster"),
}
"""The kinds of other operators, without their schema: name of the CRD -> (kind, version, scope)."""
CONTAINER = {"name": "pytorch", "image": "me/train:1", "command": ["torchrun", "train.py"]}


def definition(name: str) -> dict[str, Any]:
    kind, version, scope = DEFINED[name]
    plural, _, group = name.partition(".")
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions = [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}]
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {"group": group, "scope": scope, "names": names, "versions": versions},
    }


@pytest.fixture(scope="module")
def other_operators(control_plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not isinstance(control_plane, ControlPlane):
        pytest.skip("changes no CRDs of another cluster")
    file = tmp_path_factory.mktemp("crds") / "crds.yaml"
    file.write_text(yaml.safe_dump_all([definition(name) for name in DEFINED]))
    assert control_plane.kubectl("create", "-f", str(file)).returncode == 0
    names = [f"crd/{name}" for name in DEFINED]
    assert control_plane.kubectl("wait", "--for=condition=Established", "--timeout=280s", *names).returncode == 0
    yield
    control_plane.kubectl("delete", "--wait=false", *names)


def create(control_plane: ControlPlane, folder: Path, namespace: str, *documents: dict[str, Any]) -> None:
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    done = control_plane.kubectl("create", "-n", namespace, "-f", str(file))
    assert done.returncode == 0, done.stderr


def test_a_Job_of_the_cluster_is_converted_without_what_the_API_server_adds(
    allranks, control_plane, namespace, tmp_path
):
    template = {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}
    spec = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "suspend": True, "template": template}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "mnist"}, "spec": spec}
    create(control_plane, tmp_path, namespace, job)
    result = allranks("convert", "--live", "job/mnist")
    assert (result.exit_code, result.stderr) == (0, "")
    document = yaml.safe_load(result.stdout)
    assert document["metadata"] == {"name": "mnist", "namespace": namespace}
    assert document["spec"] == {
        "framework": "pytorch",
        "image": "me/train:1",
        "command": ["torchrun", "train.py"],
        "roles": {"worker": {"replicas": 2}},
        "pytorch": {"processesPerNode": 1},
        "restart": {"maxRestarts": 6},
        "suspend": True,
    }
    missing = allranks("convert", "--live", "job/other")
    assert missing.exit_code == 1
    assert f"there is no Job other in namespace {namespace}" in missing.stderr


@pytest.mark.usefixtures("other_operators")
def test_jobs_and_their_runtimes_are_read_from_the_cluster(allranks, control_plane, namespace, tmp_path):
    worker = {"replicas": 2, "restartPolicy": "Never", "template": {"spec": {"containers": [CONTAINER]}}}
    own = {"spec": {"containers": [{"name": "node", "image": "me/runtime:1", "command": ["torchrun", "a.py"]}]}}
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    step = {"name": "node", "template": {"metadata": {"labels": labels}, "spec": {"template": own}}}
    runtime = {"mlPolicy": {"torch": {}}, "template": {"spec": {"replicatedJobs": [step]}}}
    name = f"runtime-{namespace}"
    trainer = "trainer.kubeflow.org/v1alpha1"
    create(
        control_plane,
        tmp_path,
        namespace,
        *(
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "metadata": {"name": job},
                "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
            }
            for job in ("a", "b")
        ),
        {"apiVersion": trainer, "kind": "ClusterTrainingRuntime", "metadata": {"name": name}, "spec": runtime},
        {
            "apiVersion": trainer,
            "kind": "TrainJob",
            "metadata": {"name": "c"},
            "spec": {"runtimeRef": {"name": name}, "trainer": {"numNodes": 3}},
        },
    )
    result = allranks("convert", "--live", "pytorchjobs", "trainjob/c")
    assert (result.exit_code, result.stderr) == (0, "")
    documents = {one["metadata"]["name"]: one["spec"] for one in yaml.safe_load_all(result.stdout)}
    assert sorted(documents) == ["a", "b", "c"]
    assert (documents["c"]["image"], documents["c"]["roles"]) == ("me/runtime:1", {"worker": {"replicas": 3}})
    # What was converted is accepted by the API server.
    (tmp_path / "converted.yaml").write_text(result.stdout)
    control_plane.kubectl("delete", "pytorchjobs,trainjobs", "--all", "-n", namespace)
    control_plane.kubectl("create", "-n", namespace, "-f", str(tmp_path / "converted.yaml"))
    assert allranks("get", "-o", "name").stdout.split() == [
        f"distributedtraining.allranks.dev/{job}" for job in ("a", "b", "c")
    ]
