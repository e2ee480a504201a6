"""PyTorchJob and TFJob, field by field: the result, its comments, and what is dropped."""

from __future__ import annotations

from typing import Any

from support.builders import table

from .inputs import comments, draft, manifest, pods, pytorch, result

OWN = "kubeflow.org/training-operator"


# Sentence, fields of a PyTorchJob, field of the result, its value, comment, dropped.
PYTORCH: list[tuple[str, dict[str, Any], str, Any, str, list[str]]] = [
    (
        "restartPolicy Never allows no restart",
        {"worker": pods(policy="Never")},
        "restart.maxRestarts",
        0,
        "restartPolicy Never: a failure of the program ends the job",
        [],
    ),
    (
        "restartPolicy OnFailure had no limit",
        {"worker": pods(policy="OnFailure")},
        "restart.maxRestarts",
        3,
        "restartPolicy OnFailure restarted single pods or containers without a limit",
        [],
    ),
    (
        "restartPolicy ExitCode makes 1 to 127 permanent",
        {"worker": pods(policy="ExitCode"), "runPolicy": {"backoffLimit": 5}},
        "restart",
        {"rules": [{"exitCodes": list(range(1, 128)), "action": "Fail"}], "maxRestarts": 5},
        "exit codes of 1 to 127 are permanent errors",
        [],
    ),
    (
        "backoffLimit is the number of restarts",
        {"runPolicy": {"backoffLimit": 7}},
        "restart.maxRestarts",
        7,
        "here a failure of a rank restarts all ranks",
        [],
    ),
    ("cleanPodPolicy stays", {"runPolicy": {"cleanPodPolicy": "All"}}, "cleanPodPolicy", "All", "", []),
    ("a TTL stays", {"runPolicy": {"ttlSecondsAfterFinished": 60}}, "ttlSecondsAfterFinished", 60, "", []),
    (
        "a deadline stays",
        {"runPolicy": {"activeDeadlineSeconds": 60}},
        "activeDeadlineSeconds",
        60,
        "Time in which the job is suspended does not count",
        [],
    ),
    ("suspend stays", {"runPolicy": {"suspend": True}}, "suspend", True, "", []),
    ("its own managedBy is left out", {"runPolicy": {"managedBy": OWN}}, "managedBy", None, "", []),
    (
        "another manager is kept with a comment",
        {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}},
        "managedBy",
        "kueue.x-k8s.io/multikueue",
        "has to support DistributedTraining",
        [],
    ),
    (
        "a priority class is kept, gang scheduling is dropped",
        {"runPolicy": {"schedulingPolicy": {"priorityClass": "high", "queue": "q", "minAvailable": 2}}},
        "scheduling",
        {"priorityClassName": "high"},
        "",
        ["spec.runPolicy.schedulingPolicy.queue", "spec.runPolicy.schedulingPolicy.minAvailable"],
    ),
    (
        "an option of torchrun that connects nodes is removed",
        {"worker": pods(command=["torchrun", "--nnodes", "2", "--node_rank=$(RANK)", "train.py", "--nnodes", "9"])},
        "command",
        ["torchrun", "train.py", "--nnodes", "9"],
        "Removed: --nnodes 2, --node_rank=$(RANK)",
        [],
    ),
    (
        "options are removed from command and args",
        {"worker": pods(command=["torchrun", "--rdzv-id=1"], args=["--nproc-per-node=4", "train.py"])},
        "pytorch.processesPerNode",
        4,
        "Removed: --rdzv-id=1, --nproc-per-node=4",
        [],
    ),
    (
        "options are removed from the script of a shell",
        {"worker": pods(command=["bash", "-c", 'cd /x && torchrun --nnodes=2 --master_addr "$MASTER_ADDR" train.py'])},
        "command",
        ["bash", "-c", "cd /x && torchrun train.py"],
        "Removed: --nnodes=2, --master_addr",
        [],
    ),
    (
        "a substitution is one word",
        {"worker": pods(command=["sh", "-c", "torchrun --rdzv_endpoint=$(hostname -i | cut -d' ' -f1):1 a.py; sync"])},
        "command",
        ["sh", "-c", "torchrun a.py; sync"],
        "Removed: --rdzv_endpoint=$(hostname -i | cut -d' ' -f1):1",
        [],
    ),
    (
        "options of other programs in a script stay",
        {"worker": pods(command=["sh", "-c", "shard --nnodes 2; torchrun --rdzv_id 1 a.py --max_restarts 5 && b"])},
        "command",
        ["sh", "-c", "shard --nnodes 2; torchrun a.py --max_restarts 5 && b"],
        "Removed: --rdzv_id 1",
        [],
    ),
    (
        "options in a variable of a script stay",
        {"worker": pods(command=["sh", "-c", 'A="--nnodes 2 --rdzv_id 1"\ntorchrun $A a.py'])},
        "command",
        ["sh", "-c", 'A="--nnodes 2 --rdzv_id 1"\ntorchrun $A a.py'],
        "",
        [],
    ),
    (
        "a number of processes that only the pod knows stays in the command",
        {"worker": pods(command=["torchrun", "--nproc-per-node=$(PROCS)", "--nnodes=2", "a.py"])},
        "command",
        ["torchrun", "--nproc-per-node=$(PROCS)", "a.py"],
        "Set pytorch.processesPerNode to the value of --nproc-per-node=$(PROCS)",
        [],
    ),
    (
        "a number of processes of the operator's variable is the job's",
        {"worker": pods(command=["torchrun", "--nproc_per_node=$(PET_NPROC_PER_NODE)", "a.py"]), "nprocPerNode": "4"},
        "pytorch.processesPerNode",
        4,
        "Removed: --nproc_per_node=$(PET_NPROC_PER_NODE)",
        [],
    ),
    ("a number of processes stays", {"nprocPerNode": "2"}, "pytorch.processesPerNode", 2, "", []),
    (
        "a plain program is one process for all GPUs of its pod",
        {"worker": pods(resources={"limits": {"nvidia.com/gpu": 4}})},
        "pytorch.processesPerNode",
        1,
        "WORLD_SIZE is the number of pods",
        [],
    ),
    (
        "an unknown entrypoint may run torchrun",
        {"worker": pods(command=None, resources={"limits": {"nvidia.com/gpu": 4}})},
        "pytorch.processesPerNode",
        "Auto",
        "if the image's entrypoint runs torchrun",
        [],
    ),
    (
        "auto without GPUs meant the CPUs of the node",
        {"worker": pods(command=["torchrun", "train.py"])},
        "pytorch.processesPerNode",
        "Auto",
        "one process for each CPU of the node",
        [],
    ),
    (
        "auto with GPUs is the default",
        {"worker": pods(command=["torchrun", "train.py"], resources={"limits": {"nvidia.com/gpu": 4}})},
        "pytorch",
        None,
        "",
        [],
    ),
    (
        "a port is kept",
        {"worker": pods(ports=[{"name": "pytorchjob-port", "containerPort": 1234}])},
        "pytorch.port",
        1234,
        "",
        [],
    ),
    (
        "a sidecar stays beside the training container",
        {"worker": pods(pod={"initContainers": [{"name": "init", "image": "i", "command": ["true"]}]})},
        "template",
        {"spec": {"initContainers": [{"name": "init", "image": "i", "command": ["true"]}]}},
        "",
        [],
    ),
    (
        "a variable that connects ranks is removed",
        {"worker": pods(env=[{"name": "MASTER_ADDR", "value": "x"}, {"name": "A", "value": "1"}])},
        "env",
        [{"name": "A", "value": "1"}],
        "",
        ["spec.pytorchReplicaSpecs.Worker.template.spec.containers[trainer].env[MASTER_ADDR]"],
    ),
    (
        "the token of a service account is mounted as before",
        {"worker": pods(pod={"serviceAccountName": "me"})},
        "template.spec",
        {"serviceAccountName": "me", "automountServiceAccountToken": True},
        "",
        [],
    ),
    (
        "elastic bounds stay, and torchrun's restarts",
        {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 9, "rdzvBackend": "c10d", "rdzvPort": 1}},
        "elastic",
        {"minReplicas": 1, "maxReplicas": 4},
        "rdzv* are not needed",
        [],
    ),
    (
        "one of two limits of restarts is dropped",
        {"elasticPolicy": {"maxRestarts": 5}, "runPolicy": {"backoffLimit": 2}},
        "restart.maxRestarts",
        2,
        "",
        ["spec.elasticPolicy.maxRestarts"],
    ),
    (
        "an etcd rendezvous is dropped",
        {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4, "rdzvBackend": "etcd", "rdzvHost": "etcd-client"}},
        "elastic.maxReplicas",
        4,
        "",
        ["spec.elasticPolicy.rdzvBackend"],
    ),
    (
        "a number of workers outside the bounds is moved into them",
        {"elasticPolicy": {"minReplicas": 3, "maxReplicas": 4}},
        "roles.worker.replicas",
        3,
        "2 is not between minReplicas and maxReplicas",
        [],
    ),
    ("an unknown field is dropped", {"unheardOf": {"x": [1]}}, "framework", "pytorch", "", ["spec.unheardOf"]),
]  # fmt: skip


