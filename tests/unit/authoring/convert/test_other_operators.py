"""TrainJob, Indexed Job and RayJob, field by field."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from allranks.authoring.convert.documents import convert
from support.builders import table

from .inputs import comments, draft, manifest, result
from .rendered import Rendered


def trainjob(runtime: str = "torch-distributed", **spec: Any) -> dict[str, Any]:
    trainer = {"numNodes": 2, "command": ["torchrun", "train.py"], **spec.pop("trainer", {})}
    reference = {"name": runtime, **spec.pop("reference", {})}
    return manifest("TrainJob", "trainer.kubeflow.org/v1alpha1", runtimeRef=reference, trainer=trainer, **spec)


def test_a_runtime_that_is_not_there_is_named_with_its_cure():
    [(path, message)] = result(trainjob("ours")).problems
    assert path == "spec.runtimeRef"
    assert "`kubectl get clustertrainingruntime ours -o yaml`" in message


def test_patches_of_a_runtime_are_part_of_the_template():
    pod = {"spec": {"nodeSelector": {"a": "b"}, "containers": [{"name": "node", "volumeMounts": []}]}}
    jobs = [{"name": "node", "template": {"spec": {"template": pod}}}]
    patch = {"manager": "me", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}
    made = draft(trainjob(runtimePatches=[patch]))
    assert made.get("template.spec.nodeSelector") == {"a": "b"}
    assert made.dropped == []


@pytest.mark.parametrize(
    "override",
    [
        {"podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": {"a": "b"}}}]},
        {"podSpecOverrides": [{"targetJobs": [{"name": "node"}], "nodeSelector": {"a": "b"}}]},
    ],
    ids=["Trainer 2.1", "Trainer 2.0"],
)
def test_overrides_of_earlier_versions_are_part_of_the_template(override):
    made = draft(trainjob(**override))
    assert made.get("template.spec.nodeSelector") == {"a": "b"}
    assert made.dropped == []


@table(
    ("auto counts CPUs", "auto", {"cpu": 4}, 4),
    ("auto counts GPUs first", "auto", {"cpu": 4, "nvidia.com/gpu": 2}, None),
    ("gpu", "gpu", {"cpu": 4, "nvidia.com/gpu": 2}, None),
    ("cpu beside GPUs", "cpu", {"cpu": 4, "nvidia.com/gpu": 2}, 4),
    ("cpu without a number of CPUs", "cpu", {}, None),
    ("a number", 3, {"cpu": 4}, 3),
)
def test_the_words_of_trainer_2_0_for_processes_mean_the_same(case):
    given, limits, processes = case
    resources = {"resourcesPerNode": {"limits": limits}}
    made = draft(trainjob(trainer={"numProcPerNode": given, **resources}))
    assert (made.get("pytorch.processesPerNode"), made.dropped) == (processes, [])
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": "ours"},
        "spec": {"mlPolicy": {"torch": {"numProcPerNode": given}}, "template": {"spec": {"replicatedJobs": [NODE]}}},
    }
    made = draft(trainjob("ours", reference={"kind": "TrainingRuntime"}, trainer=resources), runtime)
    assert (made.get("pytorch.processesPerNode"), made.dropped) == (processes, [])


NODE = {
    "name": "node",
    "template": {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {"containers": [{"name": "node", "image": "i:1"}]}}},
    },
}


def test_an_override_of_another_job_is_dropped():
    made = draft(trainjob(podSpecOverrides=[{"targetJobs": [{"name": "launcher"}], "nodeSelector": {"a": "b"}}]))
    assert [where for where, _ in made.dropped] == ["spec.podSpecOverrides[0]"]


def test_initializers_become_init_containers():
    given = {
        "dataset": {"storageUri": "hf://me/data", "secretRef": {"name": "token"}},
        "model": {"storageUri": "hf://me/model", "env": [{"name": "A", "value": "1"}]},
    }
    job = trainjob("torchtune-llama3.2-1b", initializer=given, trainer={"numNodes": 1, "command": ["tune", "run", "r"]})
    made = draft(job)
    first, second = made.get("template.spec.initContainers")
    assert first["env"] == [{"name": "STORAGE_URI", "value": "hf://me/data"}]
    assert first["envFrom"] == [{"secretRef": {"name": "token"}}]
    assert second["env"] == [{"name": "STORAGE_URI", "value": "hf://me/model"}, {"name": "A", "value": "1"}]
    assert made.get("template.spec.volumes") == [{"name": "initializer", "emptyDir": {}}]
    assert "Each pod runs the initializers" in comments(made)


def test_what_a_runtime_has_around_its_pods_is_dropped():
    pod = {"spec": {"containers": [{"name": "node", "image": "i:1"}]}}
    step = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"backoffLimit": 1, "template": pod},
        },
    }
    jobset = {"replicatedJobs": [step], "failurePolicy": {"maxRestarts": 4}, "coordinator": {"replicatedJob": "x"}}
    spec = {"mlPolicy": {"torch": {}, "numNodes": 5}, "template": {"spec": jobset}}
    runtime = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime", "metadata": {"name": "ours"}}
    job = trainjob("ours", reference={"kind": "TrainingRuntime"})
    del job["spec"]["trainer"]["numNodes"]
    made = draft(job, {**runtime, "spec": spec})
    assert (made.get("roles.worker.replicas"), made.get("restart.maxRestarts")) == (5, 4)
    place = "TrainingRuntime/ours.spec.template.spec"
    assert [where for where, _ in made.dropped] == [
        f"{place}.replicatedJobs[node].template.spec.backoffLimit",
        f"{place}.coordinator",
    ]


def test_torchtune_loses_its_rendezvous():
    job = trainjob("torchtune-llama3.2-1b")
    del job["spec"]["trainer"]["command"]
    made = draft(job)
    assert made.spec["command"][:4] == ["tune", "run", "full_finetune_distributed", "--config"]
    assert "Removed: --rdzv_endpoint=localhost:29500" in comments(made)


def test_a_JAX_runtime():
    made = draft(trainjob("jax-distributed", trainer={"command": ["python3", "train.py"]}))
    assert (made.spec["framework"], made.get("roles.worker.replicas")) == ("jax", 2)


def test_an_MPI_runtime_has_a_worker_for_each_node():
    job = trainjob("deepspeed-distributed", trainer={"numNodes": 4, "command": ["mpirun", "python", "t.py"]})
    job["spec"]["trainer"]["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": 2}}
    made = draft(job)
    assert (made.spec["framework"], made.get("roles.worker.replicas")) == ("mpi", 4)
    assert Rendered(yaml.safe_dump(made.document)).hostfile() == [(f"worker-{index}", 2) for index in range(4)]


def test_XGBoost_gets_its_tracker_by_the_variables_of_SPMD_programs():
    made = draft(trainjob("xgboost-distributed", trainer={"command": ["python3", "x.py"]}))
    env = Rendered(yaml.safe_dump(made.document)).env("worker", 1)
    assert (env["DMLC_TASK_ID"], env["DMLC_NUM_WORKER"]) == ("1", "2")
    assert env["DMLC_TRACKER_URI"].startswith("mnist-worker-0-")


def indexed(command: list[str], **spec: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1", "command": command}]}}
    pods_ = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "template": template}
    return manifest("Job", "batch/v1", **{**pods_, **spec})


def test_mpirun_behind_a_wrapper_is_the_launchers_command():
    command = ["timeout", "1800", "mpirun", "-np", "4", "python", "t.py"]
    made = draft(trainjob("deepspeed-distributed", trainer={"numNodes": 4, "command": command}))
    assert made.get("roles.launcher.command") == command
    assert made.get("command") is None


def test_an_Indexed_Job_with_torchrun():
    script = "torchrun --nnodes=2 --nproc-per-node=4 --node-rank=$JOB_COMPLETION_INDEX --master-addr=j-0.j train.py"
    rules = [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
    ]
    made = draft(indexed(["bash", "-c", script], backoffLimit=2, podFailurePolicy={"rules": rules}))
    assert made.spec["command"] == ["bash", "-c", "torchrun train.py"]
    assert made.get("pytorch.processesPerNode") == 4
    assert made.spec["restart"] == {"maxRestarts": 2, "rules": [{"exitCodes": [3], "action": "Fail"}]}
    assert made.dropped == []


def test_the_index_of_a_Job_is_the_rank_of_the_pod():
    made = draft(indexed(["torchrun", "train.py", "--shard=$(JOB_COMPLETION_INDEX)"]))
    env = Rendered(yaml.safe_dump(made.document)).env("worker", 1)
    assert env["JOB_COMPLETION_INDEX"] == "1"


def test_an_Indexed_Job_without_torchrun_is_an_SPMD_program():
    made = draft(indexed(["python3", "train.py"], backoffLimitPerIndex=1))
    assert made.spec["framework"] == "spmd"
    assert [where for where, _ in made.dropped] == ["spec.backoffLimitPerIndex"]


def test_a_Job_without_ranks_stays_as_it_is():
    job = indexed(["true"], completionMode="NonIndexed")
    assert [one.draft for one in convert([("file", job)])] == [None]


def ray(**spec: Any) -> dict[str, Any]:
    def group(name: str) -> dict[str, Any]:
        template = {"spec": {"containers": [{"name": name, "image": "rayproject/ray:2.52.0"}]}}
        return {"rayStartParams": {}, "template": template}

    worker = {"groupName": "a", "replicas": 2, "minReplicas": 1, "maxReplicas": 5, **group("ray-worker")}
    cluster = {"headGroupSpec": group("ray-head"), "workerGroupSpecs": [worker], **spec.pop("cluster", {})}
    return manifest("RayJob", "ray.io/v1", **{"entrypoint": "python train.py", "rayClusterSpec": cluster, **spec})


def test_a_RayJob():
    env = "pip: [torch]\nenv_vars:\n  A: 1\n"
    made = draft(ray(runtimeEnvYAML=env, shutdownAfterJobFinishes=True, ttlSecondsAfterFinished=9, backoffLimit=2))
    assert made.spec["roles"] == {
        "head": {"replicas": 1, "command": ["python", "train.py"]},
        "worker": {"replicas": 2},
    }
    assert made.spec["env"] == [{"name": "A", "value": "1"}]
    assert (made.get("restart.maxRestarts"), made.spec["ttlSecondsAfterFinished"]) == (2, 9)
    assert made.spec["packages"] == ["torch"]
    assert made.dropped == []


def test_an_autoscaling_RayJob_is_elastic():
    made = draft(ray(cluster={"enableInTreeAutoscaling": True}))
    assert made.spec["elastic"] == {"minReplicas": 1, "maxReplicas": 5}


@pytest.mark.parametrize(
    ("fields", "path"),
    [({"entrypoint": ""}, "spec.entrypoint"), ({"rayClusterSpec": None}, "spec.rayClusterSpec")],
    ids=["no command", "a cluster that exists"],
)
def test_a_RayJob_that_cannot_be_converted(fields, path):
    assert [where for where, _ in result(ray(**fields)).problems] == [path]
