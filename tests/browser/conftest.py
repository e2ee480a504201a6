"""The Chromium of the distribution, headless, and `allranks ui` with a cluster in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.chromium import chromium, opened_pages
from support.job_api import JobApi
from support.ui_samples import (
    a_job,
    a_run,
    condition,
    event,
    failure,
    pods_of,
    progress,
    stamp,
    times,
    with_checkpoints,
    with_data,
)
from support.ui_server import UiServer
from unit.views.test_sweep_report import finished


@pytest.fixture(scope="package")
def browser() -> Iterator:
    """A browser for all tests here. Each gets a context of its own. While it runs, `asyncio.run` does not work."""
    with chromium() as running:
        yield running


@pytest.fixture
def api(tmp_path: Path) -> Iterator[JobApi]:
    """A team's jobs, and two runs of this machine."""
    history = [
        {
            "attempt": 0,
            "startTime": stamp(3590),
            "runningTime": stamp(3500),
            "endTime": stamp(1800),
            "reason": "OOMKilled",
            "counted": True,
            "failure": failure(message="torch.OutOfMemoryError: CUDA out of memory.") | {"reason": "OOMKilled"},
            "firstStep": 0,
            "lastStep": 610,
            "productiveSeconds": 1400.0,
            "lostSeconds": 250.0,
        }
    ]
    penguins = a_job(
        "penguins",
        "Running",
        attempt=1,
        attemptTime=stamp(1790),
        runningTime=stamp(1700),
        restarts={"counted": 1, "disruptions": 0, "byReason": {"OOMKilled": 1}},
        lastFailure=failure() | {"reason": "OOMKilled"},
        history=history,
        progress=progress(1200, attempt=1),
        times=times(),
    )
    penguins = with_checkpoints(with_data(penguins))
    broken = a_job(
        "translate",
        "Failed",
        completionTime=stamp(600),
        lastFailure=failure(2) | {"pod": "translate-worker-2-0"},
        conditions=[condition("Failed", "Error", "worker-2 failed with exit code 1, for the second time")],
        progress=progress(300),
    )
    waiting = a_job("vision", "Queued", 8, conditions=[], ready="0/8")
    done = a_job("digits", "Succeeded", completionTime=stamp(60), progress=progress(5000))
    for job, rate, size in ((penguins, "0.01", 64), (broken, "0.1", 64), (done, "0.01", 32)):
        job["spec"]["args"] = [f"--lr={rate}", f"--batch-size={size}"]
    with JobApi(tmp_path, penguins, broken, waiting, done) as api:
        api.pods = pods_of(penguins, attempt=1)
        api.events = [
            event("penguins", "DistributedTraining", "Restarted", "attempt 1 started", uid="uid-penguins"),
            event("penguins-worker-1-0", "Pod", "OOMKilled", "Memory cgroup out of memory", "Warning"),
        ]
        for place in range(3):
            stamps = [f"{stamp(600 - 10 * step)[:19]}.{place}00000000Z" for step in range(40)]
            texts = [f"{at} epoch 3 step {step} loss {2 / (step + 1):.4f}\n" for step, at in enumerate(stamps)]
            lines = [text.encode() for text in texts]
            api.logs[f"penguins-worker-{place}-1"] = lines
        yield api


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    logs = {"hello-worker-0-0": b"rank 0 begins\n", "hello-worker-1-0": b"rank 1 begins\nValueError: bad\n"}
    a_run(tmp_path / "runs", "hello", "20260304-101500", "Failed", logs, lastFailure=failure())
    sweep = tmp_path / "runs" / "search" / "20260304-100000"
    sweep.mkdir(parents=True)
    (sweep / "sweep.json").write_text(json.dumps(finished()))
    (sweep / "trials" / "search-0").mkdir(parents=True)
    (sweep / "trials" / "search-0" / "job.json").write_text(json.dumps(a_job("search-0", "Succeeded", workers=1)))
    return tmp_path / "runs"


@pytest.fixture
def server(api: JobApi, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UiServer]:
    monkeypatch.chdir(runs.parent)
    with UiServer(api.kubeconfig, Path(runs.name), all_namespaces=True) as server:
        yield server


@pytest.fixture
def open_page(browser, server: UiServer) -> Iterator[Callable]:
    """Opens a page in a new context that has the cookie. At the end nothing was blocked and no script has failed."""
    with opened_pages(browser, server.site) as opened:
        yield opened
