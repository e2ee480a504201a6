"""JAX's wiring: the coordinator's address, the number of processes and their IDs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from allranks.api.status import Status
from allranks.core.facts.model import Platform
from allranks.core.objects import pods
from allranks.pod_bundle import HELPERS
from support.builders import CLUSTER, job

HELPER = ["python3", "/allranks/jax_process.py", "--"]
LOCAL = Platform(helper_image="", local=True)


def trainers(platform: Platform = CLUSTER, **fields: Any) -> list[dict[str, Any]]:
    made = pods.objects(job(framework="jax", **fields), Status(), platform)
    return [pod["spec"]["containers"][0] for pod in made.pods]


def environment(trainer: dict[str, Any]) -> dict[str, str]:
    return {v["name"]: v["value"] for v in trainer["env"] if v["name"].startswith("JAX_")}


def test_every_process_has_the_address_of_worker_0_and_its_own_id():
    common = {"JAX_COORDINATOR_ADDRESS": "job-worker-0-0.job.team.svc:8476", "JAX_NUM_PROCESSES": "3"}
    assert [environment(trainer) for trainer in trainers(roles={"worker": 3})] == [
        common | {"JAX_PROCESS_ID": str(number)} for number in range(3)
    ]


def test_gpus_of_a_pod_belong_to_one_process():
    found = trainers(roles={"worker": 2}, resources={"limits": {"nvidia.com/gpu": 8}})
    assert environment(found[0])["JAX_NUM_PROCESSES"] == "2"


def test_only_worker_0_declares_the_port():
    found = trainers(roles={"worker": 2}, jax={"port": 1234})
    assert [trainer.get("ports") for trainer in found] == [[{"name": "coordinator", "containerPort": 1234}], None]
    assert environment(found[1])["JAX_COORDINATOR_ADDRESS"] == "job-worker-0-0.job.team.svc:1234"


def test_a_helper_starts_the_command():
    [trainer] = trainers(roles={"worker": 1}, command=["python", "train.py"])
    assert trainer["command"] == [*HELPER, "python", "train.py"]


def test_a_local_coordinator_is_reachable_on_this_machine_only():
    local = environment(trainers(LOCAL, roles={"worker": 2})[0])
    assert local["JAX_COORDINATOR_BIND_ADDRESS"] == local["JAX_COORDINATOR_ADDRESS"]
    assert "JAX_COORDINATOR_BIND_ADDRESS" not in environment(trainers(roles={"worker": 2})[0])


JAX = '''
class ClusterEnv:
    """As jax._src.clusters.ClusterEnv of JAX 0.10."""

    _cluster_types = []

    def __init_subclass__(cls):
        cls._cluster_types.append(cls)


class KubernetesCluster(ClusterEnv):
    """JAX's own, which asks the API server."""
'''
PROGRAM = """
from jax._src import clusters
first = clusters.ClusterEnv._cluster_types[0]
address = first.get_coordinator_address(60, None)
print(first.name, first.is_env_present(), address, first.get_process_count(), first.get_process_id())
"""


def fake_jax(folder: Path, source: str) -> dict[str, str]:
    """Variables of a program that imports this `jax`. The real one is in tests/frameworks."""
    package = folder / "jax" / "_src"
    package.mkdir(parents=True)
    (folder / "jax" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "clusters.py").write_text(source)
    wiring = {"JAX_COORDINATOR_ADDRESS": "host:8476", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2"}
    return {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", **wiring}


def run(environment: dict[str, str], *program: str) -> subprocess.CompletedProcess[str]:
    helper = [sys.executable, str(HELPERS / "jax_process.py"), *program]
    return subprocess.run(helper, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_jax_finds_the_process_ids_in_the_environment(tmp_path: Path):
    done = run(fake_jax(tmp_path, JAX), "--", sys.executable, "-c", PROGRAM)
    assert (done.stdout, done.stderr, done.returncode) == ("allranks True host:8476 3 2\n", "", 0)


def test_another_version_of_jax_is_reported_and_the_program_runs(tmp_path: Path):
    done = run(fake_jax(tmp_path, ""), "--", sys.executable, "-c", "from jax._src import clusters; print('runs')")
    assert done.stdout == "runs\n"
    assert done.stderr.startswith("allranks: jax.distributed.initialize() needs arguments with this JAX: ")


def test_a_program_that_does_not_exist_is_an_error_of_a_shell(tmp_path: Path):
    done = run(fake_jax(tmp_path, JAX), "--", "no-such-program")
    assert (done.returncode, done.stderr) == (
        127,
        "allranks: cannot start no-such-program: No such file or directory\n",
    )
    assert run({}, "train.py").returncode == 2


FAILING = """
import atexit, sys
from jax._src import clusters, distributed
clusters.ClusterEnv._cluster_types[0].is_env_present()
{ending}
"""
DISTRIBUTED = """
import atexit, time

class State:
    def shutdown(self):
        print("waits for the other processes")

global_state = State()
atexit.register(lambda: global_state.shutdown())
"""


def test_a_process_that_fails_does_not_wait_for_the_others_at_exit(tmp_path: Path):
    env = fake_jax(tmp_path, JAX)
    (tmp_path / "jax" / "_src" / "distributed.py").write_text(DISTRIBUTED)
    failed = run(env, "--", sys.executable, "-c", FAILING.format(ending="raise ValueError('no data')"))
    assert (failed.stdout, failed.returncode) == ("", 1)
    assert failed.stderr.endswith("ValueError: no data\n")
    completed = run(env, "--", sys.executable, "-c", FAILING.format(ending=""))
    assert (completed.stdout, completed.returncode) == ("waits for the other processes\n", 0)
