"""The notebooks in examples/notebooks, executed in a real kernel with real ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

REPOSITORY = Path(__file__).parents[2]
NOTEBOOKS = REPOSITORY / "examples" / "notebooks"


@pytest.fixture(scope="module")
def kernel(frameworks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a kernel whose Python has the frameworks and allranks, as a user installs them."""
    folder = tmp_path_factory.mktemp("kernel")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True, timeout=240)
    [packages] = folder.glob("env/lib/python3*/site-packages")
    [of_frameworks] = frameworks.glob("lib/python3*/site-packages")
    (packages / "all.pth").write_text(f"{of_frameworks}\n{REPOSITORY / 'operator'}\n{sysconfig.get_path('purelib')}\n")
    spec = folder / "jupyter" / "kernels" / "allranks-tests"
    spec.mkdir(parents=True)
    python = str(folder / "env" / "bin" / "python")
    argv = [python, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "tests", "language": "python"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        yield "allranks-tests"


def execute(name: str, kernel: str, folder: Path) -> Any:
    """The notebook after its execution in a copy of the repository's folders that it uses."""
    (folder / "examples").mkdir()
    (folder / "train").symlink_to(REPOSITORY / "train")
    work = folder / "examples" / "notebooks"
    shutil.copytree(NOTEBOOKS, work)
    return run(work / name, kernel)


def run(file: Path, kernel: str, *started: str) -> Any:
    """The notebook in `file` after its execution."""
    command = [sys.executable, "-m", "support.notebook_run", str(file), kernel, *started]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tests")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return nbformat.read(file, as_version=4)


def outputs(notebook: Any, kind: str) -> list[str]:
    """All outputs of this MIME type, and the printed text for text/plain."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if kind in output.get("data", {}):
                found.append(output["data"][kind])
            elif kind == "text/plain" and output["output_type"] == "stream":
                found.append(output["text"])
    return found


def test_notebooks_are_stored_without_outputs():
    for path in NOTEBOOKS.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.slow
def test_the_first_job_shows_its_progress_and_names_the_rank_that_failed(kernel, tmp_path):
    notebook = execute("first-job.ipynb", kernel, tmp_path)
    text = "\n".join(outputs(notebook, "text/plain"))
    assert "'ranks': 2" in text
    assert "rank 1: ValueError('a bad batch')" in text
    first, second = outputs(notebook, "text/html")
    assert "Succeeded" in first
    assert "step 200/200" in first
    assert "width: 100.0%" in first
    assert "Failed" in second


@pytest.mark.slow
@pytest.mark.nightly
def test_horovod_trains_penguins_and_rank_0_saves(kernel, tmp_path):
    notebook = execute("horovod-penguins.ipynb", kernel, tmp_path)
    text = "\n".join(outputs(notebook, "text/plain"))
    assert "'ranks': 2" in text
    accuracy = float(text.partition("'accuracy': ")[2].partition(",")[0])
    assert accuracy > 0.9
    assert (tmp_path / "examples" / "notebooks" / "penguins.pt").exists()
    assert "'0.weight': (32, 4)" in text


@pytest.mark.slow
@pytest.mark.nightly
def test_runs_with_several_parameters_are_compared(kernel, tmp_path):
    notebook = execute("compare-runs.ipynb", kernel, tmp_path)
    assert "'fast'" in outputs(notebook, "text/plain")[-1]
    assert len(outputs(notebook, "text/html")) == 3


ASKED = """
import allranks, pathlib, time

def waits():
    import pathlib, time
    pathlib.Path("started").touch()
    while not pathlib.Path("enough").exists():
        time.sleep(0.05)
    return "done"

allranks.run(waits, ranks=-1, framework="spmd", name="waits")
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_one_interrupt_asks_and_a_second_one_stops(kernel, tmp_path):
    """nbclient has no input: the first interrupt says how to stop, and the job continues."""
    file = tmp_path / "waits.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(ASKED)]), file)
    notebook = run(file, kernel, str(tmp_path / "started"))
    assert "waits continues. Interrupt again to stop it." in "\n".join(outputs(notebook, "text/plain"))
    [error] = [output for output in notebook.cells[0].outputs if output["output_type"] == "error"]
    assert error["ename"] == "KeyboardInterrupt"
