"""Every kind of job that people have: what becomes of it, or the sentence that says why nothing does."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from allranks.cli.main import cli
from support.builders import table

from .inputs import comments, draft, manifest, pods, pytorch, result
from .rendered import Rendered

TEMPLATE = {"spec": {"containers": [{"name": "t", "image": "me/train:1", "command": ["torchrun", "train.py"]}]}}
GPUS = {"limits": {"nvidia.com/gpu": 8}}


def run(command: str, text: str) -> Result:
    return CliRunner().invoke(cli, [command, "-"], input=text)


def of(*documents: Any) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False)


def pod(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{**TEMPLATE["spec"]["containers"][0], **container}]}}


def indexed(template: dict[str, Any], number: int = 2) -> dict[str, Any]:
    spec = {"completionMode": "Indexed", "completions": number, "parallelism": number, "template": template}
    return manifest("Job", "batch/v1", **spec)


def jobset(*jobs: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return manifest("JobSet", "jobset.x-k8s.io/v1alpha2", replicatedJobs=list(jobs), **spec)


def replicated(name: str, replicas: int, pods: int) -> dict[str, Any]:
    return {
        "name": name,
        "replicas": replicas,
        "template": {"spec": {"parallelism": pods, "completions": pods, "template": TEMPLATE}},
    }


def volcano(plugins: dict[str, Any], **replicas: int) -> dict[str, Any]:
    template = TEMPLATE if "pytorch" in plugins else pod(command=["python3", "train.py"])
    tasks = [{"name": name, "replicas": number, "template": template} for name, number in replicas.items()]
    total = sum(replicas.values())
    return manifest("Job", "batch.volcano.sh/v1alpha1", minAvailable=total, plugins=plugins, tasks=tasks)


def sweep_of(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(run("convert", text).stdout)
    return loaded


HYPERPOD = manifest(
    "HyperPodPyTorchJob",
    "sagemaker.amazonaws.com/v1",
    nprocPerNode="4",
    runPolicy={"jobMaxRetryCount": 9, "cleanPodPolicy": "All"},
    replicaSpecs=[{"name": "pods", "replicas": 2, "template": pod(command=["hyperpodrun", "--nnodes=2", "a.py"])}],
)


@table(
    ("a JobSet has the pods of all its replicas", jobset(replicated("w", 2, 3)), "roles.worker.replicas", 6),
    (
        "a JobSet restarts as often as before",
        jobset(replicated("w", 1, 2), failurePolicy={"maxRestarts": 4}),
        "restart.maxRestarts",
        4,
    ),
    (
        "the plugin pytorch of Volcano has a master",
        volcano({"pytorch": ["--master=lead", "--worker=w"]}, lead=1, w=2),
        "roles",
        {"master": {"replicas": 1}, "worker": {"replicas": 2}},
    ),
    (
        "the plugin tensorflow of Volcano has parameter servers",
        volcano({"tensorflow": []}, ps=1, worker=2),
        "roles",
        {"worker": {"replicas": 2}, "ps": {"replicas": 1}},
    ),
    ("hyperpodrun is torchrun", HYPERPOD, "command", ["torchrun", "a.py"]),
    ("HyperPod names the number of processes", HYPERPOD, "pytorch.processesPerNode", 4),
    ("HyperPod counts retries", HYPERPOD, "restart.maxRestarts", 9),
    (
        "kubedl has the policies in spec",
        manifest("PyTorchJob", "training.kubedl.io/v1alpha1", pytorchReplicaSpecs={"Worker": pods()}, backoffLimit=7),
        "restart.maxRestarts",
        7,
    ),
    (
        "an early MPIJob has the policies in spec",
        manifest(
            "MPIJob",
            "kubeflow.org/v1alpha2",
            mpiReplicaSpecs={"Launcher": pods("l", 1, command=["mpirun", "-np", "2", "a"]), "Worker": pods("w")},
            ttlSecondsAfterFinished=5,
        ),
        "ttlSecondsAfterFinished",
        5,
    ),
    (
        "XGBoost's ranks begin with the master",
        manifest("XGBoostJob", xgbReplicaSpecs={"Worker": pods(), "Master": pods(replicas=1)}),
        "spmd",
        {"ranks": ["master", "worker"], "processesPerPod": 1},
    ),
    (
        "Paddle's launcher finds the others by PADDLE_MASTER",
        manifest(
            "PaddleJob",
            paddleReplicaSpecs={"Worker": pods(command=["python3", "-m", "paddle.distributed.launch", "a.py"])},
        ),
        "env",
        [
            {"name": "PADDLE_MASTER", "value": "$(MASTER_ADDR):$(MASTER_PORT)"},
            {"name": "PADDLE_NNODES", "value": "$(NNODES)"},
            {"name": "PADDLE_JOB_ID", "value": "$(ALLRANKS_JOB)"},
        ],
    ),
)
def test_a_job_of_another_system_becomes_a_job(case):
    document, path, value = case
    assert draft(document).get(path) == value


@table(
    ("a RayCluster", manifest("RayCluster", "ray.io/v1", headGroupSpec={"template": TEMPLATE}), "rayClusterSpec"),
    ("a StatefulSet", manifest("StatefulSet", "apps/v1", template=TEMPLATE), "no end"),
    ("a Job without an index", manifest("Job", "batch/v1", template=TEMPLATE), "completionMode: Indexed"),
    ("a kind without a sentence", manifest("LlmJob", "ai.example/v1", template=TEMPLATE), "ai.example/v1"),
    ("a kind of another group", manifest("PyTorchJob", "ai.example/v1", template=TEMPLATE), "kubeflow.org"),
    ("a file without a kind", {"jobs": []}, "no kind"),
)
def test_another_kind_is_named_with_what_to_do(case):
    document, words = case
    alone = run("convert", of(document))
    assert (alone.exit_code, alone.stdout) == (1, "")
    assert words in alone.stderr
    mixed = run("convert", of(document, pytorch()))
    assert mixed.exit_code == 1 or document.get("kind") == "StatefulSet"
    assert "DistributedTraining" in mixed.stdout


@table(
    ("a version before all others", "kubeflow.org/v1alpha1", "kubeflow.org/v1alpha1 is not supported: v1, v1beta2"),
    ("a version after all others", "kubeflow.org/v9", "kubeflow.org/v9 is not supported"),
)
def test_a_version_that_is_not_converted_is_named_with_the_others(case):
    version, message = case
    outcome = run("convert", of(manifest("PyTorchJob", version, replicaSpecs=[])))
    assert outcome.exit_code == 2
    assert f"apiVersion: {message}" in outcome.stderr


def test_several_jobs_that_a_JobSet_connects_are_not_one_job():
    [(path, message)] = result(jobset(replicated("a", 1, 1), replicated("b", 1, 1))).problems
    assert path == "spec.replicatedJobs"
    assert message.startswith("has several jobs (a, b)")


def test_an_AppWrapper_is_replaced_by_its_jobs_in_the_queue():
    document = manifest("AppWrapper", "workload.codeflare.dev/v1beta2", components=[{"template": pytorch()}])
    document["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    outcome = run("convert", of(document))
    job = yaml.safe_load(outcome.stdout)
    assert (job["kind"], job["metadata"]["labels"]) == ("DistributedTraining", {"kueue.x-k8s.io/queue-name": "q"})


def workflow(inner: str, **resource: Any) -> dict[str, Any]:
    template = {"name": "main", "resource": {"action": "create", "manifest": inner, **resource}}
    return manifest("Workflow", "argoproj.io/v1alpha1", entrypoint="main", templates=[template])


def test_the_manifest_in_a_step_of_Argo_is_converted_with_its_conditions():
    job = pytorch()
    job["metadata"]["name"] = "{{workflow.name}}-{{inputs.parameters.size}}"
    document = workflow(
        yaml.safe_dump(job),
        successCondition="status.replicaStatuses.Worker.succeeded == 2",
        failureCondition="status.replicaStatuses.Worker.failed > 0",
    )
    outcome = run("convert", of(document))
    [template] = yaml.safe_load(outcome.stdout)["spec"]["templates"]
    inner = yaml.safe_load(template["resource"]["manifest"])
    assert inner["kind"] == "DistributedTraining"
    assert inner["metadata"]["name"] == "{{workflow.name}}-{{inputs.parameters.size}}"
    conditions = [template["resource"][name] for name in ("successCondition", "failureCondition")]
    assert conditions == ["status.phase == Succeeded", "status.phase == Failed"]
    assert (outcome.exit_code, "permissions for distributedtrainings" in outcome.stderr) == (1, True)


def test_the_trials_of_Katib_are_converted_with_what_Katib_looks_for():
    spec = pytorch()
    del spec["metadata"]
    trial = {"trialSpec": spec, "primaryContainerName": "pytorch", "successCondition": "x"}
    outcome = run("convert", of(manifest("Experiment", "kubeflow.org/v1beta1", trialTemplate=trial)))
    template = yaml.safe_load(outcome.stdout)["spec"]["trialTemplate"]
    assert template["trialSpec"]["kind"] == "DistributedTraining"
    assert template["primaryContainerName"] == "trainer"
    assert template["successCondition"] == 'status.conditions.#(type=="Complete")#|#(status=="True")#'
    assert "TrainingSweep" in outcome.stderr


# --- files that no API server has -------------------------------------------------------------------------------------

SBATCH = """#!/bin/bash
#SBATCH --job-name=My_Run
#SBATCH -N 2
#SBATCH --ntasks-per-node 4
#SBATCH --gres=gpu:a100:4
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH -t 1-02:00:00   # a day
#SBATCH --partition=gpu
"""


def test_a_script_of_Slurm_with_srun_starts_the_tasks_of_each_node():
    lines = [
        "module load cuda",
        "head=$(scontrol show hostnames $X | head -n1)",
        "srun -l --container-mounts=/a:/b python a.py $head",
    ]
    outcome = run("convert", SBATCH + "\n".join(lines))
    job = yaml.safe_load(outcome.stdout)
    spec = job["spec"]
    assert job["metadata"]["name"] == "my-run"
    assert (spec["framework"], spec["spmd"], spec["compatibility"]) == ("spmd", {"processesPerPod": 4}, ["Slurm"])
    assert spec["roles"]["worker"]["replicas"] == 2
    assert spec["resources"] == {"requests": {"cpu": 32}, "limits": {"nvidia.com/gpu": 4, "memory": "64Gi"}}
    assert (spec["activeDeadlineSeconds"], spec["pool"]) == (93600, "gpu")
    assert spec["command"][2].splitlines() == [": module load cuda", "head=$MASTER_ADDR", "python a.py $head"]
    assert outcome.exit_code == 1
    for words in ("module load cuda", "Set image", "TrainingPool", "kind a100", "--container-mounts=/a:/b"):
        assert words in outcome.stderr


def test_torchrun_in_a_script_of_Slurm_is_PyTorch():
    text = f"{SBATCH}srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 4 --rdzv_endpoint $head:29500 a.py\n"
    spec = yaml.safe_load(run("convert", text).stdout)["spec"]
    assert (spec["framework"], spec["pytorch"], spec["command"][2]) == (
        "pytorch",
        {"processesPerNode": 4},
        "torchrun a.py\n",
    )


@table(
    ("all indexes", "0-3", {"values": [0, 1, 2, 3]}, 4),
    ("a step and a limit", "1-9:4%2", {"values": [1, 5, 9]}, 2),
    ("more than fit into a list", "0-99", {"whole": {"min": 0, "max": 99, "step": 1}}, 100),
)
def test_an_array_of_Slurm_is_a_sweep(case):
    array, parameter, parallel = case
    sweep = sweep_of(f"#!/bin/bash\n#SBATCH --array={array}\npython a.py $SLURM_ARRAY_TASK_ID\n")
    assert (sweep["kind"], sweep["spec"]["parameters"], sweep["spec"]["parallel"]) == (
        "TrainingSweep",
        {"task": parameter},
        parallel,
    )
    assert {"name": "SLURM_ARRAY_TASK_ID", "value": "$(task)"} in sweep["spec"]["template"]["spec"]["env"]


SKY = {
    "name": "finetune",
    "num_nodes": 2,
    "resources": {"accelerators": "H100:8", "image_id": "docker:me/train:1"},
    "setup": "pip install -e .",
    "run": "torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE train.py",
}
DSTACK = {
    "type": "task",
    "name": "finetune",
    "nodes": 2,
    "image": "me/train:1",
    "resources": {"gpu": "H100:8"},
    "commands": ["torchrun --nnodes=$DSTACK_NODES_NUM --nproc_per_node=$DSTACK_GPUS_PER_NODE train.py"],
}


@pytest.mark.parametrize("document", [SKY, DSTACK], ids=["SkyPilot", "dstack"])
def test_a_task_of_a_cloud_is_a_job(document):
    outcome = run("convert", of(document))
    spec = yaml.safe_load(outcome.stdout)["spec"]
    assert (spec["framework"], spec["pytorch"]) == ("pytorch", {"processesPerNode": 8})
    assert (spec["image"], spec["roles"]["worker"]["replicas"]) == ("me/train:1", 2)
    assert spec["command"][2].splitlines()[-1] == "torchrun train.py"
    assert "error" not in outcome.stderr


def test_a_command_job_of_Azure_ML_has_a_rank_for_each_process():
    document = {
        "$schema": "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json",
        "command": "python train.py --lr ${{inputs.lr}} --data ${{inputs.data}}",
        "inputs": {"lr": 0.1, "data": {"type": "uri_folder", "path": "azureml:d:1"}},
        "environment": {"image": "me/train:1"},
        "compute": "azureml:gpus",
        "resources": {"instance_count": 2},
        "distribution": {"type": "pytorch", "process_count_per_instance": 4},
    }
    outcome = run("convert", of(document))
    spec = yaml.safe_load(outcome.stdout)["spec"]
    assert (spec["spmd"], spec["compatibility"]) == ({"processesPerPod": 4}, ["AzureML"])
    assert spec["command"] == ["bash", "-c", "python train.py --lr 0.1 --data $ALLRANKS_INPUT_DATA"]
    assert "compute: azureml:gpus" in outcome.stderr


# --- templates --------------------------------------------------------------------------------------------------------


@table(
    ("Helm", "kind: PyTorchJob\nmetadata:\n  name: {{ .Release.Name }}\n", "`helm template ... | allranks convert -`"),
    ("Helm in quotes", of(pytorch(pods(image="{{ .Values.image }}"))), "`helm template ... | allranks convert -`"),
    ("envsubst", of(pytorch(pods(image="$IMAGE"))), "`envsubst < FILE | allranks convert -`"),
    ("a number of envsubst", of(pytorch(pods(replicas="${N}"))), "`envsubst < FILE | allranks convert -`"),  # type: ignore[arg-type]
    ("a gap", of(pytorch(pods(image="<your image>"))), "write a value for <your image> first"),
)
def test_a_template_is_named_with_the_command_that_renders_it(case):
    text, cure = case
    outcome = run("convert", text)
    assert outcome.exit_code == 2
    assert cure in outcome.stderr


# --- validate and convert ---------------------------------------------------------------------------------------------

EVERY = [
    pytorch(),
    HYPERPOD,
    jobset(replicated("w", 1, 2)),
    volcano({"pytorch": []}, master=1, worker=1),
    indexed(TEMPLATE),
    workflow(yaml.safe_dump(pytorch())),
    manifest("Job", "batch/v1", template=TEMPLATE),
    manifest("StatefulSet", "apps/v1", template=TEMPLATE),
    manifest("PyTorchJob", "ai.example/v1", template=TEMPLATE),
    manifest("RayCluster", "ray.io/v1", headGroupSpec={"template": TEMPLATE}),
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}},
]


@pytest.mark.parametrize("document", EVERY, ids=lambda document: f"{document['apiVersion']} {document['kind']}")
def test_validate_names_convert_exactly_where_convert_has_a_result(document):
    converted = run("convert", of(document))
    validated = run("validate", of(document))
    assert validated.exit_code != 0
    has_result = "DistributedTraining" in converted.stdout
    assert ("`allranks convert FILE > job.yaml` converts" in validated.output) == has_result


def test_one_job_that_is_wrong_does_not_hide_the_others():
    bad = pytorch(pods(command="python train.py"))
    bad["metadata"]["name"] = "bad"
    listed = {"apiVersion": "v1", "kind": "List", "items": [pytorch(), bad]}
    outcome = run("convert", json.dumps(listed))
    assert (outcome.exit_code, yaml.safe_load(outcome.stdout)["metadata"]["name"]) == (2, "mnist")
    assert "PyTorchJob bad" in outcome.stderr


def test_a_warning_of_validate_is_printed():
    outcome = run("convert", of(pytorch(pods(command=["bash", "-c", "python3 train.py || true"]))))
    assert "a failure of python3 is not noticed" in outcome.stderr


# --- pods -------------------------------------------------------------------------------------------------------------


def test_what_runs_as_root_or_privileged_may_do_so():
    made = draft(pytorch(pods(securityContext={"runAsUser": 0, "privileged": True})))
    pod_spec = Rendered(yaml.safe_dump(made.document)).pods["worker", 0]["spec"]
    [trainer] = [container for container in pod_spec["containers"] if container["name"] == "trainer"]
    context = trainer["securityContext"]
    assert (context["runAsNonRoot"], context["allowPrivilegeEscalation"]) == (False, True)


def test_claims_of_devices_stay_in_the_container():
    made = draft(pytorch(pods(resources={"claims": [{"name": "gpu"}]}, pod={"resourceClaims": [{"name": "gpu"}]})))
    [trainer] = made.spec["template"]["spec"]["containers"]
    assert (trainer["resources"], made.get("resources")) == ({"claims": [{"name": "gpu"}]}, None)


@pytest.mark.parametrize("field", ["command", "env"])
def test_what_is_too_long_for_a_field_of_the_job_is_in_the_container(field):
    long = "# line\n" * 2000
    value = ["bash", "-c", f"{long}python3 a.py"] if field == "command" else [{"name": "A", "value": long}]
    made = draft(pytorch(pods(**{field: value})))
    [trainer] = made.spec["template"]["spec"]["containers"]
    assert (trainer[field], made.get(field)) == (value, None)


def test_a_sidecar_with_the_name_of_the_training_container_stays():
    made = draft(pytorch(pods(pod={})))
    job = pytorch()
    listed = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    listed.append({"name": "trainer", "image": "me/exporter:1"})
    pod_of = Rendered(yaml.safe_dump(draft(job).document)).pods["worker", 0]
    assert [container["name"] for container in pod_of["spec"]["containers"]] == ["trainer", "trainer-sidecar"]
    assert "trainer-sidecar" not in str(made.document)


def field_of(path: str) -> list[dict[str, Any]]:
    return [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]


@table(
    ("the index", "metadata.labels['training.kubeflow.org/replica-index']", "metadata.labels['allranks.dev/index']"),
    ("the job", "metadata.labels['training.kubeflow.org/job-name']", "metadata.labels['allranks.dev/job-name']"),
    (
        "an annotation",
        "metadata.annotations['batch.kubernetes.io/job-completion-index']",
        "metadata.labels['allranks.dev/index']",
    ),
    ("the node", "spec.nodeName", "spec.nodeName"),
)
def test_a_field_that_the_other_operator_fills_is_filled_here(case):
    before, after = case
    made = draft(pytorch(pods(env=field_of(before))))
    assert made.spec["env"] == field_of(after)
    assert made.remarks == []


def test_a_label_that_no_pod_has_here_is_reported():
    made = draft(pytorch(pods(env=field_of("metadata.labels['other.example/x']"))))
    assert "no pod has the label other.example/x here" in comments(made)
    assert made.remarks


def test_a_selector_of_pods_has_the_labels_of_allranks():
    term = {"topologyKey": "h", "labelSelector": {"matchLabels": {"training.kubeflow.org/job-name": "mnist", "a": "b"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    made = draft(pytorch(pods(pod={"affinity": affinity})))
    assert "'matchLabels': {'a': 'b', 'allranks.dev/job-name': 'mnist'}" in str(made.document)


def test_the_index_of_a_Job_is_the_rank_of_the_pod_also_where_the_manifest_defines_it():
    variable = field_of("metadata.annotations['batch.kubernetes.io/job-completion-index']")[0]
    container = pod(env=[{**variable, "name": "JOB_COMPLETION_INDEX"}])
    job = Rendered(yaml.safe_dump(draft(indexed(container)).document))
    assert [job.env("worker", index)["JOB_COMPLETION_INDEX"] for index in range(2)] == ["0", "1"]


def test_the_name_of_a_pod_of_the_other_operator_is_reported():
    made = draft(pytorch(pods(command=["python3", "a.py", "--master=mnist-master-0:23456"])))
    assert "mnist-master-0 was the name of a pod of the other operator" in comments(made)
    assert made.remarks
