"""Ray itself under `allranks run`: a cluster of processes on this machine, its failures, and what is left of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allranks.frameworks import FRAMEWORKS
from frameworks.examples.conftest import Run, processes_of

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


GROUPS = """
import os, ray

ray.init()

@ray.remote(num_cpus=1)
def role():
    return os.environ["ALLRANKS_ROLE"]

def of(group):
    return ray.get(role.options(label_selector={"ray.io/node-group": group}).remote())

print("tasks ran on", of("worker"), of("fast"))
"""


@pytest.mark.nightly
def test_a_cluster_without_a_program_serves_drivers_and_ends_when_it_is_idle(
    run_job, frameworks: Path, tmp_path: Path
) -> None:
    path = manifest(tmp_path, GROUPS, workers=1, ray={"idleSeconds": 120})
    job = json.loads(path.read_text())
    del job["spec"]["command"]
    job["spec"]["roles"]["fast"] = {"replicas": 1}
    path.write_text(json.dumps(job))
    run = run_job(path)
    variables = run.wait_for(r"Its drivers need (RAY_ADDRESS=.*)", TIMEOUT)[1].split()
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"PATH": f"{frameworks / 'bin'}:{os.environ['PATH']}"} | dict(word.split("=", 1) for word in variables)
    for command in (
        ["python", str(tmp_path / "program.py")],
        ["ray", "job", "submit", "--", "python", str(tmp_path / "program.py")],
    ):
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr + run.output
        assert "tasks ran on worker fast" in done.stdout
    run.finish(TIMEOUT)
    assert run.code == 0, run.output
    assert run.status["phase"] == "Succeeded"
    assert "nothing has used the Ray cluster for 120 s: it ends" in run.output
    assert processes_of(run.marker) == {}


@pytest.mark.nightly
def test_ray_tune_compares_trials_and_a_new_run_continues_them(run_job, tmp_path: Path) -> None:
    example, volume = "examples/penguins-ray-tune.yaml", f"penguins-ray-tune={tmp_path / 'results'}"
    small = "args=[--trials=4, --epochs=30]"
    run = run_job(example, "--set", small, "--volume", volume).finish(TIMEOUT)
    assert run.code == 0, run.output
    trials = r"lr \S+, batch size +\d+: +\d+ epochs, validation loss (\S+)"
    losses = [float(loss) for loss in re.findall(trials, run.output)]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
    [accuracy] = re.findall(r"the best trial: test accuracy (\d\.\d+)", run.output)
    assert float(accuracy) > 0.9
    again = run_job(example, "--set", small, "--volume", volume).finish(TIMEOUT)
    assert again.code == 0, again.output
    assert [float(loss) for loss in re.findall(trials, again.output)] == losses


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
    assert failure["message"].endswith("AssertionError: no data on rank 1")


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
    assert message in failure["message"].splitlines()[-1], failure
    [log] = [text for pod, text in run.logs().items() if "-head-" in pod and "helper" not in pod]
    kept = FRAMEWORKS["ray"].log.root_cause(log[-2048:])  # what a kubelet keeps
    assert kept
    assert (kept.rank, kept.message) == (1, failure["message"])


def started(run_job, claim: Path, *options: str) -> Run:
    arguments = ("--set", "args=[--epochs=12, --pause=1]", "--set", "restart.maxRestarts=3")
    run = run_job("examples/penguins-ray.yaml", *arguments, "--volume", f"penguins-ray={claim}", *options)
    run.wait_for(r"epoch 3/12", TIMEOUT)
    return run


def kill(run: Run, pod: str, command: str, number: int = signal.SIGKILL) -> set[int]:
    """Sends a signal to the processes of a pod whose command line contains `command`."""
    found = of_pod(run, pod, command)
    assert found, processes_of(run.marker)
    for pid in found:
        os.kill(pid, number)
    return found


def of_pod(run: Run, pod: str, command: str) -> set[int]:
    role, _, index = pod.rpartition("-")
    found = processes_of(run.marker, f"ALLRANKS_ROLE={role}", f"ALLRANKS_INDEX={index}")
    return {pid for pid, line in found.items() if command in line}


def wait_until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


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
def test_a_hang_is_detected_and_the_ranks_show_their_stacks(run_job, tmp_path: Path) -> None:
    arguments = "args=[--epochs=16, --work=0.05, --slow-rank=1, --hang-rank=1, --hang-at-step=110]"
    hang = ("--set", arguments, "--set", "hang.timeoutSeconds=40")
    run = run_job("examples/penguins-ray.yaml", *hang, "--volume", f"penguins-ray={tmp_path / 'claim'}")
    run.wait_for(r"stacks, asked for because the job makes no progress", TIMEOUT)
    run.wait_for(r"rank 1 .* did not complete step 110", TIMEOUT)
    run.finish(TIMEOUT)
    assert run.code == 0, run.output
    assert [past["reason"] for past in run.status["history"]] == ["Hang", "Completed"]


@pytest.mark.nightly
def test_an_elastic_example_resumes_after_a_lost_worker(run_job, tmp_path: Path) -> None:
    elastic = ("--set", "elastic.minReplicas=1", "--set", "elastic.maxReplicas=2", "--set", "elastic.waitSeconds=60")
    run = started(run_job, tmp_path / "claim", *elastic)
    kill(run, "worker-1", "ray_node.py")
    assert_resumed(run, tmp_path / "claim")
    assert run.status["attempt"] == 0


ELASTIC = """
import json, os, time, ray, tempfile
from pathlib import Path
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train():
    context = ray.train.get_context()
    rank, sizes = context.get_world_rank(), []
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            sizes = json.loads((Path(folder) / "sizes").read_text())
    sizes.append(context.get_world_size())
    print(f"rank {rank} of sizes {sizes}", flush=True)
    reports = 0
    while reports < 5 or sizes[-3:] != [2, 1, 2]:
        reports += 1
        time.sleep(0.5)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "sizes").write_text(json.dumps(sizes))
            ray.train.report({"size": sizes[-1]}, Checkpoint.from_directory(folder) if rank == 0 else None)
        if reports == 3:  # the controller has recorded the first one
            print(f"rank {rank} reported {sizes}", flush=True)

