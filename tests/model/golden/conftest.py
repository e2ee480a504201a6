"""`pytest tests/model/golden --update-golden` (or `make golden`) writes the golden files anew."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the golden files anew.")


@pytest.fixture(scope="session")
def update_golden(pytestconfig: pytest.Config) -> bool:
    # Where pytest was started for all tests, this file is read too late for its option to be known.
    return bool(pytestconfig.getoption("--update-golden", default=False))
