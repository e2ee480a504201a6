"""Finds the programs' own package, the frameworks they need, and ends what a test has started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .launch import ROOT, Launcher

sys.path.insert(0, str(ROOT / "train"))


@pytest.fixture(scope="session")
def frameworks() -> Path:
    """The virtual environment with PyTorch, TensorFlow and Horovod."""
    done = subprocess.run(
        [ROOT / "tools/frameworks.sh", "pytorch", "tensorflow", "horovod"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=3000,
    )
    return Path(done.stdout.strip())


@pytest.fixture
def launcher(frameworks: Path, tmp_path: Path) -> Iterator[Launcher]:
    """Starts processes, none of which outlives the test."""
    launcher = Launcher(frameworks, tmp_path)
    yield launcher
    launcher.end_all()
    assert launcher.alive() == []
