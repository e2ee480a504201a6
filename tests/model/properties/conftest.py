"""The number of histories and their seed: `--histories N`, and hypothesis' own `--hypothesis-seed N`.

Without options the environment's HISTORIES and HISTORIES_SEED are used, else the defaults: a fixed seed, so that every
change runs the same histories and a failure can be bisected. `make test-all` draws a new seed each time.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis.internal.conjecture import providers

from . import budget


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--histories", type=int, default=None, help=f"histories to generate (default: {budget.DEFAULT})")


def pytest_configure(config: pytest.Config) -> None:
    # Hypothesis also draws constants of the modules that are loaded at that time. These depend on the tests that this
    # process ran before, and so would the histories of a seed.
    assert callable(providers._get_local_constants)
    empty = providers._local_constants
    assert len(empty) == 0
    providers._get_local_constants = lambda: empty
    seed = config.getoption("--hypothesis-seed", None) or os.environ.get("HISTORIES_SEED") or budget.DEFAULT_SEED
    budget.seed = random.SystemRandom().getrandbits(32) if seed == "random" else int(seed)
    asked = config.getoption("--histories", None) or os.environ.get("HISTORIES")
    budget.histories = int(asked or budget.DEFAULT)


def pytest_collection_finish(session: pytest.Session) -> None:
    if any(budget.__package__ in item.nodeid.replace("/", ".") for item in session.items):
        _say(session.config, f"{budget.histories} histories, repeat with: {_again()}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    failed = terminalreporter.stats.get("failed", ())
    if any("properties" in report.nodeid for report in failed):
        terminalreporter.write_line(f"properties: repeat with: {_again()}", red=True)


def _again() -> str:
    return f"pytest tests/model/properties --histories {budget.histories} --hypothesis-seed={budget.seed}"


def _say(config: pytest.Config, text: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter:
        reporter.write_line(f"properties: {text}")
