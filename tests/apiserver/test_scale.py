"""Large jobs on a real API server: what they store, and what they leave to others."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from allranks.api.job import KIND
from allranks.kube import job_codec
from support import live
from support.api import Api
from support.controlplane import ControlPlane
from support.largest_status import largest_status
from support.live import eventually, job

REPLICAS = 2_000
LOST_AT_ONCE = 16


def test_the_api_server_stores_the_largest_status(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.api.create(job(), namespace)
    status = largest_status()
    stored = control_plane.api.patch(KIND, namespace, "demo", {"status": job_codec.encode(status)}, "status")
    assert job_codec.status(stored) == status


@pytest.fixture
def other(control_plane: ControlPlane) -> Iterator[str]:
    name = f"test-{secrets.token_hex(4)}"
    control_plane.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    control_plane.api.delete("Namespace", None, name)


@pytest.mark.nightly
def test_another_job_gets_its_pod_while_all_replicas_of_a_large_job_are_lost(
    control_plane: ControlPlane, namespace: str, other: str
) -> None:
    """All pods are deleted at once. The other job waits for a fraction of the time until they are replaced."""
    api, connection = control_plane.api, live.connection(control_plane)
    large = job("large", roles={"worker": {"replicas": REPLICAS}}, restart={"scope": "Pod"})
    with live.operator(connection, namespace, other):
        api.create(large, namespace)
        eventually(lambda: bool(api.get(KIND, namespace, "large").get("status", {}).get("launched")))
        eventually(lambda: bool(api.find("ServiceAccount", other, "default")))
        began = time.monotonic()
        with ThreadPoolExecutor(LOST_AT_ONCE) as threads:
            lost = [threads.submit(_delete, control_plane, namespace, index) for index in range(LOST_AT_ONCE)]
            api.create(job("small"), other)
            eventually(lambda: bool(api.list("Pod", other)))
            waited = time.monotonic() - began
        for each in lost:
            each.result()
        eventually(lambda: len(api.list("Pod", namespace)) == REPLICAS)
        replaced = time.monotonic() - began
    assert waited < replaced / 3
    status = api.get(KIND, namespace, "large")["status"]
    assert (status["attempt"], status["restarts"]["disruptions"]) == (0, REPLICAS)
    assert len(str(status)) < 50_000


def _delete(control_plane: ControlPlane, namespace: str, first: int) -> None:
    """Deletes every `LOST_AT_ONCE`th pod, by a client of its own."""
    api = Api(control_plane.url, control_plane.ca_file, control_plane.admin_token)
    for index in range(first, REPLICAS, LOST_AT_ONCE):
        api.delete("Pod", namespace, f"large-worker-{index}-0", grace=0)
    api.close()