bounds = (int(os.environ["ALLRANKS_RAY_MIN_WORKERS"]), int(os.environ["ALLRANKS_RAY_MAX_WORKERS"]))
TorchTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=bounds, elastic_resize_monitor_interval_s=5),
    run_config=RunConfig(name="elastic", storage_path="PATH", failure_config=FailureConfig(max_failures=-1)),
).fit()
"""


@pytest.mark.nightly
def test_elastic_ranks_follow_the_number_of_workers(run_job, tmp_path: Path) -> None:
    """A worker that is lost twice comes back after a backoff. Meanwhile one rank continues; with the worker, two do.

    Ray Train first waits for a new group of two ranks, because it does not know yet that the node is lost."""
    elastic = {"minReplicas": 1, "maxReplicas": 2, "waitSeconds": 120}
    restart = {"maxRestarts": 5, "backoffSeconds": 100}
    env = [
        {"name": "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "value": "30"},
        {"name": "RAY_DEDUP_LOGS", "value": "0"},
    ]
    job = manifest(tmp_path, ELASTIC.replace("PATH", str(tmp_path)), elastic=elastic, restart=restart, env=env)
    run = run_job(job)
    run.wait_for(r"rank 0 reported \[2\]", TIMEOUT)
    first = kill(run, "worker-1", "ray_node.py")
    wait_until(lambda: of_pod(run, "worker-1", "ray_node.py") - first)
    kill(run, "worker-1", "ray_node.py")
    run.wait_for(r"rank 0 reported \[2, .*1\]", TIMEOUT)
    run.wait_for(r"rank 1 of sizes \[2, .*1, 2\]", TIMEOUT)
    run.finish(TIMEOUT)
    assert run.code == 0, run.output
    assert run.status["attempt"] == 0
    assert run.status["restarts"]["counted"] == 2
    failure = run.status["lastFailure"]
    assert (failure["role"], failure["index"], failure["signal"]) == ("worker", 1, 9)


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
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=3), run_config=run_config).fit()
"""


@pytest.mark.nightly
def test_ranks_of_ray_train_report_without_a_changed_line_and_the_slow_one_is_named(run_job, tmp_path: Path) -> None:
    job = manifest(tmp_path, REPORTS.replace("PATH", str(tmp_path)), workers=3, progress={})
    run = run_job(job).finish(TIMEOUT)
    assert run.code == 0, run.output
    progress = run.status["progress"]
    assert [progress[name] for name in ("step", "totalSteps", "epoch")] == [20, 20, 20]
    assert progress["metrics"] == {"loss": 0.05}
    assert sorted((rank["rank"], rank["step"]) for rank in progress["ranks"]) == [(0, 20), (1, 20), (2, 20)]
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
