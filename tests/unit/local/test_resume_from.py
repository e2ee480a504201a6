"""`resumeFrom` on this machine, with real processes: from an earlier run, and from a trial of a sweep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from support.data_servers import s3_environment, s3_server

SAVES = """
import os, sys
from pathlib import Path
from allranks.report import report
folder = Path(os.environ["ALLRANKS_CHECKPOINT_DIR"])
first = max((int(path.name.split("-")[1]) for path in folder.glob("step-*")), default=0)
print("starts at", first, flush=True)
for step in range(first + 1, first + 3):
    (folder / f"step-{step}").write_text(str(step))
    report(step=step, checkpoint=True)
"""
SAVED = {"name": "saved", "path": "/checkpoints", "to": "s3://models/run", "when": "Checkpoint"}
ALLRANKS = [sys.executable, "-m", "allranks"]
PROGRAM = """
import os, sys
from pathlib import Path
from allranks.report import report
folder = Path(os.environ["ALLRANKS_CHECKPOINT_DIR"])
first = max((int(path.name.split("-")[1]) for path in folder.glob("step-*")), default=0)
print("starts at", first, flush=True)
for step in range(first + 1, int(sys.argv[1]) + 1):
    report(step=step, total_steps=int(sys.argv[1]), loss=float(sys.argv[2]) / step)
    (folder / f"step-{step}").write_text(str(step))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def spec(folder: Path, steps: int, **fields: Any) -> dict[str, Any]:
    return {
        "framework": "spmd",
        "image": "example.org/x:1",
        "command": [sys.executable, str(folder / "train.py"), str(steps), "1"],
        "roles": {"worker": {"replicas": 1}},
        "checkpoint": {"claim": "checkpoints"},
        **fields,
    }


def document(name: str, of: dict[str, Any], kind: str = "DistributedTraining") -> str:
    whole = {"apiVersion": "allranks.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": of}
    return yaml.safe_dump(whole)


def allranks(folder: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "KUBECONFIG": str(folder / "none")}
    return subprocess.run(
        [*ALLRANKS, *arguments], cwd=folder, input=text, capture_output=True, text=True, timeout=300, env=environ
    )


def run(folder: Path, name: str, steps: int, **fields: Any) -> subprocess.CompletedProcess[str]:
    return allranks(folder, "run", "-", text=document(name, spec(folder, steps, **fields)))


def stored(folder: Path, name: str) -> set[str]:
    found = (folder / "runs" / name / "latest" / "checkpoint").glob("step-*")
    return {path.name for path in found}


def test_a_job_starts_from_the_newest_run_of_another_one_and_leaves_its_checkpoints_alone(folder: Path):
    assert run(folder, "first", 3).returncode == 0
    before = stored(folder, "first")
    done = run(folder, "second", 5, resumeFrom="first")
    assert done.returncode == 0, done.stderr
    assert "starts at 3" in done.stdout + done.stderr
    assert stored(folder, "second") == {f"step-{step}" for step in range(1, 6)}
    assert stored(folder, "first") == before == {"step-1", "step-2", "step-3"}
    done = run(folder, "third", 5, resumeFrom="second/2")
    assert "starts at 2" in done.stdout + done.stderr


@pytest.mark.nightly
def test_what_cannot_be_resumed_from_is_refused_before_anything_starts(folder: Path):
    unknown = run(folder, "second", 5, resumeFrom="first")
    assert (unknown.returncode, "spec.resumeFrom: there is no run of first in runs" in unknown.stderr) == (2, True)
    run(folder, "first", 1, checkpoint=None)
    without = run(folder, "second", 5, resumeFrom="first")
    assert (without.returncode, "has no checkpoints" in without.stderr) == (2, True)
    run(folder, "first", 3)
    step = run(folder, "second", 5, resumeFrom="first/9")
    assert "first has no checkpoint whose name contains step 9: it has step-1, step-2, step-3" in step.stderr


@pytest.mark.parametrize("store", ["s3", "a directory"])
def test_a_job_that_is_run_again_continues_from_what_it_has_uploaded(folder: Path, monkeypatch, store: str):
    """As with checkpoint_s3_uri: the first run finds nothing at the address, and the next ones find the newest step."""
    (folder / "train.py").write_text(SAVES)
    monkeypatch.setenv("ALLRANKS_CACHE", str(folder / "cache"))
    fields = {"resumeFrom": "s3://models/run", "outputs": [SAVED], "progress": {}}
    words = ["--volume", f"saved={folder}/saved"] if store == "a directory" else []
    with s3_server() as url:
        for name, value in s3_environment(url).items():
            monkeypatch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="models")
        for first in (0, 2, 4):
            text = document("again", spec(folder, 0, **fields))
            done = allranks(folder, "run", "-", *words, text=text)
            assert done.returncode == 0, done.stdout + done.stderr
            assert f"starts at {first}" in done.stdout
            status = json.loads((folder / "runs/again/latest/job.json").read_text())["status"]
            assert status["outputs"][0]["uploadedStep"] == first + 2
            [start] = status["inputs"]
            assert start["revision"].startswith(f"step-{first}:list:" if first else "list:")
    assert stored(folder, "again") == {"step-4", "step-5", "step-6"}
    said = "the checkpoints of s3://models/run are copied: step-4" if store == "s3" else "are copied: step-4"
    assert said in done.stdout


@pytest.mark.nightly
def test_a_trial_of_a_sweep_is_promoted(folder: Path):
    job = spec(folder, 3)
    job["command"][-1] = "$(lr)"
    sweep = {
        "parameters": {"lr": {"values": [0.5, 0.1]}},
        "objective": {"metric": "loss", "goal": "Minimize"},
        "algorithm": "Grid",
        "template": {"spec": job},
    }
    (folder / "sweep.yaml").write_text(document("search", sweep, "TrainingSweep"))
    done = allranks(folder, "sweep", "sweep.yaml", "--quiet")
    assert done.returncode == 0, done.stderr
    best, first = allranks(folder, "promote", "search"), allranks(folder, "promote", "search", "0", "-o", "json")
    assert yaml.safe_load(best.stdout)["metadata"]["name"] == "search-1-promoted"
    made = json.loads(first.stdout)
    assert made["spec"]["resumeFrom"] == "search-0"
    assert made["spec"]["command"][-1] == "0.5"
    made["spec"]["command"][-2] = "6"
    done = allranks(folder, "run", "-", text=json.dumps(made))
    assert done.returncode == 0, done.stderr
    assert "starts at 3" in done.stdout + done.stderr
    missing = allranks(folder, "promote", "search", "7")
    assert "search has no trial 7: it has 2 trials, from 0" in missing.stderr
    assert missing.returncode == 1
