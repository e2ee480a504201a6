"""`allranks sweep` makes a TrainingSweep of a job and options, and `allranks validate` knows sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from allranks.authoring.sweep_manifests import parameter, sweep_document
from allranks.cli.main import cli
from allranks.errors import InvalidManifest
from support.builders import manifest, table
from unit.api.test_sweep import sweep


@table(
    ("a range of orders of magnitude", "lr=log:1e-4..1e-1", {"logUniform": {"min": 0.0001, "max": 0.1}}),
    ("a range of numbers", "d=0..0.5", {"uniform": {"min": 0.0, "max": 0.5}}),
    ("a range of numbers by name", "d=uniform:0..1", {"uniform": {"min": 0.0, "max": 1.0}}),
    ("a range of whole numbers", "n=1..8", {"int": {"min": 1, "max": 8}}),
    ("a range of whole numbers by name", "n=int:1..8", {"int": {"min": 1, "max": 8}}),
    ("points of a grid", "lr=log:1e-4..1e-1/4", {"logUniform": {"min": 0.0001, "max": 0.1, "points": 4}}),
    ("a range of whole numbers with a step", "n=8..64..8", {"int": {"min": 8, "max": 64, "step": 8}}),
    ("a range of numbers with a step", "d=0..0.5..0.1", {"uniform": {"min": 0.0, "max": 0.5, "step": 0.1}}),
    ("a normal distribution", "d=normal:-1,2e-1", {"normal": {"mu": -1.0, "sigma": 0.2}}),
    ("a logarithmic one", "d=lognormal:-7,1", {"logNormal": {"mu": -7.0, "sigma": 1.0}}),
    ("a gamma distribution", "d=gamma:2,0.01", {"gamma": {"shape": 2.0, "scale": 0.01}}),
    ("a beta distribution", "d=beta:2,5", {"beta": {"alpha": 2.0, "beta": 5.0}}),
    ("an exponential distribution", "d=exponential:0.5", {"exponential": {"mean": 0.5}}),
    ("values", "b=16,32", {"values": [16, 32]}),
    ("values of several types", "b=adam,0.5,true", {"values": ["adam", 0.5, True]}),
    ("one value", "b=-1", {"values": [-1]}),
)
def test_param(case):
    text, expected = case
    assert parameter(text)[1] == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--param", "lr=1,2", "--param", "lr=3..4"], "error: --param lr: is given twice: remove one of them\n"),
        (["--param", "lr=1,2", "--algorithm", "Grid", "--stop", "ASHA"], ""),
    ],
)
def test_options_of_a_sweep(tmp_path: Path, options: list[str], said: str):
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest()))
    made = CliRunner().invoke(cli, ["sweep", str(tmp_path / "job.yaml"), "--metric", "loss", "--dry-run", *options])
    assert (made.exit_code, made.stderr) == (2 if said else 0, said)


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        (["--param", "lr=1,2", "--param", "b=16,32"], "Grid"),
        (["--param", "lr=1,2", "--trials", "5"], "Random"),
        (["--param", "lr=1,2", "--param", "b=1..9", "--trials", "5"], "Random"),
        (["--param", "lr=1,2", "--algorithm", "random", "--trials", "2"], "Random"),
    ],
)
def test_lists_of_values_without_a_number_of_trials_are_a_grid(job, options: list[str], algorithm: str):
    done = run("sweep", job, "--metric", "loss", "--dry-run", *options)
    assert yaml.safe_load(done.stdout)["spec"]["algorithm"] == algorithm


def test_a_distribution_without_its_numbers_is_answered_with_its_form():
    with pytest.raises(InvalidManifest, match=r"--param d=normal:1: must be d=normal:MU,SIGMA, with numbers"):
        parameter("d=normal:1")


def test_without_a_metric_the_sweep_has_no_objective(job, tmp_path):
    done = run("sweep", job, "--param", "lr=exponential:0.1", "--trials", "10", "--dry-run")
    (tmp_path / "made.yaml").write_text(done.stdout)
    assert run("validate", str(tmp_path / "made.yaml")).stdout == "job is valid: a TrainingSweep of 10 trials\n"
    assert "objective" not in yaml.safe_load(done.stdout)["spec"]


def test_a_goal_without_a_metric_is_refused(job):
    done = run("sweep", job, "--param", "lr=1,2", "--goal", "max", "--trials", "2", "--dry-run")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "error: --goal: needs --metric" in done.stderr


@pytest.mark.parametrize("text", ["lr", "lr=", "=1", "lr=log:1", "lr=1..", "n=int:1..2.5", "n=int:1..8..0.5"])
def test_a_wrong_param_is_named_with_an_example(text):
    with pytest.raises(InvalidManifest, match=r"for example|write lr=log:1e-4\.\.1e-1"):
        parameter(text)


def test_a_parameter_that_the_job_does_not_name_is_an_argument():
    made = sweep_document(manifest(args=["--lr=$(lr)"]), [("lr", {"values": [1]}), ("batch", {"values": [2]})])
    assert made["spec"]["template"]["spec"]["args"] == ["--lr=$(lr)", "--batch=$(batch)"]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, list(arguments))


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest()))
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep()))
    return str(path)


def test_dry_run_prints_a_sweep_for_a_cluster(job, tmp_path):
    options = [
        "--param",
        "lr=log:1e-4..1e-1",
        "--metric",
        "loss",
        "--trials",
        "20",
        "--parallel",
        "4",
        "--stop",
        "asha",
    ]
    done = run("sweep", job, *options, "--dry-run")
    assert done.exit_code == 0, done.output
    (tmp_path / "made.yaml").write_text(done.stdout)
    checked = run("validate", str(tmp_path / "made.yaml"))
    assert checked.stdout == "job is valid: a TrainingSweep of 20 trials\n"
    spec = yaml.safe_load(done.stdout)["spec"]
    assert (spec["parallel"], spec["stop"], spec["objective"]["goal"]) == (4, {"rule": "ASHA"}, "Minimize")


def test_validate_names_the_field_in_the_template(file):
    done = run("validate", file, "--set", "template.spec.roles.worker.replicas=-1")
    assert done.exit_code == 2
    assert "spec.template.spec.roles.worker.replicas: " in done.stderr


def test_a_job_without_parameters_is_no_sweep(job):
    done = run("sweep", job)
    assert done.exit_code == 2
    assert "describe the sweep of its job with --param and --metric" in done.stderr


def test_a_script_is_swept_without_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    words = (
        "-n",
        "2",
        "--param",
        "lr=1,2",
        "--trials",
        "2",
        "--workdir",
        str(tmp_path),
        "--dry-run",
        "--",
        "--epochs",
        "3",
    )
    done = run("sweep", "train.py", *words)
    assert done.exit_code == 0, done.stderr
    spec = yaml.safe_load(done.stdout)["spec"]
    job = spec["template"]["spec"]
    assert (job["framework"], job["command"], job["args"]) == (
        "pytorch",
        ["torchrun", "train.py"],
        ["--epochs", "3", "--lr=$(lr)"],
    )
    assert job["roles"] == {"worker": {"replicas": 2}}
    assert list(spec["parameters"]) == ["lr"]


def test_arguments_are_for_a_script(job: str) -> None:
    done = run("sweep", job, "--param", "lr=1", "--", "--epochs", "3")
    assert done.exit_code == 2
    assert done.stderr == "error: --: is for a script: change a manifest with --set\n"


def test_options_of_a_sweep_do_not_change_a_manifest_of_one(file):
    done = run("sweep", file, "--trials", "3")
    assert done.exit_code == 2
    assert "--trials: describes the sweep of a job; change a TrainingSweep with --set" in done.stderr


def test_TPE_without_Optuna_is_refused_before_any_trial(file, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = run("sweep", file, "--set", "algorithm=TPE", "--run-dir", str(tmp_path / "run"))
    assert done.exit_code == 2
    assert "algorithm TPE needs the Python package optuna, which is not installed: " in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_sweep_runs_alone(file, job):
    done = run("run", file, job)
    assert done.exit_code == 2
    assert "run a sweep alone" in done.stderr
