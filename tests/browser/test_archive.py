"""Deleted jobs of an archive in Chromium: from the history to the last lines of the rank that failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.archive.layout import LogName
from support.archives import WrittenArchive
from support.chromium import DESK, PHONE, findings
from support.sweep_samples import a_sweep, trial_of, with_gpu_time
from support.ui_samples import HOSTILE, a_job, event, failure, progress, stamp, times
from support.ui_server import UiServer

from .helpers import see

pytestmark = pytest.mark.nightly


@pytest.fixture
def server(api, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UiServer]:
    (tmp_path / "archive").mkdir()
    archive = WrittenArchive(tmp_path / "archive")
    job = a_job(
        "seals",
        "Failed",
        attempt=1,
        completionTime=stamp(600),
        lastFailure=failure(2, attempt=1) | {"pod": "seals-worker-2-1"},
        progress=progress(900),
        times=times(),
    )
    archive.job(job, event("seals", "DistributedTraining", "Failed", HOSTILE, uid="uid-seals"))
    archive.log(job, LogName(0, "worker", 2), "epoch 0", "MemoryError: the first failure")
    archive.log(job, LogName(1, "worker", 2), "epoch 1", f"ValueError: {HOSTILE}")
    sweep = a_sweep("herd")
    archive.job(sweep, event("herd", "TrainingSweep", "TrialStopped", HOSTILE, uid="uid-herd"))
    archive.job(with_gpu_time(trial_of(sweep, "search-5", "uid-5"), 1.5, 0.25))
    monkeypatch.chdir(runs.parent)
    with UiServer(api.kubeconfig, Path(runs.name), all_namespaces=True, archive=archive.url) as server:
        yield server


def test_the_log_of_the_first_attempt_of_a_deleted_job_is_found_from_the_history(open_page):
    page = open_page("/history", viewport=DESK)
    see(page, "2 jobs that the archive")
    page.click("main >> text=seals")
    see(page, "deleted, from the archive")
    see(page, "First failure: worker-2")
    assert page.locator(".actions >> text=Delete").count() == 0
    page.click("nav.tabs >> text=Logs")
    see(page, "ValueError:", "#log")
    page.select_option("select[name=attempt]", "0")
    page.click("text=Show")
    see(page, "MemoryError: the first failure", "#log")
    page.click("nav.tabs >> text=Events")
    see(page, "<script>alert(1)</script>")


def test_the_best_trial_of_a_deleted_sweep_is_found_from_the_history_and_leads_back(open_page):
    page = open_page("/history", viewport=DESK)
    page.click("main >> text=team/herd")
    see(page, "deleted, from the archive (UID uid-herd)")
    see(page, "best loss")
    see(page, "3.50 EUR")
    see(page, "<script>alert(1)</script>")
    page.get_by_role("link", name="5", exact=True).click()
    see(page, "deleted, from the archive (UID uid-5)")
    page.click("main >> text=sweep herd")
    see(page, "deleted, from the archive (UID uid-herd)")


@pytest.mark.parametrize(
    "path",
    [
        "/history",
        "/archive/team/seals-uid-seals",
        "/archive/team/seals-uid-seals/logs",
        "/sweeps/archive/team/herd-uid-herd",
    ],
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_its_pages_are_accessible_and_fit_on_a_desk_and_on_a_phone(open_page, path, scheme):
    for viewport in (DESK, PHONE):
        page = open_page(path, viewport=viewport, color_scheme=scheme)
        page.wait_for_load_state("load")
        assert findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
