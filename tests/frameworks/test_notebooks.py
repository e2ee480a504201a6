"""The notebooks in examples/notebooks, executed in a real kernel with real ranks."""

from __future__ import annotations

import nbformat
import pytest

from support.notebooks import NOTEBOOKS, execute, kernel, outputs, run

__all__ = ["kernel"]


def test_notebooks_are_stored_without_outputs():
    for path in NOTEBOOKS.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.nightly
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
    assert float(text.partition("'Gentoo': ")[2].partition("}")[0]) > 0.5


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
