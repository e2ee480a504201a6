"""Fixtures of the tests on a real API server: one control plane for all of them, a namespace for each."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from support import controlplane
from support.api import ApiError, path
from support.commands import Commands, JobOnCluster
from support.controlplane import ControlPlane
from support.kubelet_logs import LogKubelet
from support.users_cluster import UsersCluster

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
DEFINITIONS = sorted((REPOSITORY / "crds").glob("*.yaml"))
_RUNNING = pytest.StashKey[ControlPlane]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="module", autouse=True)
def _connections_are_closed() -> Iterator[None]:
    """A module that leaves a connection open fails itself. Otherwise the garbage collector fails a test after it."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def programs() -> Path:
    """The directory with etcd, kube-apiserver, kube-controller-manager and kubectl. Builds them if necessary."""
    return controlplane.build()


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane | UsersCluster]:
    """An API server with the CRDs.

    KUBECONFIG is used only with ALLRANKS_TEST_CLUSTER=yes, because it may name a production cluster.
    """
    if os.environ.get("ALLRANKS_TEST_CLUSTER") == "yes" and os.environ.get("KUBECONFIG"):
        cluster: ControlPlane | UsersCluster = UsersCluster(os.environ["KUBECONFIG"])
    else:
        folder = request.getfixturevalue("tmp_path_factory").mktemp("control-plane")
        cluster = ControlPlane(request.getfixturevalue("programs"), folder)
    try:
        cluster.start(DEFINITIONS)
        if isinstance(cluster, ControlPlane):
            request.config.stash[_RUNNING] = cluster
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def kubelet(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogKubelet]:
    """A node that serves the logs that a test writes."""
    node = LogKubelet(control_plane.api, tmp_path_factory.mktemp("kubelet"))
    yield node
    node.stop()


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A new namespace. It is deleted in the background."""
    name = f"test-{secrets.token_hex(4)}"
    api = control_plane.api
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    # Pods are rejected until it exists, and its controller creates it later.
    with contextlib.suppress(ApiError):
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, name)
    yield name
    # Pods on simulated nodes would delay it for their grace period.
    api.request("DELETE", path("Pod", name), {"gracePeriodSeconds": 0})
    api.delete("Namespace", None, name)


@pytest.fixture
def allranks(control_plane: ControlPlane, namespace: str) -> Commands:
    return Commands(control_plane.kubeconfig, namespace)


@pytest.fixture
def job(control_plane: ControlPlane, namespace: str) -> JobOnCluster:
    return JobOnCluster(control_plane.api, namespace)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    control_plane = item.config.stash.get(_RUNNING, None)
    if report.failed and control_plane and "control_plane" in getattr(item, "fixturenames", ()):
        for program in ("kube-apiserver", "kube-controller-manager"):
            log = control_plane.folder / f"{program}.log"
            report.sections.append((f"end of {log}", control_plane.log(program, lines=8)))
    return report
