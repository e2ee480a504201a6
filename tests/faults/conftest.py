"""How many runs, and from which seed: `--faults N|all` and `--faults-seed N|random`.

Without options the environment's FAULTS and FAULTS_SEED are used, else the defaults: a fixed seed, so that every change
meets the same faults and a failure can be bisected. `make test-all` draws a new seed each time.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from allranks.kube import client, watch
from apiserver.conftest import control_plane, namespace, programs  # noqa: F401 (fixtures)
from support.controlplane import ControlPlane
from support.fault_proxy import Threads

from .runs import Referee, Run, Verdict, selection

HERE = Path(__file__).parent
DEFAULT, DEFAULT_SEED = "20", "20261123"
AT_ONCE = 3
"""Runs mostly wait. With more of them, two cores are busy and requests time out."""
_REPEATED_LINES = 20
"""Lines of a failed run that are repeated at the end of the output."""
_ASKED = pytest.StashKey[tuple[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", metavar="N|all", help=f"runs with faults or kills (default: {DEFAULT})")
    parser.addoption("--faults-seed", metavar="N|random", help=f"what they are drawn from (default: {DEFAULT_SEED})")


def pytest_configure(config: pytest.Config) -> None:
    number = config.getoption("--faults", None) or os.environ.get("FAULTS") or DEFAULT
    seed = config.getoption("--faults-seed", None) or os.environ.get("FAULTS_SEED") or DEFAULT_SEED
    config.stash[_ASKED] = number, random.SystemRandom().getrandbits(32) if seed == "random" else int(seed)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "run" in metafunc.fixturenames:
        runs = selection(*metafunc.config.stash[_ASKED])
        metafunc.parametrize("run", runs, ids=[str(run) for run in runs])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)


def pytest_collection_finish(session: pytest.Session) -> None:
    if _runs(session):
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter:
            reporter.write_line(f"faults: {len(_runs(session))} runs, repeat with: {_again(session.config)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Drops the logs: they contain all concurrent runs and hide the differences."""
    report = yield
    if "run" in getattr(item, "fixturenames", ()):
        report.sections = []
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    failed = [report for report in terminalreporter.stats.get("failed", ()) if "tests/faults/" in report.nodeid]
    for report in failed:
        number = re.search(r"test_faults\.py.*?\[(\d+) ", report.nodeid)
        command = f"{_again(config)} -k '[{number[1]} '" if number else f"pytest '{report.nodeid}'"
        terminalreporter.write_line(f"faults: repeat with: {command}", red=True)
        lines = report.longreprtext.splitlines()
        for line in ([line for line in lines if line.startswith("E ")] or lines)[:_REPEATED_LINES]:
            terminalreporter.write_line(line)


def _again(config: pytest.Config) -> str:
    number, seed = config.stash[_ASKED]
    return f"pytest tests/faults --faults {number} --faults-seed {seed}"


def _runs(session: pytest.Session) -> list[Run]:
    callspecs = (getattr(item, "callspec", None) for item in session.items if item.path.is_relative_to(HERE))
    return [spec.params["run"] for spec in callspecs if spec and "run" in spec.params]


@pytest.fixture(scope="module")
def impatient() -> Iterator[None]:
    """Shorter backoffs and watch timeouts of the operator, longer timeouts of the tests, for one module: the tests
    after it in this process have their own."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (client, watch):
            patch.setattr(module, "LAST_BACKOFF_SECONDS", 0.3)
        patch.setattr(watch, "SILENCE_SECONDS", 2.0)
        yield


@pytest.fixture(scope="session")
def proxies() -> Iterator[Threads]:
    threads = Threads()
    yield threads
    threads.close()


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest,
    control_plane: ControlPlane,  # noqa: F811
    proxies: Threads,
    impatient: None,
) -> Iterator[dict[Run, Future[Verdict]]]:
    """Plays all runs, a few at a time. Each test waits for its own."""
    if control_plane.has_nodes:
        pytest.skip("this cluster's scheduler and kubelets would run the pods that the scenarios play")
    referee = Referee(control_plane, proxies)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="run") as pool:
        try:
            yield {run: pool.submit(referee.judge, run) for run in _runs(request.session)}
        finally:
            referee.stopped = True
            pool.shutdown(cancel_futures=True)
