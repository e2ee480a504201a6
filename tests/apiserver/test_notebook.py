"""The notebook that submits jobs, in a real kernel, with the real operator and ranks that are real processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from support.controlplane import ControlPlane
from support.notebooks import execute, kernel, outputs

from .test_python_interface import World

__all__ = ["kernel"]


@pytest.mark.slow
@pytest.mark.nightly
def test_jobs_of_a_notebook_are_compared_and_deleted(
    control_plane: ControlPlane,
    namespace: str,
    frameworks: Path,
    kernel: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = namespace
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("ALLRANKS_IMAGE", "example.org/pytorch:1")
    work = tmp_path / "work"
    node = tmp_path / "node"
    for folder in (work, node):
        folder.mkdir()
    path = os.pathsep.join((str(frameworks / "bin"), os.environ["PATH"]))
    with World(control_plane, namespace, node).running({**os.environ, "PATH": path}):
        notebook = execute("compare-jobs.ipynb", kernel, work)
    text = "\n".join(outputs(notebook, "text/plain"))
    assert "['compare-slow', 'compare-medium', 'compare-fast']" in text
    assert text.count("Succeeded step  100 loss") == 3
    assert "'fast'" in text
    [page] = outputs(notebook, "text/html")
    assert "compare-fast" in page
    assert control_plane.api.list("DistributedTraining", namespace) == []
