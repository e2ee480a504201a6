"""Notebooks as jobs: each rank executes the notebook with the parameters, and the executed notebooks are kept."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import nbformat
import pytest
import yaml

from support.commands import allranks
from support.notebooks import REPOSITORY, outputs

pytestmark = pytest.mark.slow

CELLS = (
    "learning_rate = 0.5\nfails = False",
    'import os\nprint("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "learns with", learning_rate)',
    'if fails:\n    raise ValueError("a bad batch")',
)


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    """A notebook with a cell of parameters, and a kernel that only its author has."""
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"name": "my-kernel", "display_name": "mine", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), tmp_path / "train.ipynb")
    return tmp_path / "train.ipynb"


def run(folder: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """`allranks run`, whose ranks find the Python of `path`, by default that of this test."""
    programs = Path(path) if path else Path(sys.executable).parent
    return allranks("run", "--run-dir", "run", *words, folder=folder, programs=programs, seconds=600)


def executed(folder: Path, rank: int) -> str:
    [path] = (folder / "run" / "outputs" / "notebooks").glob(f"*-{rank}.ipynb")
    return "\n".join(outputs(nbformat.read(path, as_version=4), "text/plain"))


def test_each_rank_executes_the_notebook_with_the_parameters_and_keeps_it(notebook):
    done = run(notebook.parent, "train.ipynb", "-n", "2", "--framework", "spmd", "--", "--learning_rate", "0.25")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in (0, 1):
        assert f"worker-{rank} | rank {rank} of 2 learns with 0.25" in done.stdout
        assert f"rank {rank} of 2 learns with 0.25" in executed(notebook.parent, rank)


def test_an_error_is_the_traceback_of_the_cell_and_the_notebook_is_kept(notebook):
    done = run(notebook.parent, "train.ipynb", "--framework", "spmd", "--restarts", "0", "--", "--fails=True")
    assert done.returncode == 1, done.stdout + done.stderr
    failure = done.stdout.partition("First failure: worker-0 (rank 0)")[2]
    assert '----> 2     raise ValueError("a bad batch")' in failure
    assert "ValueError: a bad batch" in failure
    assert "rank 0 of 1 learns with 0.5" in executed(notebook.parent, 0)


@pytest.mark.nightly
def test_the_example_trains_one_model_in_the_notebooks_of_both_ranks(frameworks, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True, timeout=300)
    [packages] = tmp_path.glob("env/lib/python3*/site-packages")
    [of_frameworks] = frameworks.glob("lib/python3*/site-packages")
    (packages / "all.pth").write_text(f"{of_frameworks}\n{sysconfig.get_path('purelib')}\n")
    example = REPOSITORY / "examples" / "notebook"
    job = yaml.safe_load((example / "job.yaml").read_text())
    del job["spec"]["packages"]  # they are there: the test downloads nothing
    job["spec"]["code"] = str(example)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    path = f"{tmp_path}/env/bin:{frameworks}/bin"
    done = run(tmp_path, "job.yaml", "--", "-p", "epochs", "200", path=path)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = executed(tmp_path, 0), executed(tmp_path, 1)
    assert "rank 0 of 2: epoch 200" in first
    [of_first], [of_second] = (
        [line for line in text.splitlines() if "largest error" in line] for text in (first, second)
    )
    assert of_first.partition(":")[2] == of_second.partition(":")[2], "the ranks have one model"
    assert float(of_first.split()[-1]) < 0.2
