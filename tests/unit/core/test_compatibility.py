"""The variables of SageMaker, Azure ML and Slurm in the pods of ranks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from allranks.api.status import Status
from allranks.api.validation import InvalidManifest, parse
from allranks.core.facts import compatibility
from allranks.core.facts.model import Platform
from allranks.core.objects import pods
from support.builders import CLUSTER, job, manifest
from unit.core.test_code_in_pods import trainer

LOCAL = replace(CLUSTER, local=True)

GPUS = {"limits": {"nvidia.com/gpu": 2, "cpu": 8}}
TRAIN = {"name": "train", "from": "claim://d/t", "path": "/opt/ml/input/data/train"}
TEST = {"name": "test-set", "from": "claim://d/v", "path": "/opt/ml/input/data/test"}
OUTPUTS = [{"name": name, "path": f"/opt/ml/{name}", "to": "s3://b/p"} for name in ("model", "output")]
COMMAND = ["torchrun", "--nproc-per-node=1", "train.py"]
ARGS = ["--batch-size", "64", "--lr=1e-3", "--opt", "sgd", "-e", "-5", "--amp", "--wd", "$(WD)"]


def environment(of: Any, index: int = 0, platform: Platform = CLUSTER, role: str = "worker") -> dict[str, str]:
    """The variables of a pod as its kubelet expands them, without those that a kubelet knows."""
    made = pods.objects(of, Status(), platform)
    maps = [companion["data"] for companion in made.companions if companion["kind"] == "ConfigMap"]
    shared = {name: value for data in maps for name, value in data.items()}
    [pod] = [pod for pod in made.pods if pod["metadata"]["name"].startswith(f"{of.name}-{role}-{index}-")]
    out: dict[str, str] = {}
    for variable in trainer(pod)["env"]:
        reference = variable.get("valueFrom", {})
        if "configMapKeyRef" in reference:
            out[variable["name"]] = shared[reference["configMapKeyRef"]["key"]]
        elif "value" in variable:
            value = variable["value"]
            out[variable["name"]] = re.sub(r"\$\(([A-Za-z_]\w*)\)", lambda m: out.get(m[1], m[0]), value)
    return out


def of(*systems: str, **fields: Any) -> Any:
    return job(**{"compatibility": list(systems), "command": COMMAND, "args": ARGS, **fields})


def selected(env: dict[str, str], *prefixes: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(prefixes)}


def test_without_the_field_no_variable_of_another_system_is_set() -> None:
    env = environment(job(inputs=[TRAIN], outputs=OUTPUTS))
    assert selected(env, "SM_", "AZ", "SLURM", "TRAINING_JOB_NAME", "ALLRANKS_SM") == {}


def test_a_script_of_sagemaker_finds_its_hosts_channels_and_hyperparameters() -> None:
    env_of_user = [{"name": "WD", "value": "0.1"}, {"name": "SM_LOG_LEVEL", "value": "10"}]
    wanted = of("SageMaker", inputs=[TRAIN, TEST], outputs=OUTPUTS, env=env_of_user, resources=GPUS)
    env = environment(wanted, 1)
    hosts = [f"job-worker-{index}-0.job.team.svc" for index in (0, 1)]
    parameters = {"batch-size": 64, "lr": 0.001, "opt": "sgd", "e": -5, "amp": None, "wd": 0.1}
    resources = {"current_host": hosts[1], "hosts": hosts}
    assert json.loads(env["SM_HOSTS"]) == hosts
    assert json.loads(env["SM_HPS"]) == parameters
    assert json.loads(env["SM_RESOURCE_CONFIG"]) == resources
    assert json.loads(env["SM_USER_ARGS"]) == [*ARGS[:-1], "0.1"]
    everything = json.loads(env["SM_TRAINING_ENV"])
    assert everything["hyperparameters"] == parameters
    assert (everything["hosts"], everything["resource_config"]) == (hosts, resources)
    assert everything["channel_input_dirs"]["train"] == "/opt/ml/input/data/train"
    plain = {
        "SM_CURRENT_HOST": hosts[1],
        "SM_NUM_GPUS": "2",
        "SM_CHANNELS": '["test-set","train"]',
        "SM_CHANNEL_TRAIN": "/opt/ml/input/data/train",
        "SM_CHANNEL_TEST_SET": "/opt/ml/input/data/test",
        "SM_INPUT_DIR": "/opt/ml/input",
        "SM_MODEL_DIR": "/opt/ml/model",
        "SM_OUTPUT_DIR": "/opt/ml/output",
        "SM_OUTPUT_DATA_DIR": "/opt/ml/output",
        "SM_HP_BATCH-SIZE": "64",
        "SM_HP_LR": "0.001",
        "SM_HP_OPT": "sgd",
        "SM_HP_AMP": "",
        "SM_HP_WD": "0.1",
        "SM_LOG_LEVEL": "10",  # the user's own value
        "TRAINING_JOB_NAME": "job",
    }
    assert {name: env[name] for name in plain} == plain
    made = pods.objects(wanted, Status(), CLUSTER).pods[0]
    [cpus] = [variable for variable in trainer(made)["env"] if variable["name"] == "SM_NUM_CPUS"]
    assert cpus["valueFrom"]["resourceFieldRef"]["resource"] == "limits.cpu"


def test_parameters_of_a_sweep_are_hyperparameters() -> None:
    own = [{"name": "ALLRANKS_PARAM_LEARNING_RATE", "value": "0.5"}]
    wanted = of("SageMaker", "AzureML", env=own, args=["--lr", "$(ALLRANKS_PARAM_LEARNING_RATE)"])
    env = environment(wanted)
    assert json.loads(env["SM_HPS"]) == {"learning_rate": 0.5, "lr": 0.5}
    assert (env["SM_HP_LEARNING_RATE"], env["AZUREML_PARAMETER_lr"]) == ("0.5", "0.5")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (["torchrun", "--nnodes", "2", "train.py", "--a", "b.py"], ["--a", "b.py"]),
        (["python", "-m", "pkg.train", "--a"], ["--a"]),
        (["bash", "run.sh", "x"], ["x"]),
        (["./train", "--a"], ["--a"]),
        ([], []),
    ],
)
def test_hyperparameters_are_the_arguments_after_the_program(command: list[str], arguments: list[str]) -> None:
    assert list(compatibility.program_arguments(command)) == arguments


def test_a_script_of_azure_finds_the_master_node_and_its_own_rank() -> None:
    env = environment(of("AzureML", inputs=[TEST], outputs=OUTPUTS[:1]), 1)
    hosts = [f"job-worker-{index}-0.job.team.svc" for index in (0, 1)]
    wanted = {
        "AZ_BATCH_MASTER_NODE": f"{hosts[0]}:29500",
        "AZ_BATCHAI_MPI_MASTER_NODE": hosts[0],
        "AZ_BATCHAI_JOB_MASTER_NODE_IP": hosts[0],
        "AZ_BATCH_HOST_LIST": ",".join(hosts),
        "AZ_BATCH_NODE_LIST": ";".join(hosts),
        "AZ_BATCH_IS_CURRENT_NODE_MASTER": "false",
        "AZ_BATCHAI_TASK_INDEX": "1",
        "AZUREML_NODE_COUNT": "2",
        "AZUREML_CR_NODE_RANK": "1",
        "NODE_RANK": "1",
        "AZUREML_PARAMETER_batch_size": "64",
        "AZUREML_DATAREFERENCE_test_set": "/opt/ml/input/data/test",
        "AZURE_ML_INPUT_test_set": "/opt/ml/input/data/test",
        "AZURE_ML_OUTPUT_model": "/opt/ml/model",
        "AZ_BATCHAI_INPUT_TEST_SET": "/opt/ml/input/data/test",
    }
    assert {name: env[name] for name in wanted} == wanted
    assert env["AZUREML_RUN_ID"].startswith("job-")


def test_torchrun_is_one_task_of_slurm_per_pod_as_under_srun() -> None:
    roles = {"master": {"replicas": 1}, "worker": {"replicas": 3}}
    env = environment(of("Slurm", roles=roles, resources=GPUS), 2)
    wanted = {
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "3",
        "SLURM_NTASKS": "4",
        "SLURM_NNODES": "4",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_TASKS_PER_NODE": "1(x4)",
        "SLURM_JOB_NODELIST": "job-master-0-0.job.team.svc,job-worker-[0-2]-0.job.team.svc",
        "SLURMD_NODENAME": "job-worker-2-0.job.team.svc",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_JOB_NAME": "job",
    }
    assert {name: env[name] for name in wanted} == wanted
    assert env["SLURM_NODELIST"] == env["SLURM_JOB_NODELIST"]
    assert env["SLURM_JOB_ID"] == env["SLURM_JOBID"]
    assert int(env["SLURM_JOB_ID"]) > 0


def test_several_processes_of_a_pod_are_several_tasks_of_slurm() -> None:
    wanted = of("Slurm", framework="spmd", command=["python3", "train.py"], spmd={"processesPerPod": 4}, resources=GPUS)
    env = environment(wanted, 1)
    assert selected(env, "SLURM_NTASKS", "SLURM_PROCID", "SLURM_CPUS_PER") == {
        "SLURM_NTASKS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_PROCID": "4",
        "SLURM_CPUS_PER_TASK": "2",
    }


def test_hosts_of_a_local_run_have_different_addresses_of_the_loopback_network() -> None:
    env = environment(of("SageMaker", "Slurm"), 1, LOCAL)
    assert json.loads(env["SM_HOSTS"]) == ["127.0.0.1", "127.0.0.2"]
    assert env["SM_CURRENT_HOST"] == "127.0.0.2"
    assert env["SLURM_JOB_NODELIST"] == "127.0.0.[1-2]"


def test_mpirun_passes_on_what_all_ranks_have_in_common_and_nothing_of_slurm() -> None:
    roles = {"launcher": {"replicas": 1}, "worker": {"replicas": 2}}
    wanted = of("SageMaker", "AzureML", "Slurm", framework="mpi", command=["python3", "train.py"], roles=roles)
    made = pods.objects(wanted, Status(), CLUSTER)
    [launcher] = [pod for pod in made.pods if "-launcher-" in pod["metadata"]["name"]]
    command = trainer(launcher)["command"]
    passed = {command[index + 1] for index, word in enumerate(command) if word == "-x"}
    assert {"SM_HPS", "SM_HP_LR", "AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE"} <= passed
    assert not {"SM_CURRENT_HOST", "AZ_BATCHAI_TASK_INDEX"} & passed
    env = environment(wanted, role="launcher")
    assert selected(env, "SLURM") == {}


def test_hosts_are_stored_once_and_a_list_that_no_variable_can_hold_is_refused() -> None:
    small, large = (
        len(
            json.dumps(
                pods.objects(of("SageMaker", "AzureML", "Slurm", roles={"worker": n}), Status(), CLUSTER).pods[1]
            )
        )
        for n in (2, 500)
    )
    assert large - small < 100
    [(field, message)] = pods.problems(of("SageMaker", roles={"worker": 9000}))
    assert field == "spec.roles.worker.replicas"
    assert re.search(
        r"ALLRANKS_SM_HOSTS has \d+ bytes, and Linux takes 131071 for one variable; at most \d+ fit", message
    )
    assert pods.problems(of("Slurm", roles={"worker": 9000})) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"compatibility": ["Slurm", "Slurm"]}, "must have each value once"),
        ({"compatibility": ["LSF"]}, "spec.compatibility"),
        (
            {
                "compatibility": ["Slurm"],
                "framework": "horovod",
                "elastic": {"minReplicas": 1, "maxReplicas": 3},
            },
            "cannot be set in an elastic job whose hosts change",
        ),
    ],
)
def test_what_cannot_be_true_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidManifest, match=message):
        parse(manifest(**fields))
