"""`allranks run SCRIPT`: the framework follows from imports, and the job needs no manifest."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from allranks.api.validation import parse
from allranks.authoring.script_job import job_name, make_job, read_command, read_module, read_script
from allranks.core.objects import pods
from allranks.errors import InvalidManifest
from allranks.frameworks import FRAMEWORKS


def script(folder: Path, text: str, name: str = "train.py", **modules: str) -> Any:
    (folder / name).write_text(text)
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)
    return read_script(name, folder)


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        ("import torch", "pytorch"),
        ("import torch.distributed as dist", "pytorch"),
        ("from torch.nn import Linear", "pytorch"),
        ("def main():\n    import lightning as L", "pytorch"),
        ("from accelerate import Accelerator", "pytorch"),
        ("import tensorflow as tf", "tensorflow"),
        ("import keras", "tensorflow"),
        ("import torch\nimport horovod.torch as hvd", "horovod"),
        ("import ray\nimport torch", "ray"),
        ("import horovod.tensorflow.keras as hvd\nimport tensorflow as tf", "horovod"),
    ],
)
def test_the_framework_follows_from_the_imports(tmp_path, source, framework):
    job, notes = make_job(script(tmp_path, source))
    assert job["spec"]["framework"] == framework
    assert notes[0].startswith(f"framework {framework}, because train.py imports ")


def test_a_ray_script_gets_a_head_beside_its_workers(tmp_path):
    job, _ = make_job(script(tmp_path, "import ray\nray.init()"), replicas=3)
    assert job["spec"]["roles"] == {"head": {"replicas": 1}, "worker": {"replicas": 3}}


def test_modules_beside_the_script_are_read_too(tmp_path):
    source = "from model import Net\nimport broken"
    found = script(tmp_path, source, model="import helpers", helpers="import torch", broken="def (")
    job, notes = make_job(found)
    assert job["spec"]["framework"] == "pytorch"
    assert notes[0] == "framework pytorch, because helpers.py imports torch"


def test_modules_that_import_each_other_are_read_once(tmp_path):
    found = script(tmp_path, "import a", a="import b", b="import a, torch")
    assert found.guess_framework() == ("pytorch", "b.py imports torch")


def test_a_program_without_an_import_of_a_framework_is_spmd(tmp_path):
    source = script(tmp_path, "import json")
    job, notes = make_job(source, replicas=2)
    assert (job["spec"]["framework"], job["spec"]["command"]) == ("spmd", ["python3", "train.py"])
    assert notes == ["framework spmd, because train.py imports no other"]
    job, notes = make_job(source, framework="tensorflow")
    assert (job["spec"]["framework"], notes) == ("tensorflow", [])


@pytest.mark.parametrize("folder", ["", "src"])
def test_a_module_is_read_and_started_by_the_launcher_of_its_framework(tmp_path, folder):
    package = tmp_path / folder / "pkg"
    package.mkdir(parents=True)
    (package / "model.py").write_text("import torch")
    (package / "train.py").write_text("from pkg.model import Net")
    job, notes = make_job(read_module("pkg.train", tmp_path), arguments=["--lr", "1"])
    assert (job["metadata"]["name"], job["spec"]["command"]) == ("train", ["torchrun", "-m", "pkg.train"])
    assert job["spec"]["args"] == ["--lr", "1"]
    assert notes[0] == "framework pytorch, because pkg/model.py imports torch"


def test_a_package_is_started_by_its_main_module(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__main__.py").write_text("import jax")
    job, _ = make_job(read_module("pkg", tmp_path))
    assert (job["metadata"]["name"], job["spec"]["framework"]) == ("pkg", "jax")


def test_the_package_of_an_installed_module_shows_its_framework(tmp_path):
    job, notes = make_job(read_module("trl.scripts.sft", tmp_path), replicas=2)
    assert job["spec"]["framework"] == "pytorch"
    assert notes == ["framework pytorch, because trl.scripts.sft is a module of trl"]


def test_of_a_module_that_is_not_here_nothing_is_claimed(tmp_path):
    job, notes = make_job(read_module("installed.train", tmp_path), replicas=2)
    assert job["spec"]["command"] == ["python3", "-m", "installed.train"]
    assert notes == ["framework spmd, because the source of installed.train is not here"]


@pytest.mark.parametrize(
    ("command", "framework", "name"),
    [
        ("torchrun -m pkg.train --lr 1", "pytorch", "train"),
        ("torchrun --nproc-per-node 2 pkg/train.py", "pytorch", "train"),
        ("python3 -u -X dev pkg/train.py", "jax", "train"),
        ("python3 -m pkg.train", "jax", "train"),
        ("python3 -m torch.distributed.run pkg/train.py", "pytorch", "train"),
        ("accelerate launch pkg/train.py", "pytorch", "train"),
        ("horovodrun -np 1 python3 pkg/train.py", "horovod", "train"),
        ("mpirun -np 1 pkg/train.py", "mpi", "train"),
        ("bash -c 'cd pkg && python3 train.py'", "spmd", "train"),
        ("bash -c 'echo begin && python3 -m pkg.train'", "jax", "train"),
        ("train-pkg --lr 1", "jax", "train-pkg"),
        ("./simulate --steps 3", "spmd", "simulate"),
    ],
)
def test_the_framework_and_the_name_follow_from_a_command(tmp_path, monkeypatch, command, framework, name):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/train.py").write_text("import jax")
    entry_point = tmp_path / "train-pkg"
    entry_point.write_text("#!/usr/bin/python3\nfrom pkg.train import main\nmain()\n")
    entry_point.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    words = shlex.split(command)
    job, _ = make_job(read_command(words, tmp_path))
    assert (job["spec"]["framework"], job["metadata"]["name"]) == (framework, name)
    assert job["spec"]["command"] == words


def notebook(folder: Path, *cells: str) -> Any:
    """A notebook whose first cell is text."""
    text = {"cell_type": "markdown", "metadata": {}, "source": ["import tensorflow"]}
    code = [{"cell_type": "code", "metadata": {}, "source": cell.splitlines(keepends=True)} for cell in cells]
    (folder / "train.ipynb").write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": [text, *code]}))
    return read_script("train.ipynb", folder)


@pytest.mark.parametrize(
    ("source", "launcher", "rank"),
    [
        ("import torch", ["torchrun", "--no-python"], "$RANK"),
        ("import tensorflow", [], "$ALLRANKS_INDEX"),
        ("import horovod.torch", [], "$HOROVOD_RANK"),
        ("from mpi4py import MPI", [], "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"),
    ],
)
def test_a_notebook_is_executed_by_each_rank_and_kept_under_its_rank(tmp_path, source, launcher, rank):
    found = notebook(tmp_path, "%matplotlib inline\n!pip list\n" + source, "an unfinished (")
    job, _ = make_job(found, replicas=2, arguments=["--lr", "0.1", "--note=a=b"])
    *words, text, last = job["spec"]["command"]
    assert [*words, last] == [*launcher, "sh", "-c", "sh"]
    assert "python3 -m papermill -k python3" in text
    assert text.endswith(f'train.ipynb "$ALLRANKS_OUTPUT_NOTEBOOKS/train-{rank}.ipynb" "$@"')
    assert job["spec"]["args"] == ["-p", "lr", "0.1", "-p", "note", "a=b"]
    parsed = parse(job)
    assert pods.problems(parsed) == []
    assert [output.name for output in parsed.spec.outputs or ()] == ["notebooks"]


@pytest.mark.parametrize("arguments", [["3"], ["--lr"], ["-p", "lr", "1"], ["--learning-rate=1"]])
def test_an_argument_that_is_no_parameter_of_a_notebook_is_refused(tmp_path, arguments):
    with pytest.raises(InvalidManifest, match="the parameters of a notebook are --NAME VALUE"):
        make_job(notebook(tmp_path, "import torch"), arguments=arguments)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": [1]}', '{"worksheets": []}'])
def test_a_file_that_is_no_notebook(tmp_path, text):
    (tmp_path / "train.ipynb").write_text(text)
    with pytest.raises(InvalidManifest, match="is not a notebook of Jupyter, version 4 or newer"):
        read_script("train.ipynb", tmp_path)


@pytest.mark.parametrize(
    ("source", "problem"), [("def (", "is not Python: line 1: invalid syntax"), ("\0", "is not Python: ")]
)
def test_a_script_that_is_not_python(tmp_path, source, problem):
    with pytest.raises(InvalidManifest) as raised:
        script(tmp_path, source)
    ((path, message),) = raised.value.problems
    assert path.endswith("train.py")
    assert message.startswith(problem)


@pytest.mark.parametrize(
    ("source", "noted"),
    [
        ("import torch", True),
        ("import torch\ntorch.distributed.init_process_group()", False),
        ("from accelerate import Accelerator\nAccelerator()", False),
        ("import tensorflow as tf\ntf.distribute.MirroredStrategy()", True),
        ("import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()", False),
        ("import horovod.torch as hvd\nhvd.init()", False),
        ("import ray\nray.init()", False),
    ],
)
def test_a_script_that_never_forms_a_group_is_noted(tmp_path, source, noted):
    found = script(tmp_path, source)
    assert any("independent copies" in note for note in make_job(found, replicas=2)[1]) is noted
    assert not any("independent copies" in note for note in make_job(found)[1])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_job_is_valid_for_every_framework(tmp_path, framework):
    found = script(tmp_path, "print(1)")
    document, _ = make_job(found, framework=framework, replicas=3, gpus=2, env=[("A", "b=c")], arguments=["--lr", "3"])
    job = parse(document)
    assert pods.problems(job) == []
    assert job.spec.args == ["--lr", "3"]
    assert document["spec"]["resources"] == {"limits": {"nvidia.com/gpu": 2}}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("train.py", "train"),
        ("src/Train_GPT.py", "train-gpt"),
        ("1.py", "job-1"),
        ("__main__.py", "main"),
        ("ü.py", "job"),
        ("a" * 80 + ".py", "a" * 40),
    ],
)
def test_the_name_of_the_job(path, name):
    assert job_name(path) == name
