"""Every published example of the other operators converts into a valid job, whose pods get the same ranks, sizes and
TF_CONFIG as the original operator gives them (original.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from allranks.authoring.convert.documents import Converted, convert
from allranks.authoring.convert.training_runtimes import published

from . import original
from .rendered import Rendered

FOLDER = Path(__file__).with_name("manifests")
RUNTIMES = [
    yaml.safe_load(path.read_text())
    for path in (
        *sorted((FOLDER / "trainer" / "runtimes").glob("*.yaml")),
        FOLDER / "trainer" / "flux-flux-runtime.yaml",
    )
]
WITHOUT_COMMAND = "jax-jax-dist-spmd-mnist-jaxjob_dist_spmd_mnist_gloo.yaml"
"""The command is in the image, which a helper cannot read."""


def examples(folder: str, *kinds: str) -> list[Any]:
    """The jobs of these kinds in a folder, with the name of the file as id."""
    out = []
    for path in sorted((FOLDER / folder).glob("*.yaml")):
        for job in yaml.safe_load_all(path.read_text()):
            if job and job["kind"] in kinds:
                out.append(pytest.param(job, path, id=path.stem))
    assert out
    return out


def converted(job: dict[str, Any], path: Path) -> Converted:
    """The result, with the runtimes of the file and the published ones."""
    others = [one for one in yaml.safe_load_all(path.read_text()) if one and one["kind"] != job["kind"]]
    documents = [(path.name, one) for one in (job, *others, *RUNTIMES)]
    found = next(one for one in convert(documents) if one.name)
    assert found.problems == ()
    return found


def test_all_examples_are_there():
    """20 YAML files in release-1.9 of the training operator, less two claims, a volume and an etcd server."""
    counts = {folder.name: len(list(folder.glob("*.yaml"))) for folder in FOLDER.iterdir() if folder.is_dir()}
    assert counts == {"training-operator": 17, "mpi-operator": 5, "mpi-operator-0.3": 2, "trainer": 9, "kuberay": 13}


@pytest.mark.parametrize(("job", "path"), examples("training-operator", "PyTorchJob"))
def test_a_PyTorchJob_has_the_ranks_and_the_world_size_of_the_original(job, path):
    made = Rendered(converted(job, path).text())
    expected = original.pytorchjob(job)
    assert made.pods.keys() == expected.keys()
    workers = len(expected)
    for (role, index), env in expected.items():
        own = made.env(role, index)
        if env["PET_NNODES"].isdigit():
            assert own["PET_NNODES"] == env["PET_NNODES"]
        else:  # elastic: a change of the number of workers restarts the ranks with another number
            assert (own["PET_NNODES"], env["PET_NNODES"]) == (str(workers), _bounds(made))
        processes = env["PET_NPROC_PER_NODE"]
        assert own["PET_NPROC_PER_NODE"] == ("1" if processes == "auto" else processes)
        if "PET_NODE_RANK" in env:
            assert own["PET_NODE_RANK"] == env["PET_NODE_RANK"]
            # With several processes in a pod torchrun sets these for each of them, there and here.
            same = {name: env[name] for name in ("RANK", "WORLD_SIZE")} if processes in ("auto", "1") else {}
            assert {name: own[name] for name in same} == same


def _bounds(made: Rendered) -> str:
    elastic = made.job.spec.elastic
    assert elastic
    return f"{elastic.min_replicas}:{elastic.max_replicas}"


@pytest.mark.parametrize(("job", "path"), examples("training-operator", "TFJob"))
def test_a_TFJob_has_the_TF_CONFIG_of_the_original(job, path):
    made = Rendered(converted(job, path).text())
    expected = original.tfjob(job)
    assert made.pods.keys() == expected.keys()
    for (role, index), config in expected.items():
        assert made.tf_config(role, index) == tuple(config)


@pytest.mark.parametrize(("job", "path"), examples("training-operator", "JAXJob"))
def test_a_JAXJob_has_the_process_ids_of_the_original(job, path):
    if path.name == WITHOUT_COMMAND:
        job["spec"]["jaxReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"] = ["python3", "a.py"]
    made = Rendered(converted(job, path).text())
    expected = original.jaxjob(job)
    assert made.pods.keys() == expected.keys()
    for (role, index), env in expected.items():
        own = made.env(role, index)
        assert {name: own[name] for name in env} == env
        assert (own["JAX_NUM_PROCESSES"], own["JAX_PROCESS_ID"]) == (env["NUM_PROCESSES"], env["PROCESS_ID"])
        assert own["JAX_COORDINATOR_ADDRESS"] == f"{own['COORDINATOR_ADDRESS']}:{own['COORDINATOR_PORT']}"


MPI = [
    *examples("training-operator", "MPIJob"),
    *examples("mpi-operator", "MPIJob"),
    *examples("mpi-operator-0.3", "MPIJob"),
]


@pytest.mark.parametrize(("job", "path"), MPI)
def test_an_MPIJob_has_the_hosts_and_the_number_of_ranks_of_the_original(job, path):
    made = Rendered(converted(job, path).text())
    expected = original.mpijob(job)
    if made.job.spec.framework == "horovod" and made.job.spec.options.controller == "Gloo":
        workers = [key for key in made.pods if key[0] == "worker"]
        assert len(workers) == len(made.pods) == len(expected.hosts)
        slots = int(made.env("worker", 0)["HOROVOD_LOCAL_SIZE"])
        assert slots * len(workers) == expected.ranks
        return
    assert made.hostfile() == expected.hosts
    command = made.trainer("launcher", 0)["command"]
    assert command[command.index("-np") + 1] == str(expected.ranks)
    assert command[command.index("mpirun") - 2] == "launch"


@pytest.mark.parametrize(("job", "path"), examples("trainer", "TrainJob"))
def test_a_TrainJob_has_the_nodes_and_processes_of_the_original(job, path):
    made = Rendered(converted(job, path).text())
    if made.job.spec.framework == "mpi":
        assert sum(slots for _, slots in made.hostfile()) == original.flux(job)
        return
    runtime = published(job["spec"]["runtimeRef"]["name"]) or {"spec": {"mlPolicy": {}}}
    expected = original.trainjob(job, runtime)
    assert made.pods.keys() == expected.keys()
    for (role, index), env in expected.items():
        own = made.env(role, index)
        assert {name: own[name] for name in env} == env


NOT_CONVERTIBLE = {"ray-job.interactive-mode", "ray-job.use-existing-raycluster"}
RAY = [one for one in examples("kuberay", "RayJob") if one.id not in NOT_CONVERTIBLE]


@pytest.mark.parametrize(("job", "path"), RAY)
def test_a_RayJob_has_the_nodes_and_the_command_of_the_original(job, path):
    made = Rendered(converted(job, path).text())
    expected = original.rayjob(job)
    assert len([key for key in made.pods if key[0] == "worker"]) == expected.workers
    assert [key for key in made.pods if key[0] == "head"] == [("head", 0)]
    command = " ".join(made.trainer("head", 0)["command"])
    assert " ".join(expected.entrypoint.split()) in " ".join(command.replace("/bin/sh -c", "").split())


@pytest.mark.parametrize("runtime", [pytest.param(one, id=one["metadata"]["name"]) for one in RUNTIMES])
def test_the_default_runtimes_are_those_that_Trainer_installs(runtime):
    ours = published(runtime["metadata"]["name"])
    if runtime["metadata"]["name"] in ("flux-distributed", "torch-distributed-with-cache"):
        assert ours is None  # not installed by default
        return
    assert ours
    theirs = runtime["spec"]
    for name in ("network", "successPolicy"):  # allranks publishes addresses at once, and the launcher decides
        theirs["template"]["spec"].pop(name, None)
    for job in theirs["template"]["spec"]["replicatedJobs"]:
        if job["name"] == "launcher":
            job.pop("dependsOn")
    assert ours["spec"] == theirs
