"""Ray itself under `allranks run`: a cluster of processes on this machine, its failures, and what is left of it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allranks.pod_bundle import HELPERS
from frameworks.examples.conftest import Run, processes_of
from frameworks.train.launch import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TIMEOUT = 1500
PLACES = """
import os, ray

ray.init()

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def place(number):
    return os.environ["ALLRANKS_ROLE"] + "-" + os.environ["ALLRANKS_INDEX"], number ** 2

found = ray.get([place.remote(number) for number in range(8)])
print("squares", sum(square for _, square in found), "on", *sorted({where for where, _ in found}))
"""


def manifest(folder: Path, program: str, workers: int = 2, **fields: Any) -> Path:
    (folder / "program.py").write_text(program)
    spec = {
        "framework": "ray",
        "image": "none",
        "command": ["python3", str(folder / "program.py")],
        "roles": {"head": {}, "worker": {"replicas": workers}},
        "resources": {"requests": {"cpu": 1}, "limits": {"memory": "1Gi"}},
        "restart": {"maxRestarts": 0},
        **fields,
    }
    job = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "metadata": {"name": "ray"}}
    (folder / "job.yaml").write_text(json.dumps(job | {"spec": spec}))
    return folder / "job.yaml"


def folders() -> set[Path]:
    """What ended processes have left. Other tests may run at the same time."""
    found = Path("/tmp").glob("allranks-ray-*")
    return {folder for folder in found if not Path("/proc", folder.name.split("-")[2]).exists()}


def test_tasks_run_on_the_workers_and_nothing_is_left(run_job, tmp_path: Path) -> None:
    before = folders()
    run = run_job(manifest(tmp_path, PLACES, workers=1)).finish(TIMEOUT)
    assert run.code == 0, run.output
    assert re.search(r"(?m)^head-0 +\| squares 140 on worker-0$", run.output), run.output
    assert processes_of(run.marker) == {}
    assert folders() <= before


@pytest.mark.nightly
def test_the_failure_of_a_task_is_the_root_cause_with_its_remote_traceback(run_job, tmp_path: Path) -> None:
    program = (
        "import ray\n\nray.init()\n\n\n@ray.remote\ndef load(path):\n    raise ValueError(f'no rows in {path}')\n\n\n"
    )
    run = run_job(manifest(tmp_path, program + "ray.get(load.remote('data.csv'))\n")).finish(TIMEOUT)
    assert run.code == 1, run.output
    failure = run.status["lastFailure"]
    assert (failure["role"], failure["index"], failure["exitCode"]) == ("head", 0, 1)
    assert failure["message"].startswith("RayTaskError(ValueError): ray::load()")
    assert failure["message"].endswith("ValueError: no rows in data.csv")


@pytest.mark.nightly
def test_the_failure_of_a_rank_of_ray_train_is_the_root_cause_with_its_number(run_job, tmp_path: Path) -> None:
    program = """
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train():
    assert ray.train.get_context().get_world_rank() != 1, "no data on rank 1"
    ray.train.report({"loss": 1.0})

TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path="PATH")).fit()
"""
    run = run_job(manifest(tmp_path, program.replace("PATH", str(tmp_path)))).finish(TIMEOUT)
    assert run.code == 1, run.output
    failure = run.status["lastFailure"]
    assert (failure["role"], failure["rank"], failure["exitCode"]) == ("head", 1, 1)
    assert "AssertionError: no data on rank 1" in failure["message"]


COLLECTIVE = """
import os, ray, torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train():
    torch.distributed.all_reduce(torch.ones(1))
    if ray.train.get_context().get_world_rank() == 1:
        FAIL
    torch.distributed.all_reduce(torch.ones(1))
    ray.train.report({"loss": 1.0})

TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path="PATH")).fit()
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fails", "message"),
    [
        pytest.param("raise ValueError('no rows for rank 1')", "ValueError: no rows for rank 1", id="exception"),
        pytest.param("os.kill(os.getpid(), 9)", "The actor is dead because its worker process has died", id="killed"),
    ],
)
def test_the_rank_that_fails_while_its_peer_waits_for_it_is_the_root_cause(
    fails: str, message: str, run_job, tmp_path: Path
) -> None:
    program = COLLECTIVE.replace("PATH", str(tmp_path)).replace("FAIL", fails)
    run = run_job(manifest(tmp_path, program)).finish(TIMEOUT)
    assert run.code == 1, run.output
    failure = run.status["lastFailure"]
    assert (failure["role"], failure["rank"], failure["exitCode"]) == ("head", 1, 1), failure
    assert message in failure["message"]
    assert "by peer" not in failure["message"]


def started(run_job, claim: Path, *options: str) -> Run:
    arguments = ("--set", "args=[--epochs=12, --pause=1]", "--set", "restart.maxRestarts=3")
    run = run_job("examples/penguins-ray.yaml", *arguments, "--volume", f"penguins-ray={claim}", *options)
    run.wait_for(r"epoch 3/12", TIMEOUT)
    return run


