"""What all tests share: environment, import path, a terminal's signals, the frameworks for those that need them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

# Started in the background of a script, or under nohup, we would hand it on that these are ignored; a terminal's user
# is who the tests play.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

sys.path.insert(0, str(Path(__file__).parent))

from support import tools  # noqa: E402
from support.environment import Environment  # noqa: E402

# No test may depend on the machine's speed. The seed is fixed; the randomized runs of `make test-all` set their own.
hypothesis.settings.register_profile(
    "allranks", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("allranks")


@pytest.fixture(scope="session")
def frameworks() -> Path:
    """The virtual environment with all frameworks, installed now if it is not there."""
    return tools.built("frameworks.sh")


@pytest.fixture(scope="session")
def libraries(frameworks: Path) -> Path:
    """The same environment with Lightning and the libraries of Hugging Face."""
    tools.built("frameworks.sh", "libraries")
    return frameworks


ENVIRONMENT = pytest.StashKey[Environment]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Replaces the user's environment in each process that runs tests: before test modules are imported."""
    starts_workers = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
    if not starts_workers:
        config.stash[ENVIRONMENT] = Environment()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    if environment := session.config.stash.get(ENVIRONMENT, None):
        environment.enter()


def pytest_unconfigure(config: pytest.Config) -> None:
    if environment := config.stash.get(ENVIRONMENT, None):
        environment.close()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(pytestconfig: pytest.Config) -> Iterator[None]:
    yield
    pytestconfig.stash[ENVIRONMENT].check()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Scenarios run last: they are short, so that no worker waits long for another one at the end."""
    items.sort(key=lambda item: item.path.name == "test_scenarios.py")


class ByModule(LoadScopeScheduling):
    """`--dist loadscope`, but scenarios one by one: they share only the control plane, and are half of the work."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if "test_scenarios.py::" in nodeid else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return ByModule(config, log) if config.getvalue("dist") == "loadscope" else None
