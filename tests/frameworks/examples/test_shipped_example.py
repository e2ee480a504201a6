"""examples/code: the code beside the manifest, with real ranks of PyTorch, from another directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.commands import allranks

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.nightly
def test_the_example_with_code_trains_on_a_copy_of_its_directory(frameworks, tmp_path) -> None:
    shutil.copytree(ROOT / "examples" / "code", tmp_path / "code")
    done = allranks("run", "code/job.yaml", "--run-dir", "run", folder=tmp_path, programs=frameworks / "bin")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in (0, 1):
        assert f"worker-{rank} | rank {rank} of 2 runs {tmp_path}/run/code/train.py" in done.stdout
    assert "step 200 loss 0.0" in done.stdout