@table(*PYTORCH)
def test_a_PyTorchJob(case):
    fields, path, value, comment, dropped = case
    made = draft(pytorch(**fields))
    assert made.get(path) == value
    assert comment in comments(made)
    assert [where for where, _ in made.dropped] == dropped


def test_fields_that_differ_between_roles_stay_in_the_roles():
    specs = {"Master": pods(replicas=1, resources={"limits": {"cpu": 1}}), "Worker": pods(command=["python3", "w.py"])}
    spec = draft(pytorch(pytorchReplicaSpecs=specs)).spec
    assert spec["image"] == "me/train:1"
    assert "command" not in spec
    assert spec["roles"] == {
        "master": {"replicas": 1, "command": ["python3", "train.py"], "resources": {"limits": {"cpu": 1}}},
        "worker": {"replicas": 2, "command": ["python3", "w.py"]},
    }


def test_metrics_become_an_autoscaler_of_the_job():
    metrics = [{"type": "Resource", "resource": {"name": "cpu"}}]
    made = draft(pytorch(elasticPolicy={"minReplicas": 1, "maxReplicas": 4, "metrics": metrics}))
    target = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "name": "mnist"}
    spec = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 4, "metrics": metrics}
    metadata = {"name": "mnist", "namespace": "team"}
    assert made.further == [
        {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}
    ]


