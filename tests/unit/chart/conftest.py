"""Helm for the tests of the chart."""

from __future__ import annotations

import pytest

from support import helm as helm_


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> helm_.Helm:
    return helm_.Helm(helm_.built("helm"), tmp_path_factory.mktemp("helm"))
