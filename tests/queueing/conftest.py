"""Fixtures of the tests with Kueue and with gang schedulers: a control plane of their own, because Kueue's webhooks see
every pod."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from apiserver.conftest import DEFINITIONS, allranks, job, namespace, programs  # noqa: F401 (fixtures)
from support import front_proxy, processes, scheduler
from support import kueue as kueue_support
from support.controlplane import ControlPlane, install
from support.kueue import Kueue

HERE = Path(__file__).parent
_FOLDER = pytest.StashKey[Path]()
"""The logs of all programs are in it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def control_plane(
    request: pytest.FixtureRequest,
    programs: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControlPlane]:
    """An API server with our CRDs, which serves PodGroups and forwards requests to Kueue's visibility server."""
    folder = request.config.stash[_FOLDER] = tmp_path_factory.mktemp("queueing")
    options = (*front_proxy.options(folder), *scheduler.NATIVE_GANGS)
    cluster = ControlPlane(programs, folder, api_server_options=options)
    try:
        cluster.start(DEFINITIONS)
        yield cluster
    finally:
        cluster.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    folder = item.config.stash.get(_FOLDER, None)
    if report.failed and folder:
        for log in sorted(folder.rglob("*.log")):
            report.sections.append((f"end of {log}", processes.end_of(log, lines=8)))
    return report


@pytest.fixture(scope="session")
def kueue(control_plane: ControlPlane) -> Iterator[Kueue]:
    """Kueue, installed and running. A test that stops it starts it again."""
    manager = Kueue(control_plane, kueue_support.build())
    manager.install()
    manager.start()
    try:
        yield manager
    finally:
        manager.stop()


@pytest.fixture(scope="module")
def native_scheduler(control_plane: ControlPlane) -> Iterator[scheduler.Scheduler]:
    """The scheduler of Kubernetes, with gangs."""
    yield from _running(scheduler.native(control_plane))


@pytest.fixture(scope="module")
def coscheduling(control_plane: ControlPlane) -> Iterator[scheduler.Scheduler]:
    """A second scheduler with the plugin coscheduling, and its CRDs."""
    folder = scheduler.build("coscheduling") / "crds"
    install(control_plane.api, sorted(folder.glob("*.yaml")))
    yield from _running(scheduler.coscheduling(control_plane))


def _running(found: scheduler.Scheduler) -> Iterator[scheduler.Scheduler]:
    found.start()
    try:
        yield found
    finally:
        found.stop()
