"""Trackers with real ranks: one experiment for all ranks and attempts, each step once, although a rank is killed."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import tools

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

ALLOW_FILES = {"MLFLOW_ALLOW_FILE_STORE": "true"}
UID = "$(ALLRANKS_JOB_UID)"
STEPS = """
import os, signal
from pathlib import Path

from allranks.report import report

rank, attempt = int(os.environ["RANK"]), int(os.environ["ALLRANKS_ATTEMPT"])
folder = Path(os.environ["ALLRANKS_CHECKPOINT_DIR"])

def steps():
    \"\"\"Twelve steps with a checkpoint at the fifth. Rank 0 is killed after the eighth, in the first attempt.\"\"\"
    stored = folder / f"rank-{rank}"
    for step in range(int(stored.read_text()) if stored.exists() else 1, 13):
        yield step
        report(step=step)
        if step == 5:
            stored.write_text("6")
        if step == 8 and attempt == 0:
            complete()
            (folder / f"reached-{rank}").touch()
            while not all((folder / f"reached-{other}").exists() for other in (0, 1)):
                pass
            if rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
"""
MLFLOW = """
import mlflow

complete = lambda: None
mlflow.set_experiment("penguins")
with mlflow.start_run(run_name="mine"):
    mlflow.log_params({"lr": 0.1, "attempt": attempt})
    for step in steps():
        if rank == 0:
            mlflow.log_metric("loss", 100 * attempt + step, step=step)
            mlflow.log_metrics({"accuracy": step / 12}, step=step)
    mlflow.log_metric("best", attempt)
"""
TENSORBOARD = """
from PACKAGE import SummaryWriter

writer = SummaryWriter(str(folder / f"tensorboard-{rank}"))
complete = writer.close
writer.add_text("configuration", "the same")
for step in steps():
    writer.add_scalar("loss", 100 * attempt + step, step)
writer.close()
"""
RECORD = """
from allranks.report import finish

complete = lambda: finish(10)
for step in steps():
    if rank == 0:
        report(step=step, loss=100 * attempt + step, accuracy=step / 4 if step != 4 else float("nan"))
"""
WANDB = """
import wandb

run = wandb.init(project="penguins", dir=str(folder))
complete = lambda: None
print("run", run.id, "of", run.group, "in job", os.environ["ALLRANKS_JOB_UID"], flush=True)
for step in steps():
    run.log({"loss": step}, step=step)
run.finish()
"""


@pytest.fixture(scope="module")
def trackers() -> Path:
    return tools.built("packages.sh", "trackers")


@pytest.fixture
def run_program(run_job, tmp_path: Path):
    """Runs a program in two ranks, after which `tmp_path / "store"` has its files."""

    def run(python: Path, program: str, **env: str) -> Any:
        (tmp_path / "train.py").write_text(STEPS + program)
        (tmp_path / "store").mkdir()
        spec = {
            "framework": "spmd",
            "image": "none",
            "command": [str(python), "train.py"],
            "workingDir": str(tmp_path),
            "env": [{"name": name, "value": value} for name, value in env.items()],
            "checkpoint": {"claim": "store"},
            "progress": {},
            "restart": {"maxRestarts": 1, "backoffSeconds": 0},
            "roles": {"worker": {"replicas": 2}},
        }
        job = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "metadata": {"name": "penguins"}}
        (tmp_path / "job.yaml").write_text(json.dumps(job | {"spec": spec}))
        done = run_job(tmp_path / "job.yaml", "--volume", f"store={tmp_path / 'store'}").finish()
        assert done.code == 0, done.output
        assert done.status["attempt"] == 1, done.output
        return done

    return run


def history(python: Path, address: str) -> Any:
    """Return what MLflow's own client reads of all runs of the experiment."""
    script = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
