"""Helm for the tests of the chart."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import helm as helm_


@pytest.fixture(scope="session")
def programs() -> Path:
    """The directory with helm and untt."""
    return helm_.programs()


@pytest.fixture(scope="session")
def helm(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> helm_.Helm:
    return helm_.Helm(programs / "helm", tmp_path_factory.mktemp("helm"))
