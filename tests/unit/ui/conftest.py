"""An API server with jobs, and `allranks ui` that shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.job_api import JobApi
from support.ui_samples import a_job, event, failure, pods_of, progress, times
from support.ui_server import UiServer


@pytest.fixture
def api(tmp_path: Path) -> Iterator[JobApi]:
    """Two jobs: penguins runs, with pods; broken has failed."""
    running = a_job("penguins", "Running", progress=progress(1200), times=times())
    broken = a_job(
        "broken",
        "Failed",
        completionTime="2026-03-04T10:00:00Z",
        lastFailure=failure(),
        history=[],
    )
    with JobApi(tmp_path, running, broken) as api:
        api.pods = pods_of(running)
        api.events = [
            event("penguins", "DistributedTraining", "Started", "attempt 0 started", uid="uid-penguins"),
            event("penguins-worker-1-0", "Pod", "BackOff", "Back-off restarting", "Warning"),
        ]
        yield api


@pytest.fixture
def server(api: JobApi, tmp_path: Path) -> Iterator[UiServer]:
    with UiServer(api.kubeconfig, tmp_path / "runs", all_namespaces=True) as server:
        yield server
