"""`allranks init`: starter manifests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from allranks.authoring.manifests import load
from allranks.cli.main import cli

REPOSITORY = Path(__file__).parents[3]
PROGRAMS = sorted(
    path.name
    for path in (REPOSITORY / "train").glob("*.py")
    if path.name != "measure.py" and '"__main__"' in path.read_text()
)


def init(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["init", *arguments])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


SCRIPT = """\
import argparse
import os
import torch, lightning

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3, help="number of\\nepochs # all of them")
parser.add_argument("--data", required=True)
parser.add_argument("--amp", action="store_true")
parser.add_argument("-o", "--output-dir", default="yes")
parser.add_argument("folder", help="of images")
parser.add_argument("more", nargs="*")
"""

MANIFEST = """\
# A starting point for train.py. Try it on this machine first: allranks run job.yaml
# Then set the image and submit it: allranks submit job.yaml
# All fields: docs/reference/fields.md, or kubectl explain dt.spec --recursive
apiVersion: allranks.dev/v1alpha1
kind: DistributedTraining
metadata:
  name: train
spec:
  framework: pytorch
  # Lightning reports its progress by itself. Trainer(devices=..., num_nodes=...) must match the ranks.
  # An image that has train.py and its packages. `allranks run` does not use it.
  image: train:dev
  command: [torchrun, train.py]
  # Options of the script, with their defaults:
  args:
  - --data=CHANGE-ME
  - CHANGE-ME  # folder: of images
  # - --epochs=3  # number of epochs # all of them
  # - --amp
  # - --output-dir=yes
  roles:
    worker:
      replicas: 2  # pods
  # Of each pod:
  # resources:
  #   limits: {nvidia.com/gpu: 1, memory: 32Gi}
  # A volume that keeps checkpoints over restarts, mounted at /checkpoints in all pods. Let the script save
  # to the directory in the variable ALLRANKS_CHECKPOINT_DIR, and resume from it.
  # An argument for it: --output-dir=$(ALLRANKS_CHECKPOINT_DIR)
  # checkpoint:
  #   claim: train-checkpoints
  restart:
    maxRestarts: 3  # after failures of the program; those of the cluster do not count
    # holdSeconds: 1800  # keep the pods of a failed job for a look: allranks exec JOB --rank 0
  # Restart a job that makes no step for this long. It needs progress reports (docs/guides/reporting.md).
  # hang: {timeoutSeconds: 600}
"""


def test_the_manifest_has_what_the_script_says_and_explains_the_rest(folder):
    (folder / "train.py").write_text(SCRIPT)
    result = init("train.py")
    assert result.exit_code == 0, result.output
    assert (folder / "job.yaml").read_text() == MANIFEST
    assert result.stderr.splitlines() == [
        "note: framework pytorch, because train.py imports torch",
        "note: replace CHANGE-ME: train.py requires --data, folder",
        "wrote job.yaml: try it with `allranks run job.yaml`",
    ]


def test_a_program_of_Hugging_Face_needs_no_import_of_torch(folder):
    (folder / "train.py").write_text("from transformers import Trainer, TrainingArguments\n")
    result = init("train.py")
    assert result.stderr.startswith("note: framework pytorch, because train.py imports transformers\n")
    text = (folder / "job.yaml").read_text()
    assert "  command: [torchrun, train.py]\n" in text
    assert "The Trainer of Hugging Face takes the ranks from torchrun" in text


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_manifest_of_each_training_program_is_valid(program, folder, monkeypatch):
    monkeypatch.chdir(REPOSITORY / "train")
    result = init(program, "-o", str(folder / "job.yaml"), "--gpus", "2", "--image", "registry.example.com/a@sha256:1")
    assert result.exit_code == 0, result.output
    [job] = load([str(folder / "job.yaml")], ()).jobs
    assert job.spec.roles["worker"].replicas == 2
    assert job.spec.command[-1] == program
    assert job.spec.image == "registry.example.com/a@sha256:1"


def test_a_script_that_saves_checkpoints_gets_a_claim(folder):
    (folder / "train.py").write_text("import os, torch\nfolder = os.environ['ALLRANKS_CHECKPOINT_DIR']\n")
    result = init("train.py", "-o", "-")
    assert yaml.safe_load(result.stdout)["spec"]["checkpoint"] == {"claim": "train-checkpoints"}


@pytest.mark.parametrize(
    ("option", "argument"),
    [
        ('"--ckpt", default="ckpt.pt"', "--ckpt=$(ALLRANKS_CHECKPOINT_DIR)/ckpt.pt"),
        ('"--save-file", default="out/last.ckpt"', "--save-file=$(ALLRANKS_CHECKPOINT_DIR)/last.ckpt"),
        ('"--output-dir", default="./results"', "--output-dir=$(ALLRANKS_CHECKPOINT_DIR)"),
        ('"--model", default="llama-3.1"', "--model=$(ALLRANKS_CHECKPOINT_DIR)"),
        ('"--save-dir"', "--save-dir=$(ALLRANKS_CHECKPOINT_DIR)"),
    ],
)
def test_a_default_that_names_a_file_gets_a_file_in_the_directory(folder, option, argument):
    (folder / "train.py").write_text(
        f"import torch\nimport argparse\nparser = argparse\nparser.add_argument({option})\n"
    )
    assert f"  # An argument for it: {argument}\n" in init("train.py", "-o", "-").stdout


def test_texts_of_the_script_cannot_become_fields_of_the_manifest(folder):
    hostile = 'add_argument("--a", default="x\\nspec: {image: evil}", help="h\\nimage: evil", required=False)'
    (folder / "train.py").write_text(f"import torch\nimport argparse\nparser = argparse\nparser.{hostile}\n")
    document = yaml.safe_load(init("train.py", "-o", "-").stdout)
    assert document["spec"]["image"] == "train:dev"
    assert sorted(document["spec"]) == ["command", "framework", "image", "restart", "roles"]


def test_an_existing_file_is_kept(folder):
    (folder / "train.py").write_text("import torch\n")
    (folder / "job.yaml").write_text("mine")
    result = init("train.py")
    assert result.exit_code == 2
    assert result.stderr == "error: job.yaml exists: choose another name with -o, or remove it\n"
    assert (folder / "job.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n", "is not Python: line 1"),
        (None, "cannot be read: no such file or directory"),
    ],
)
def test_a_script_that_cannot_be_understood_is_an_error(folder, source, message):
    if source is not None:
        (folder / "train.py").write_text(source)
    result = init("train.py")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (folder / "job.yaml").exists()


def test_the_manifest_runs(folder):
    (folder / "train.py").write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    assert init("train.py").exit_code == 0
    command = [sys.executable, "-m", "allranks", "run", "job.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"rank 0 of 2", "rank 1 of 2"} <= {line.partition(" | ")[2] for line in done.stdout.splitlines()}
