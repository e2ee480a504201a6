"""What the operators themselves give to the pods of their jobs, worked out from their source.

Each function names the file and the function of the source, at the commit in manifests/NOTICE. Ranks, sizes and
addresses are those of the source; addresses are compared by role and index, because hosts are named otherwise here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

Job = dict[str, Any]
Env = dict[tuple[str, int], dict[str, str]]
"""(role, index) -> variables"""
CPUS = "CPUs of the node"
"""Stands for the number of processes that torchrun starts for `auto` on a node without GPUs."""


def pytorchjob(job: Job) -> Env:
    """kubeflow/training-operator, pkg/controller.v1/pytorch/envvar.go: setPodEnv, getTotalReplicas, getNprocPerNodeInt;
    elastic.go: generateEnvNnodes; defaults by pkg/apis/kubeflow.org/v1/pytorch_defaults.go: setDefaultNprocPerNode."""
    spec = job["spec"]
    specs = spec["pytorchReplicaSpecs"]
    total = sum(own.get("replicas", 1) for own in specs.values())
    processes = str(spec.get("nprocPerNode", "auto"))
    world = total * (int(processes) if processes.isdigit() else 1)
    elastic = spec.get("elasticPolicy")
    out: Env = {}
    for name, own in specs.items():
        for index in range(own.get("replicas", 1)):
            env = {"PET_NPROC_PER_NODE": processes}
            if "Master" in specs:
                rank = str(index + (name == "Worker"))
                env |= {"WORLD_SIZE": str(world), "RANK": rank, "PET_NODE_RANK": rank}
            if elastic:
                env["PET_NNODES"] = f"{elastic['minReplicas']}:{elastic['maxReplicas']}"
            else:
                env["PET_NNODES"] = str(total)
            out[name.lower(), index] = env
    return out


class TfConfig(NamedTuple):
    """A task of TensorFlow."""

    cluster: dict[str, list[str]]
    """Type -> `type-index` of each of its tasks."""
    type: str
    index: int


def tfjob(job: Job) -> dict[tuple[str, int], TfConfig]:
    """kubeflow/training-operator, pkg/controller.v1/tensorflow/tensorflow.go: genClusterSpec, genTFConfigJSONStr."""
    specs = job["spec"]["tfReplicaSpecs"]
    cluster = {
        name.lower(): [f"{name.lower()}-{index}" for index in range(own.get("replicas", 1))]
        for name, own in specs.items()
    }
    return {
        (kind, index): TfConfig(cluster, kind, index) for kind, hosts in cluster.items() for index in range(len(hosts))
    }


def jaxjob(job: Job) -> Env:
    """kubeflow/training-operator, pkg/controller.v1/jax/envvar.go: setPodEnv."""
    number = job["spec"]["jaxReplicaSpecs"]["Worker"].get("replicas", 1)
    return {("worker", index): {"NUM_PROCESSES": str(number), "PROCESS_ID": str(index)} for index in range(number)}


class Mpi(NamedTuple):
    """What mpirun is given."""

    hosts: list[tuple[str, int]]
    """(host, slots) of each line of the hosts file."""
    ranks: int
    """The number after -np."""


def mpijob(job: Job) -> Mpi:
    """kubeflow/mpi-operator, pkg/controller/mpi_job_controller.go: newConfigMap; the same for v1 in
    kubeflow/training-operator, pkg/controller.v1/mpi/mpijob_controller.go: newConfigMap."""
    spec = job["spec"]
    slots = spec.get("slotsPerWorker", 1)
    workers = spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    launcher = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    line = [*(launcher.get("command") or []), *(launcher.get("args") or [])]
    ranks = next(int(line[at + 1]) for at, text in enumerate(line) if text in ("-np", "-n"))
    return Mpi([(f"worker-{index}", slots) for index in range(workers)], ranks)


def trainjob(job: Job, runtime: Job) -> Env:
    """kubeflow/trainer, pkg/runtime/framework/plugins/torch/torch.go: EnforceMLPolicy, getNumCPUPerNode."""
    trainer = job["spec"]["trainer"]
    nodes = trainer.get("numNodes", runtime["spec"]["mlPolicy"].get("numNodes", 1))
    resources = trainer.get("resourcesPerNode") or {}
    gpus = [amount for of in resources.values() for name, amount in of.items() if "gpu" in name]
    processes = str(trainer.get("numProcPerNode", "auto"))
    if processes == "auto" and not gpus:
        requested = (resources.get("requests") or {}).get("cpu") or (resources.get("limits") or {}).get("cpu") or 0
        processes = str(max(1, math.ceil(float(requested))))
    common = {"PET_NNODES": str(nodes), "PET_NPROC_PER_NODE": processes}
    return {("worker", index): {**common, "PET_NODE_RANK": str(index)} for index in range(nodes)}


def flux(job: Job) -> int:
    """kubeflow/trainer, pkg/runtime/framework/plugins/flux: numNodes brokers, each with numProcPerNode processes."""
    trainer = job["spec"]["trainer"]
    return int(trainer["numNodes"]) * int(trainer.get("numProcPerNode", 1))


class Ray(NamedTuple):
    """The nodes of a Ray cluster."""

    workers: int
    entrypoint: str


def rayjob(job: Job) -> Ray:
    """ray-project/kuberay, ray-operator/controllers/ray/utils/util.go: GetWorkerGroupDesiredReplicas."""
    spec = job["spec"]
    groups = spec["rayClusterSpec"].get("workerGroupSpecs") or []
    return Ray(sum(group.get("replicas", 0) * group.get("numOfHosts", 1) for group in groups[:1]), spec["entrypoint"])
