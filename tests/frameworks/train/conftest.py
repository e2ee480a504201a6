"""The import path of the programs, their frameworks, and the end of all processes that a test starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .launch import ROOT, Launcher

sys.path.insert(0, str(ROOT / "train"))


@pytest.fixture
def launcher(frameworks: Path, tmp_path: Path) -> Iterator[Launcher]:
    """Starts processes; all of them end with the test."""
    launcher = Launcher(frameworks, tmp_path)
    yield launcher
    launcher.end_all()
    assert launcher.alive() == []
