"""Helm for the tests of the chart, which run with Helm 4, and at night with Helm 3 as well."""

from __future__ import annotations

import pytest

from support import helm as helm_


@pytest.fixture(scope="session")
def helm4(tmp_path_factory: pytest.TempPathFactory) -> helm_.Helm:
    return helm_.Helm(helm_.built("helm"), tmp_path_factory.mktemp("helm4"))


@pytest.fixture(scope="session", params=["helm", pytest.param("helm3", marks=pytest.mark.nightly)])
def helm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> helm_.Helm:
    return helm_.Helm(helm_.built(request.param), tmp_path_factory.mktemp(request.param))