def test_what_the_API_server_adds_is_left_out():
    job = pytorch()
    job["metadata"] |= {"uid": "u", "resourceVersion": "1", "managedFields": [{}], "creationTimestamp": "t"}
    job["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    job["status"] = {"conditions": []}
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"] = {"creationTimestamp": None}
    made = draft(job)
    assert made.dropped == []
    assert made.document["metadata"] == {"name": "mnist", "namespace": "team"}
    assert "template" not in made.spec


# Sentence, fields of a TFJob, field of the result, its value, comment, dropped.
TENSORFLOW: list[tuple[str, dict[str, Any], str, Any, str, list[str]]] = [
    (
        "Master is the chief",
        {"Master": pods("tensorflow", 1), "Worker": pods("tensorflow")},
        "roles",
        {"chief": {"replicas": 1}, "worker": {"replicas": 2}},
        "also as the type of the task in TF_CONFIG",
        [],
    ),
    (
        "AllWorkers waits for all workers",
        {"Worker": pods("tensorflow"), "successPolicy": "AllWorkers"},
        "success",
        "worker",
        "",
        [],
    ),
    (
        "a chief decides, whatever the successPolicy is",
        {"Chief": pods("tensorflow", 1), "Worker": pods("tensorflow"), "successPolicy": "AllWorkers"},
        "success",
        None,
        "",
        [],
    ),
    (
        "dynamic workers are dropped",
        {"Worker": pods("tensorflow"), "enableDynamicWorker": True},
        "framework",
        "tensorflow",
        "",
        ["spec.enableDynamicWorker"],
    ),
    (
        "the evaluator is outside of the cluster of the others",
        {"Worker": pods("tensorflow"), "Evaluator": pods("tensorflow", 1)},
        "roles.evaluator.replicas",
        1,
        "The evaluator is in TF_CONFIG's cluster only of itself",
        [],
    ),
    ("names of roles ignore case", {"worker": pods("tensorflow")}, "roles.worker.replicas", 2, "", []),
]


@table(*TENSORFLOW)
def test_a_TFJob(case):
    fields, path, value, comment, dropped = case
    roles = ("Master", "Chief", "Worker", "worker", "Evaluator")
    specs = {name: fields[name] for name in fields if name in roles}
    others = {name: fields[name] for name in fields if name not in roles}
    made = draft(manifest("TFJob", tfReplicaSpecs=specs, **others))
    assert made.get(path) == value
    assert comment in comments(made)
    assert [where for where, _ in made.dropped] == dropped


def job_with_a_wrong_name() -> dict[str, Any]:
    job = manifest("TrainJob", "trainer.kubeflow.org/v1alpha1", runtimeRef={"name": "torch-distributed"})
    job["spec"]["trainer"] = {"env": [{"name": 1}], "command": ["python3", "train.py"]}
    return job


# Sentence, a document, (path, message).
MISTAKES: list[tuple[str, dict[str, Any], str, str]] = [
    ("a role without containers", pytorch({"template": {}}), "template.spec.containers", "a container is needed"),
    (
        "the pod of a role above the role",
        manifest("TFJob", tfReplicaSpecs={"Worker": {"replicas": 2}, **pods("tensorflow"), "restartPolicy": "Never"}),
        "spec.tfReplicaSpecs.template",
        "belongs into each role, one level deeper: spec.tfReplicaSpecs.Worker.template and "
        "spec.tfReplicaSpecs.Worker.restartPolicy",
    ),
    (
        "the restartPolicy of a role in the job",
        manifest("PyTorchJob", pytorchReplicaSpecs={"Worker": pods()}, restartPolicy="Never"),
        "spec.restartPolicy",
        "belongs into each role, one level deeper: spec.pytorchReplicaSpecs.Worker.restartPolicy",
    ),
    ("a text for a map", pytorch(runPolicy="x"), "spec.runPolicy", "must be a map, not a string"),
    ("a word for a number", pytorch(pods(replicas="two")), "replicas", "must be a whole number, not two"),  # type: ignore[arg-type]
    ("roles that are missing", manifest("MPIJob", mpiReplicaSpecs={}), "mpiReplicaSpecs", "has none of the roles"),
    ("a worker alone", manifest("MPIJob", mpiReplicaSpecs={"Worker": pods()}), "Launcher", "is needed"),
    ("a text for a list in a pod", pytorch(pods(env="x")), "containers[0].env", "must be a list"),
    ("any other wrong type", job_with_a_wrong_name(), "spec", "a field has a type that no TrainJob has"),
    (
        "two chiefs",
        manifest("TFJob", tfReplicaSpecs={"Chief": pods("tensorflow"), "Master": pods("tensorflow")}),
        "spec.tfReplicaSpecs",
        "has both a Chief and a Master",
    ),
]


@table(*MISTAKES)
def test_a_mistake_is_named_with_its_path(case):
    document, path, message = case
    [(where, text)] = result(document).problems
    assert where.endswith(path)
    assert message in text


def test_the_comment_on_restarts_says_which_role_ended_the_job():
    specs = {"Chief": pods("tensorflow", 1, policy="Never"), "Worker": pods("tensorflow", policy="OnFailure")}
    text = comments(draft(manifest("TFJob", tfReplicaSpecs=specs)))
    assert "restartPolicy OnFailure restarted single pods or containers without a limit" in text
    assert "with Never a failure of chief ended the job" in text
