"""The runtimes that Kubeflow Trainer installs by default, for a TrainJob whose runtime is not among the files.

From manifests/base/runtimes of https://github.com/kubeflow/trainer at commit 8c0f505 (after v2.3.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

API_VERSION = "trainer.kubeflow.org/v1alpha1"
VERSION = "Trainer 2.3"
STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
_IMAGES = "ghcr.io/kubeflow/trainer"


def published(name: str) -> dict[str, Any] | None:
    """Return the default ClusterTrainingRuntime of a name; None if Trainer installs none of this name."""
    policy, jobs = _RUNTIMES.get(name, (None, None))
    if policy is None or jobs is None:
        return None
    template: dict[str, Any] = {"spec": {"replicatedJobs": list(jobs)}}
    if name.startswith("torchtune-"):
        template["spec"]["volumeClaimPolicies"] = [{"templates": [_CLAIM]}]
    return {
        "apiVersion": API_VERSION,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name},
        "spec": {"mlPolicy": {"numNodes": 1, **policy}, "template": template},
    }


_CLAIM = {
    "metadata": {"name": "initializer"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}},
}
_WORKSPACE = [{"name": "initializer", "mountPath": "/workspace"}]


def _step(name: str, step: str, pod: Mapping[str, Any], after: Iterable[str] = ()) -> dict[str, Any]:
    template: dict[str, Any] = {"spec": {"template": {"spec": dict(pod)}}}
    if step:
        template["metadata"] = {"labels": {STEP_LABEL: step}}
    depends = [{"name": step_before, "status": "Complete"} for step_before in after]
    return {"name": name, "template": template} | ({"dependsOn": depends} if depends else {})


def _container(name: str, image: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": image, **fields}


def _node(image: str, **fields: Any) -> dict[str, Any]:
    return _step("node", "trainer", {"containers": [_container("node", image, **fields)]})


def _mpi(image: str) -> list[dict[str, Any]]:
    user = {"securityContext": {"runAsUser": 1000}}
    daemon = {"command": ["/usr/sbin/sshd"], "args": ["-De", "-f", "/home/mpiuser/.sshd_config"]}
    probe = {"readinessProbe": {"tcpSocket": {"port": 2222}, "initialDelaySeconds": 5}}
    group = {"securityContext": {"fsGroup": 1000}}
    node = _step("node", "", {**group, "containers": [_container("node", image, **user, **daemon, **probe)]})
    launcher = _step("launcher", "trainer", {**group, "containers": [_container("node", image, **user)]})
    return [node, launcher]


def _tune(config: str, model: str, *tokenizer: str) -> list[dict[str, Any]]:
    def initializer(kind: str, uri: str) -> dict[str, Any]:
        env = [{"name": "STORAGE_URI", "value": uri}]
        container = _container(kind, f"{_IMAGES}/{kind}", env=env, volumeMounts=_WORKSPACE)
        return _step(kind, kind, {"containers": [container]})

    command = ["tune", "run", "--rdzv_endpoint=localhost:29500", "full_finetune_distributed", "--config", config]
    data = ["dataset=torchtune.datasets.instruct_dataset", "dataset.source=parquet"]
    paths = ["dataset.data_dir=/workspace/dataset/data", "output_dir=/workspace/output", *tokenizer]
    paths.append("checkpointer.checkpoint_dir=/workspace/model")
    container = _container(
        "node",
        f"{_IMAGES}/torchtune-trainer",
        command=[*command, *data, *paths],
        resources={"limits": {"nvidia.com/gpu": 2}},
        volumeMounts=_WORKSPACE,
    )
    steps = [initializer("dataset-initializer", "hf://tatsu-lab/alpaca"), initializer("model-initializer", model)]
    return [*steps, _step("node", "trainer", {"containers": [container]}, [step["name"] for step in steps])]


_MPI_POLICY = {
    "mpi": {
        "numProcPerNode": 1,
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": "/home/mpiuser/.ssh",
        "runLauncherAsNode": True,
    }
}
_LLAMA = "tokenizer.path=/workspace/model/original/tokenizer.model"
_QWEN = ("tokenizer.path=/workspace/model/vocab.json", "tokenizer.merges_file=/workspace/model/merges.txt")
_RUNTIMES: Mapping[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "torch-distributed": ({"torch": {}}, [_node("pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime")]),
    "jax-distributed": ({"jax": {}}, [_node("nvcr.io/nvidia/jax:25.10-py3")]),
    "xgboost-distributed": ({"xgboost": {}}, [_node(f"{_IMAGES}/xgboost-runtime")]),
    "deepspeed-distributed": (_MPI_POLICY, _mpi(f"{_IMAGES}/deepspeed-runtime")),
    "mlx-distributed": (_MPI_POLICY, _mpi(f"{_IMAGES}/mlx-runtime")),
    "torchtune-llama3.2-1b": (
        {"torch": {}},
        _tune("llama3_2/1B_full", "hf://meta-llama/Llama-3.2-1B-Instruct", _LLAMA),
    ),
    "torchtune-llama3.2-3b": (
        {"torch": {}},
        _tune("llama3_2/3B_full", "hf://meta-llama/Llama-3.2-3B-Instruct", _LLAMA),
    ),
    "torchtune-qwen2.5-1.5b": ({"torch": {}}, _tune("qwen2_5/1.5B_full", "hf://Qwen/Qwen2.5-1.5B-Instruct", *_QWEN)),
}
