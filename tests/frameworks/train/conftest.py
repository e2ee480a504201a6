"""Finds the programs' own package, the frameworks they need, and ends what a test has started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .launch import ROOT, Launcher

sys.path.insert(0, str(ROOT / "train"))


@pytest.fixture
def launcher(frameworks: Path, tmp_path: Path) -> Iterator[Launcher]:
    """Starts processes, none of which outlives the test."""
    launcher = Launcher(frameworks, tmp_path)
    yield launcher
    launcher.end_all()
    assert launcher.alive() == []