def kill(run: Run, pod: str, command: str, number: int = signal.SIGKILL) -> None:
    """Sends a signal to the processes of a pod whose command line contains `command`."""
    role, _, index = pod.rpartition("-")
    found = processes_of(run.marker, f"ALLRANKS_ROLE={role}", f"ALLRANKS_INDEX={index}")
    victims = [pid for pid, line in found.items() if command in line]
    assert victims, found
    for pid in victims:
        os.kill(pid, number)


def assert_resumed(run: Run, claim: Path) -> None:
    """Training continued at the last checkpoint, with each epoch once, and reached its accuracy."""
    resumed = run.wait_for(r"resumed from epoch (\d+) .*\(loss (\d\.\d+)\)", TIMEOUT)
    run.finish(TIMEOUT)
    assert run.code == 0, run.output
    lines = [json.loads(line) for line in (claim / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 13))
    assert int(resumed[1]) >= 1  # Ray Train's controller records a checkpoint later than the rank prints its epoch
    assert lines[int(resumed[1]) - 1]["loss"] == pytest.approx(float(resumed[2]), abs=1e-3)
    assert processes_of(run.marker) == {}


@pytest.mark.nightly
def test_a_killed_worker_pod_restarts_alone_and_the_ranks_resume(run_job, tmp_path: Path) -> None:
    run = started(run_job, tmp_path / "claim")
    kill(run, "worker-1", "ray_node.py")
    assert_resumed(run, tmp_path / "claim")
    assert run.status["attempt"] == 0
    failure = run.status["lastFailure"]
    assert (failure["role"], failure["index"], failure["signal"]) == ("worker", 1, 9)
    assert run.status["restarts"]["counted"] == 1


@pytest.mark.nightly
def test_a_worker_whose_raylet_ends_restarts_alone(run_job, tmp_path: Path) -> None:
    """It ends with 0, as it does when it has lost an agent, and `ray start --block` ignores that."""
    run = started(run_job, tmp_path / "claim")
    kill(run, "worker-1", "ray/raylet/raylet ", signal.SIGTERM)
    assert_resumed(run, tmp_path / "claim")
    assert run.status["attempt"] == 0
    failure = run.status["lastFailure"]
    assert (failure["role"], failure["index"], failure["exitCode"]) == ("worker", 1, 1)


@pytest.mark.nightly
def test_a_killed_rank_is_restarted_by_ray_train(run_job, tmp_path: Path) -> None:
    run = started(run_job, tmp_path / "claim")
    kill(run, "worker-1", "ray::RayTrainWorker")
    assert_resumed(run, tmp_path / "claim")
    assert (run.status["attempt"], run.status["restarts"]["counted"]) == (0, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["train/penguins_ray.py", "gcs_server"])
def test_a_killed_driver_or_head_restarts_all_from_the_checkpoint(command: str, run_job, tmp_path: Path) -> None:
    run = started(run_job, tmp_path / "claim")
    kill(run, "head-0", command)
    assert_resumed(run, tmp_path / "claim")
    assert (run.status["attempt"], run.status["restarts"]["counted"]) == (1, 1)
    assert run.status["lastFailure"]["role"] == "head"


@pytest.mark.nightly
def test_a_slow_rank_is_named_and_a_hang_is_detected_and_the_ranks_show_their_stacks(run_job, tmp_path: Path) -> None:
    arguments = "args=[--epochs=16, --work=0.05, --slow-rank=1, --hang-rank=1, --hang-at-step=110]"
    hang = ("--set", arguments, "--set", "hang.timeoutSeconds=15")
    run = run_job("examples/penguins-ray.yaml", *hang, "--volume", f"penguins-ray={tmp_path / 'claim'}")
    run.wait_for(r"rank 1 \(worker-\d on \S+\) takes \d\.\d times as long as its peers", TIMEOUT)
    run.wait_for(r"stacks, asked for because the job makes no progress", TIMEOUT)
    run.wait_for(r"rank 1 .* did not complete step 110", TIMEOUT)
    run.finish(TIMEOUT)
    assert run.code == 0, run.output
    assert [past["reason"] for past in run.status["history"]] == ["Hang", "Completed"]


@pytest.mark.nightly
def test_elastic_ranks_follow_the_number_of_workers(run_job, tmp_path: Path) -> None:
    """A lost worker that does not come back at once leaves one rank, which continues."""
    elastic = ("--set", "elastic.minReplicas=1", "--set", "elastic.maxReplicas=2", "--set", "elastic.waitSeconds=60")
    run = started(run_job, tmp_path / "claim", *elastic)
    kill(run, "worker-1", "ray_node.py")
    assert_resumed(run, tmp_path / "claim")
    assert run.status["attempt"] == 0
    sizes = {json.loads(line)["world_size"] for line in (tmp_path / "claim" / "metrics.jsonl").read_text().splitlines()}
    assert sizes <= {1, 2}
    assert 2 in sizes


