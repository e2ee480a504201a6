"""Scripts as users of SageMaker, Azure ML and Slurm write them, unchanged, with real ranks of PyTorch (gloo)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]

AZURE = """
import argparse, os, torch, torch.distributed as dist

def set_environment_variables_for_nccl_backend(single_node=False):
    if not single_node:
        master_node_params = os.environ["AZ_BATCH_MASTER_NODE"].split(":")
        os.environ["MASTER_ADDR"] = master_node_params[0]
        os.environ["MASTER_PORT"] = master_node_params[1]
    else:
        os.environ["MASTER_ADDR"] = os.environ["AZ_BATCHAI_MPI_MASTER_NODE"]
        os.environ["MASTER_PORT"] = "54965"

parser = argparse.ArgumentParser()
parser.add_argument("--data-folder", default=os.environ["AZURE_ML_INPUT_training"])
parser.add_argument("--learning-rate", type=float)
args = parser.parse_args()
nodes = int(os.environ["AZUREML_NODE_COUNT"])
set_environment_variables_for_nccl_backend(single_node=nodes == 1)
rank = int(os.environ["NODE_RANK"])
dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=nodes)
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
files = sorted(os.listdir(args.data_folder))
master = os.environ["AZ_BATCH_IS_CURRENT_NODE_MASTER"]
run = os.environ["AZUREML_RUN_ID"]
print(f"rank {rank} of {nodes}: {total.item():g} {files} master {master} lr {args.learning_rate} run {run}", flush=True)
dist.destroy_process_group()
"""

SLURM = r"""
import os, re, torch, torch.distributed as dist

rank = int(os.environ["SLURM_PROCID"])
local_rank = int(os.environ["SLURM_LOCALID"])
size = int(os.environ["SLURM_NTASKS"])
first = re.sub(r"\[(.*?)[,-].*\]", "\\1", os.environ["SLURM_JOB_NODELIST"]).split(",")[0]
os.environ.setdefault("MASTER_ADDR", first)
os.environ.setdefault("MASTER_PORT", str(12000 + int(os.environ["SLURM_JOBID"]) % 10000))
dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=size)
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
assert os.environ["MASTER_ADDR"] == first
node, nodes = os.environ["SLURM_NODEID"], os.environ["SLURM_NNODES"]
cpus = int(os.environ["SLURM_CPUS_ON_NODE"])
assert cpus >= 1
print(f"rank {rank} of {size}: {total.item():g} local {local_rank} node {node} of {nodes}", flush=True)
dist.destroy_process_group()
"""


def manifest(folder: Path, program: str, system: str, **spec: Any) -> Path:
    (folder / "train.py").write_text(program)
    job = {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "metadata": {"name": "script"},
        "spec": {
            "compatibility": [system],
            "image": "none",
            "command": ["python", str(folder / "train.py")],
            "roles": {"worker": {"replicas": 2}},
            "restart": {"maxRestarts": 0},
            **spec,
        },
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    return folder / "job.yaml"


def test_the_example_of_sagemaker_trains_and_saves_its_model(run_job, tmp_path: Path) -> None:
    volumes = ("--volume", "training=train/data", "--volume", f"model={tmp_path}/model")
    run = run_job("examples/compatibility/sagemaker.yaml", *volumes).finish()
    assert run.code == 0, run.output
    for rank in (0, 1):
        [line] = [line for line in run.output.splitlines() if f"host {rank} of 2: held-out accuracy" in line]
        assert float(line.rpartition(" ")[2]) > 0.9
    assert 'hyperparameters: {"backend":"gloo","epochs":100}' in run.output
    assert (tmp_path / "model" / "model.pth").stat().st_size > 0


def test_a_script_of_azure_ml_finds_the_master_node(run_job, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "table.csv").write_text("x")
    inputs = [{"name": "training", "from": "claim://data", "path": "/data"}]
    fields = {"framework": "pytorch", "args": ["--learning-rate", "0.5"], "inputs": inputs}
    run = run_job(manifest(tmp_path, AZURE, "AzureML", **fields), "--volume", f"training={data}").finish()
    assert run.code == 0, run.output
    for rank, master in ((0, "true"), (1, "false")):
        assert f"rank {rank} of 2: 3 ['table.csv'] master {master} lr 0.5 run script-" in run.output


@pytest.mark.parametrize("processes", [1, 2])
def test_a_script_of_slurm_finds_its_task(run_job, tmp_path: Path, processes: int) -> None:
    spmd = {"framework": "spmd", "spmd": {"processesPerPod": processes}}
    run = run_job(manifest(tmp_path, SLURM, "Slurm", **spmd)).finish()
    assert run.code == 0, run.output
    size = 2 * processes
    for rank in range(size):
        node, local = divmod(rank, processes)
        total = size * (size + 1) // 2
        assert f"rank {rank} of {size}: {total} local {local} node {node} of 2" in run.output
