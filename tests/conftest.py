"""What all tests share: the import path, a terminal's signals, the frameworks for those that need them."""

from __future__ import annotations

import signal
import subprocess
import sys
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

# No test may depend on the machine's speed. The seed is fixed; the randomized runs of `make test-all` set their own.
hypothesis.settings.register_profile(
    "allranks", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("allranks")


@pytest.fixture(scope="session")
def frameworks() -> Path:
    """The virtual environment with all frameworks, installed now if it is not there."""
    script = Path(__file__).parents[1] / "tools" / "frameworks.sh"
    done = subprocess.run([script], stdout=subprocess.PIPE, text=True, check=True, timeout=3000)
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def libraries(frameworks: Path) -> Path:
    """The same environment with Lightning and the libraries of Hugging Face."""
    script = Path(__file__).parents[1] / "tools" / "frameworks.sh"
    subprocess.run([script, "libraries"], stdout=subprocess.DEVNULL, check=True, timeout=3000)
    return frameworks


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
