"""All tests in this folder need nodes that run containers: tools/e2e.sh runs them as root.

ALLRANKS_E2E=DIR takes the cluster that `tools/cluster.sh up --dir DIR` started, with the images, and leaves it running.
ALLRANKS_TEST_CLUSTER=yes and KUBECONFIG take any other, which pulls ALLRANKS_E2E_IMAGES=PREFIX:TAG by itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from .cluster import PATIENCE, REPOSITORY, Cluster
from .jobs import Team, namespace
from .release import NAMESPACE, install, uninstall
from .watching import PodWatch

HERE = Path(__file__).parent
KEPT = REPOSITORY / "build" / "e2e"
"""The folder for the state of failed tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(2 * PATIENCE))


class Scheduler(LoadScopeScheduling):
    """Tests run on any worker, but those of Argo on one: they share a controller, which the last test ends. Tests of
    kubelets share a node."""

    def _split_scope(self, nodeid: str) -> str:
        # Not with pytest.mark.xdist_group: xdist 3.8 ignores it with pytest 9.2.
        return next((shared for shared in ("test_argo.py", "test_kubelets.py") if f"{shared}::" in nodeid), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler:
    return Scheduler(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Saves the content of the namespaces of a failed test, and what it watched."""
    report = yield
    if call.when == "call" and call.excinfo and not call.excinfo.errisinstance(pytest.skip.Exception):
        values = getattr(item, "funcargs", {}).values()
        events = [event for value in values if isinstance(value, PodWatch) for event in value.events]
        for value in values:
            if isinstance(value, Team):
                kept = keep(value.cluster, value.namespace, item.name)
                if events:
                    (kept / "watched.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
                report.sections.append(("kept", str(kept.relative_to(REPOSITORY))))
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes that each say that they have four GPUs, the images, and the operator by its chart.

    Tests that run beside these have the same one.
    """
    if os.environ.get("ALLRANKS_TEST_CLUSTER") == "yes" and os.environ.get("KUBECONFIG"):
        cluster = Cluster(None, Path(os.environ["KUBECONFIG"]))
        try:
            install(cluster)
            yield cluster
        finally:
            uninstall(cluster)
    elif folder := os.environ.get("ALLRANKS_E2E"):
        cluster = Cluster(Path(folder))
        with (cluster.folder / "install.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            install(cluster)
        yield cluster
    else:
        pytest.skip("needs a cluster with nodes: tools/e2e.sh starts one, as root")


@pytest.fixture
def team(cluster: Cluster) -> Iterator[Team]:
    """A namespace that admits only restricted pods."""
    with namespace(cluster) as team:
        yield team


def keep(cluster: Cluster, namespace: str, test: str) -> Path:
    """Saves the objects and events of a namespace and the operator's log; returns the folder."""
    folder = KEPT / re.sub(r"\W+", "-", test)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    asked = {
        "objects.txt": ("get", "dt,pods,services,pvc,events", "-o", "wide", "-n", namespace),
        "jobs.yaml": ("get", "dt", "-o", "yaml", "-n", namespace),
        "pods.yaml": ("get", "pods", "-o", "yaml", "-n", namespace),
        "nodes.txt": ("describe", "nodes"),
        "operator.log": ("logs", "-n", NAMESPACE, "deployment/allranks", "--tail=-1"),
    }
    for pod in cluster.ask("get", "pods", "-o", "name", "-n", namespace).stdout.split():
        asked[f"{pod.removeprefix('pod/')}.log"] = ("logs", pod, "--all-containers", "-n", namespace)
    for name, arguments in asked.items():
        done = cluster.ask(*arguments)
        (folder / name).write_text(done.stdout + done.stderr)
    return folder
