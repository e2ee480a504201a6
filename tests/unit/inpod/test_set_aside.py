"""The init container that sets a checkpoint aside: one pod moves it, and the others wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from allranks import pod_bundle
from support.live import eventually


@pytest.fixture
def helper(tmp_path: Path) -> Path:
    pod_bundle.copy(tmp_path / "helper")
    return tmp_path / "helper" / "set_aside.py"


def start(helper: Path, folder: Path, index: int, mover: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, str(helper), str(folder), "8", "job-1", "--mover", str(mover)]
    env = {"PATH": os.environ["PATH"], "ALLRANKS_INDEX": str(index)}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_one_pod_moves_the_checkpoint_and_the_others_wait_for_it(helper: Path, tmp_path: Path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("step-4.pt", "step-8.pt"):
        (folder / name).write_text("weights")
    others = [start(helper, folder, 1), start(helper, folder, 0, mover=0)]
    assert all(process.poll() is None for process in others)
    output, _ = start(helper, folder, 0).communicate(timeout=60)
    assert "step-8.pt cannot be read: it is set aside" in output
    eventually(lambda: all(process.poll() == 0 for process in others))
    for process in others:
        process.communicate()
    assert [path.name for path in folder.glob("[!.]*")] == ["step-4.pt"]
    (folder / "step-8.pt").write_text("weights of a later attempt")
    assert start(helper, folder, 0).communicate(timeout=60) == ("", ""), "once"
    assert (folder / "step-8.pt").exists()


def test_a_checkpoint_that_cannot_be_moved_is_said(helper: Path, tmp_path: Path):
    (tmp_path / "step-8.pt").write_text("weights")
    (tmp_path / ".allranks-set-aside").write_text("no folder")
    process = start(helper, tmp_path, 0)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error.startswith("the checkpoint of step 8 cannot be set aside: ")