REPORTS = """
import time, ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train():
    rank = ray.train.get_context().get_world_rank()
    for epoch in range(1, 21):  # long enough for several messages of each rank
        time.sleep(0.6 if rank == 1 else 0.15)
        ray.train.report({"epoch": epoch, "loss": 1 / epoch + rank, "total_steps": 20})

run_config = RunConfig(storage_path="PATH")
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=run_config).fit()
"""


@pytest.mark.nightly
def test_ranks_of_ray_train_report_without_a_changed_line_and_the_slow_one_is_named(run_job, tmp_path: Path) -> None:
    job = manifest(tmp_path, REPORTS.replace("PATH", str(tmp_path)), progress={})
    run = run_job(job).finish(TIMEOUT)
    assert run.code == 0, run.output
    progress = run.status["progress"]
    assert [progress[name] for name in ("step", "totalSteps", "epoch")] == [20, 20, 20]
    assert progress["metrics"] == {"loss": 0.05}
    assert sorted((rank["rank"], rank["step"]) for rank in progress["ranks"]) == [(0, 20), (1, 20)]
    assert re.search(r"rank 1 \(worker-\d on \S+\) takes \d\.\d times as long as its peers", run.output), run.output


@pytest.mark.nightly
def test_a_callback_of_the_program_replaces_the_added_one(run_job, tmp_path: Path) -> None:
    program = """
import ray
from allranks.report.ray import ReportCallback
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train():
    for epoch in range(1, 4):
        ray.train.report({"epoch": epoch, "loss": 1 / epoch})

run_config = RunConfig(storage_path="PATH", callbacks=[ReportCallback(total_steps=3)])
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=1), run_config=run_config).fit()
"""
    job = manifest(tmp_path, program.replace("PATH", str(tmp_path)), workers=1, progress={})
    run = run_job(job).finish(TIMEOUT)
    assert run.code == 0, run.output
    progress = run.status["progress"]
    assert (progress["step"], progress["totalSteps"], progress["epoch"]) == (3, 3, 3)
    assert progress["metrics"]["loss"] == pytest.approx(1 / 3, abs=1e-3)


@pytest.mark.nightly
def test_strangers_are_refused_by_the_cluster(run_job, frameworks: Path, tmp_path: Path) -> None:
    """Another user of this machine can reach the ports, but does not have the token."""
    program = (
        "import os, time, ray\n\nray.init()\nprint('at', os.environ['RAY_ADDRESS'], flush=True)\ntime.sleep(600)\n"
    )
    run = run_job(manifest(tmp_path, program, workers=0))
    address = run.wait_for(r"at (127\S+)", TIMEOUT)[1]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "that-of-somebody-else"}
    command = [frameworks / "bin" / "python", "-c", f"import ray; ray.init({address!r}); print('admitted')"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd=tmp_path)
    assert done.returncode != 0
    assert "admitted" not in done.stdout
    assert re.search("authentic", done.stderr, re.IGNORECASE), done.stderr


DASHBOARD = """
import json, os, urllib.error, urllib.request

def status(path, token=None):
    request = urllib.request.Request(f"http://{os.environ['AT']}{path}")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        return urllib.request.urlopen(request, timeout=120).status
    except urllib.error.HTTPError as error:
        return error.code

token = open(os.environ["RAY_AUTH_TOKEN_PATH"]).read().strip()
nodes = "/nodes?view=summary"
print(json.dumps([status("/"), status(nodes), status(nodes, "that-of-somebody-else"), status(nodes, token)]))
"""


@pytest.mark.nightly
def test_the_dashboard_of_a_head_in_a_pod_shows_the_cluster_to_who_has_the_token(
    frameworks: Path, tmp_path: Path
) -> None:
    """`allranks run` starts no dashboard, so the head's helper is started as its pod starts it, without containers.
    `kubectl port-forward` connects to the port on the loopback address of the pod."""
    [gcs, dashboard, client] = free_ports(3)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.connect(("192.0.2.1", 9))  # sends nothing
        address = found.getsockname()[0]
    (tmp_path / "secret").write_text("of-the-job-" * 4)
    (tmp_path / "program.py").write_text(DASHBOARD)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "ALLRANKS_"))}
    env = {
        "PATH": f"{frameworks / 'bin'}:{os.environ['PATH']}",
        "RAY_ADDRESS": f"{address}:{gcs}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(tmp_path / "secret"),
        "RAY_TMPDIR": str(tmp_path),
        "ALLRANKS_RAY_DASHBOARD_PORT": str(dashboard),
        "ALLRANKS_RAY_CLIENT_PORT": str(client),
        "ALLRANKS_RAY_CPUS": "1",
        "AT": f"127.0.0.1:{dashboard}",
    }
    command = [sys.executable, HELPERS / "ray_node.py", "head", "--", "python3", tmp_path / "program.py"]
    done = subprocess.run(command, env=ours | env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, [200, 401, 403, 200]), done.stderr
