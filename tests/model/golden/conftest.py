"""`pytest tests/model/golden --update-golden` (or `make golden`) rewrites the golden files."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Rewrite the golden files.")


@pytest.fixture(scope="session")
def update_golden(pytestconfig: pytest.Config) -> bool:
    # If pytest was started for all tests, this file is loaded too late to define its option.
    return bool(pytestconfig.getoption("--update-golden", default=False))