[experiment] = [item for item in client.search_experiments() if item.name == "penguins"]
print(json.dumps([
    {
        "name": run.info.run_name,
        "status": run.info.status,
        "params": run.data.params,
        "tags": {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")},
        **{
            key: [(item.step, item.value) for item in client.get_metric_history(run.info.run_id, key)]
            for key in ("loss", "accuracy")
        },
    }
    for run in client.search_runs([experiment.experiment_id])
]))
"""
    done = subprocess.run(
        [python, "-c", script, address],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | ALLOW_FILES,
    )
    return json.loads(done.stdout)


@pytest.fixture
def mlflow_server(trackers: Path, tmp_path: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [trackers / "bin" / "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db", "--artifacts-destination", str(tmp_path)]
    path = f"{trackers / 'bin'}:/usr/bin:/bin"
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen([*command, *store], stdout=log, stderr=log, cwd=tmp_path, env={"PATH": path})
    try:
        address = f"http://127.0.0.1:{port}"
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=60).close()
                break
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None, (tmp_path / "server.log").read_text()
        yield address
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture(params=["files", "server"])
def mlflow_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "files":
        return f"file://{tmp_path}/runs"
    return str(request.getfixturevalue("mlflow_server"))


def test_mlflow_has_one_run_with_each_step_once(run_program, trackers: Path, mlflow_store: str) -> None:
    python = trackers / "bin" / "python"
    run_program(python, MLFLOW, MLFLOW_RUN_ID=UID, MLFLOW_TRACKING_URI=mlflow_store, **ALLOW_FILES)
    [run] = history(python, mlflow_store)
    assert (run["name"], run["status"]) == ("mine", "FINISHED")
    assert sorted(run["loss"]) == [[step, step + 100 * (step > 8)] for step in range(1, 13)]
    assert [step for step, _ in sorted(run["accuracy"])] == list(range(1, 13))
    assert run["params"] == {"lr": "0.1", "attempt": "0"}
    assert run["tags"]["attempt.attempt-1"] == "1"


@pytest.mark.parametrize("package", ["tensorboardX", "torch.utils.tensorboard"])
def test_tensorboard_shows_each_step_once(run_program, trackers: Path, frameworks: Path, tmp_path: Path, package: str):
    python = trackers / "bin" / "python"
    program = TENSORBOARD.replace("PACKAGE", package)
    if package == "tensorboardX":
        run_program(python, program)
    else:
        packages = next((trackers / "lib").glob("python*/site-packages"))
        with_tensorboard = f"import site\nsite.addsitedir({str(packages)!r})\n"
        run_program(frameworks / "bin" / "python", with_tensorboard + program)
    script = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print(json.dumps([(item.step, item.value) for item in events.Scalars("loss")]))
"""
    for rank in range(2):
        folder = tmp_path / "store" / f"tensorboard-{rank}"
        done = subprocess.run([python, "-c", script, folder], capture_output=True, text=True, check=True, timeout=120)
        assert json.loads(done.stdout) == [[step, step + 100 * (step > 8)] for step in range(1, 13)]


def test_the_record_of_metrics_is_read_with_pandas_and_tensorboard(run_program, trackers: Path, tmp_path: Path) -> None:
    """Show the same values in both, of a run whose program has no writer."""
    run_program(trackers / "bin" / "python", RECORD)
    run, events, table = tmp_path / "job-0" / "run", tmp_path / "events", tmp_path / "values.csv"
    packages = next((trackers / "lib").glob("python*/site-packages"))
    script = f"""
import json, math, site, sys
site.addsitedir({str(packages)!r})
import allranks, pandas
from allranks.cli.main import cli
run, events, table = sys.argv[1:]
values = allranks.history(run)
for words in (["--tensorboard", events], ["-o", table]):
    cli(["report", "--run-dir", run, *words], standalone_mode=False)
written = pandas.read_csv(table, parse_dates=["time"])
assert (written.value.fillna(-1) == values.value.fillna(-1)).all() and (written.time == values.time).all()
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
shown = EventAccumulator(events)
shown.Reload()
losses = values[(values.metric == "loss") & ~values.repeated]
print(json.dumps({{
    "types": {{name: str(kind) for name, kind in values.dtypes.items()}},
    "repeated": values[values.repeated].groupby("metric").step.apply(list).to_dict(),
    "loss": list(losses.set_index("step").value.items()),
    "tags": sorted(shown.Tags()["scalars"]),
    "shown": [(item.step, item.value) for item in shown.Scalars("loss")],
    "late": max(abs(a.wall_time - b.timestamp()) for a, b in zip(
        shown.Scalars("loss"), losses.time, strict=True)),
    "accuracy": [(item.step, None if math.isnan(item.value) else item.value) for item in shown.Scalars("accuracy")],
}}))
"""
    command = [sys.executable, "-c", script, run, events, table]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | {"TZ": "Asia/Tokyo"})
    assert done.returncode == 0, done.stderr
    assert "without 6 of repeated steps" in done.stderr
    read = json.loads(done.stdout)
    assert read["types"].pop("time").endswith(", UTC]")
    types = {"step": "int64", "attempt": "Int64", "metric": "str", "value": "float64", "repeated": "boolean"}
    assert read["types"] == types
    assert read["repeated"] == {"accuracy": [6, 7, 8], "loss": [6, 7, 8]}
    assert read["loss"] == read["shown"] == [[step, step + 100 * (step > 8)] for step in range(1, 13)]
    assert read["tags"] == ["accuracy", "loss"]
    assert read["late"] < 0.001
    assert read["accuracy"] == [[step, step / 4 if step != 4 else None] for step in range(1, 13)]


def test_weights_and_biases_has_one_run_for_each_rank_in_one_group(run_program, trackers: Path, tmp_path: Path) -> None:
    python = trackers / "bin" / "python"
    done = run_program(python, WANDB, WANDB_RUN_ID=UID, WANDB_MODE="offline")
    [uid] = set(re.findall(r"in job (\S+)", done.output))
    runs = re.findall(r"worker-(\d) \| run (\S+) of penguins", done.output)
    assert sorted(runs) == [("0", uid)] * 2 + [("1", f"{uid}-1")] * 2
    names = sorted(path.name.split("-", 3)[3] for path in (tmp_path / "store" / "wandb").glob("offline-run-*"))
    assert names == sorted([uid, uid, f"{uid}-1", f"{uid}-1"])
