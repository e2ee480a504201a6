"""Notebooks of examples/notebooks in a real kernel: the fixture `kernel`, and what executes them."""

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
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True, timeout=300)
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
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
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
