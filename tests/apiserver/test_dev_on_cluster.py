"""`allranks dev --cluster` on a real API server: each change of the code is a new job of the same name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.api import ApiError
from support.commands import Commands
from support.controlplane import ControlPlane

from .test_python_interface import World

PROGRAM = """\
import os, sys, time
print("version {} got", sys.argv[1:], "process", os.getpid(), flush=True)
time.sleep(600)
"""


def manifest() -> dict[str, Any]:
    return {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "metadata": {"name": "loop"},
        "spec": {
            "framework": "tensorflow",
            "image": "example.org/python:3",
            "command": [sys.executable, "train.py"],
            "args": ["--lr", "0.1"],
            "roles": {"worker": {"replicas": 2}},
        },
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "job.yaml").write_text(yaml.safe_dump(manifest()))
    (made / "train.py").write_text(PROGRAM.format(1))
    return made


@pytest.mark.nightly
def test_a_changed_file_replaces_the_job_and_ctrl_c_deletes_it(
    allranks: Commands,
    control_plane: ControlPlane,
    namespace: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def uid() -> str | None:
        try:
            return str(control_plane.api.get("DistributedTraining", namespace, "loop")["metadata"]["uid"])
        except ApiError:
            return None

    monkeypatch.chdir(folder)
    node = tmp_path / "node"
    node.mkdir()
    with (
        World(control_plane, namespace, node).running(),
        allranks.start("dev", "--cluster", "--grace-period", "1", "job.yaml") as dev,
    ):
        dev.until("version 1 got ['--lr', '0.1']")
        first = uid()
        (folder / "train.py").write_text(PROGRAM.format(2))
        dev.until("--- train.py changed: restarting (run 2)")
        dev.until("loop deleted")
        dev.until("version 2 got ['--lr', '0.1']")
        assert uid() not in (None, first)
        (folder / "train.py").write_text("print('version 3', flush=True)\n")
        dev.until("version 3")
        dev.until("the run has ended; waiting for a change")
        dev.interrupt()
        assert dev.end() == 130
        assert dev.lines[-1] == "loop deleted"
        assert uid() is None


def test_a_job_that_exists_is_never_replaced(
    allranks: Commands, control_plane: ControlPlane, namespace: str, folder: Path
) -> None:
    control_plane.api.create(manifest(), namespace)
    result = allranks("dev", "--cluster", str(folder / "job.yaml"))
    assert result.exit_code == 1
    assert f"job loop exists in namespace {namespace}, and allranks dev would replace it" in result.stderr
