"""The pages and the REST interface of sweeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.local.run_directories import in_use
from allranks.ui import cluster_jobs
from support.archives import WrittenArchive
from support.job_api import JobApi
from support.live import eventually
from support.sweep_samples import a_sweep, trial_of, with_gpu_time
from support.ui_samples import HOSTILE, a_job, a_run, event, write_run
from support.ui_server import UiServer
from unit.views.test_sweep_report import finished


def store(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "search" / "20260304-100000"
    directory.mkdir(parents=True)
    (directory / "sweep.json").write_text(json.dumps(finished()))


def test_a_sweep_of_this_machine_is_listed_and_shown(server: UiServer, tmp_path: Path):
    store(tmp_path)
    listed = server.get("/sweeps")
    assert listed.status == 200
    assert "/sweeps/runs/search/20260304-100000" in listed.text
    page = server.get("/sweeps/runs/search/20260304-100000")
    assert page.status == 200
    assert page.text.count("<polyline") == 12
    assert "Importance" in page.text
    assert server.get("/api/v1/sweeps/runs/search/20260304-100000/report.html").status == 200
    assert server.get("/sweeps/runs/search/none").status == 404


def test_the_rest_interface_has_the_importances(server: UiServer, tmp_path: Path):
    store(tmp_path)
    found = json.loads(server.get("/api/v1/sweeps/runs/search/20260304-100000").text)
    assert found["status"]["phase"] == "Succeeded"
    assert set(found["importances"]) == set(found["spec"]["parameters"])


def test_a_sweep_of_this_machine_whose_process_has_ended_is_interrupted(server: UiServer, tmp_path: Path):
    store(tmp_path)
    file = tmp_path / "runs" / "search" / "20260304-100000" / "sweep.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({**stored, "status": {**stored["status"], "phase": "Running"}}))
    address = "sweeps/runs/search/20260304-100000"

    def phase() -> str:
        return str(server.get(f"/api/v1/{address}").json["status"]["phase"])

    assert "Interrupted" in server.get("/sweeps").text
    assert "Interrupted" in server.get(f"/{address}").text
    assert phase() == "Interrupted"
    with in_use(file.parent):
        assert phase() == "Running"


def test_a_cluster_without_sweeps_says_so(server: UiServer):
    assert server.get("/sweeps").status == 200
    assert server.get("/api/v1/sweeps/jobs/team/search").status == 404


# --- deleted sweeps of an archive ------------------------------------------------------------------------------------

GONE = "archive/team/search-uid-search"


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    """A sweep that is deleted, and the jobs of two of its trials; an earlier sweep with the same names."""
    (tmp_path / "archive").mkdir()
    made = WrittenArchive(tmp_path / "archive")
    sweep, earlier = a_sweep(), a_sweep(uid="earlier")
    earlier["metadata"]["creationTimestamp"] = "2026-03-01T10:00:00Z"
    made.job(sweep, event("search", "TrainingSweep", "TrialStarted", "trial 0: batch=16", uid="uid-search"))
    made.job(earlier)
    for of, uid in ((sweep, "t0"), (earlier, "e0")):
        made.job(trial_of(of, "search-0", uid))
    return made


@pytest.fixture
def with_archive(api: JobApi, archive: WrittenArchive, tmp_path: Path) -> Iterator[UiServer]:
    api.sweeps = []
    with UiServer(api.kubeconfig, tmp_path / "runs", all_namespaces=True, archive=archive.url) as server:
        yield server


def uids(answer: Any) -> list[str]:
    assert answer.status == 200, answer.text
    return [item["metadata"]["uid"] for item in answer.json["items"]]


def test_deleted_sweeps_are_listed_in_the_history_and_those_that_exist_are_not(
    with_archive: UiServer, api: JobApi, archive: WrittenArchive
):
    there = a_sweep("birds")
    archive.job(there)
    api.sweeps = [there]
    assert uids(with_archive.get("/api/v1/sweeps/archive")) == ["uid-search", "earlier"]
    assert uids(with_archive.get("/api/v1/sweeps/archive?namespace=other")) == []
    assert uids(with_archive.get("/api/v1/sweeps")) == ["uid-birds"]
    page = with_archive.get("/history").text
    assert f'href="/sweeps/{GONE}"' in page
    assert "Deleted sweeps" in page
    assert "12/12" in page
    assert "Deleted sweeps" not in with_archive.get("/history?namespace=other").text
    assert '<a href="/history">' in with_archive.get("/sweeps").text


def test_the_page_of_a_deleted_sweep_has_its_trials_importance_and_events(with_archive: UiServer):
    page = with_archive.get(f"/sweeps/{GONE}")
    assert page.status == 200
    assert "deleted, from the archive (UID uid-search)" in page.text
    assert page.text.count("<polyline") == 12
    assert "trial 0: batch=16" in page.text
    assert f'href="/sweeps/{GONE}/trials/search-11"' in page.text
    found = with_archive.get(f"/api/v1/sweeps/{GONE}").json
    assert set(found["importances"]) == {"lr", "batch"}
    assert found["status"]["best"]["trial"] == 5
    events = with_archive.get(f"/api/v1/sweeps/{GONE}/events").json["items"]
    assert [one["reason"] for one in events] == ["TrialStarted"]
    assert "<polyline" in with_archive.get(f"/api/v1/sweeps/{GONE}/report.html").text


def test_a_trial_leads_to_the_archived_job_of_this_sweep_and_back(with_archive: UiServer):
    answer = with_archive.get(f"/sweeps/{GONE}/trials/search-0")
    assert (answer.status, answer.headers["location"]) == (303, "/archive/team/search-0-t0")
    answer = with_archive.get("/sweeps/archive/team/search-earlier/trials/search-0")
    assert answer.headers["location"] == "/archive/team/search-0-e0"
    page = with_archive.get("/archive/team/search-0-e0").text
    assert 'href="/sweeps/archive/team/search-earlier"' in page
    answer = with_archive.get(f"/sweeps/{GONE}/trials/search-7")
    assert answer.status == 404
    assert "has no job search-7 of the sweep search" in answer.text
    assert with_archive.get("/sweeps/runs/a/b/trials/c").status == 404


def test_a_trial_whose_job_still_exists_leads_to_the_job(api: JobApi, archive: WrittenArchive, tmp_path: Path):
    api.put(trial_of(a_sweep(), "search-0", "orphan", "Running"))
    api.put(a_job("search-7", "Running"))
    with UiServer(api.kubeconfig, tmp_path / "runs", all_namespaces=True, archive=archive.url) as server:
        answer = server.get(f"/sweeps/{GONE}/trials/search-0")
        assert answer.headers["location"] == "/jobs/team/search-0"
        assert server.get(f"/sweeps/{GONE}/trials/search-7").status == 404, "its owner is not the sweep"


@pytest.mark.parametrize("path", ["archive/team/search-0-t0", "archive/team/search-none", "archive/..%2f/x"])
def test_a_sweep_that_the_archive_does_not_have_is_a_problem(with_archive: UiServer, path: str):
    answer = with_archive.get(f"/api/v1/sweeps/{path}")
    assert answer.status == 404
    assert with_archive.get(f"/sweeps/{path}").status == 404


def test_without_an_archive_the_routes_of_sweeps_say_how_to_name_one(server: UiServer):
    for path in ("archive", GONE):
        answer = server.get(f"/api/v1/sweeps/{path}")
        assert (answer.status, answer.json["detail"]) == (404, "there is no archive: allranks ui --archive names one")


def test_a_sweep_deleted_before_its_end_is_interrupted_and_hostile_text_stays_text(
    with_archive: UiServer, archive: WrittenArchive
):
    sweep = a_sweep("whales", phase="Running")
    sweep["status"]["trials"][0]["message"] = HOSTILE
    sweep["status"]["bestSummary"] = HOSTILE
    archive.job(sweep, event("whales", "TrainingSweep", "TrialStarted", HOSTILE, uid="uid-whales"))
    for path in ("/sweeps/archive/team/whales-uid-whales", "/history"):
        text = with_archive.get(path).text
        assert "Interrupted" in text
        assert "<script>alert" not in text
        assert "<img src=x" not in text


def test_a_cluster_that_does_not_serve_sweeps_shows_those_of_the_archive(with_archive: UiServer, api: JobApi):
    api.sweeps = None
    assert uids(with_archive.get("/api/v1/sweeps/archive")) == ["uid-search", "earlier"]


def test_the_page_of_a_sweep_that_exists_has_its_events(with_archive: UiServer, api: JobApi, monkeypatch):
    api.sweeps = [a_sweep("birds")]
    api.events = [event("birds", "TrainingSweep", "TrialStarted", "trial 0: lr=1", uid="uid-birds")]
    page = with_archive.get("/sweeps/jobs/team/birds")
    assert page.status == 200
    assert "trial 0: lr=1" in page.text
    assert 'href="/jobs/team/search-0"' in page.text
    found = with_archive.get("/api/v1/sweeps/jobs/team/birds/events").json["items"]
    assert [one["reason"] for one in found] == ["TrialStarted"]
    monkeypatch.setattr(cluster_jobs, "FRESH_SECONDS", -1.0)
    api.forbidden.add("events")
    page = with_archive.get("/sweeps/jobs/team/birds")
    assert (page.status, "trial 0: lr=1" in page.text, "events" in page.text) == (200, False, True)


# --- GPU time --------------------------------------------------------------------------------------------------------


def test_the_page_of_a_sweep_has_the_gpu_time_and_the_cost_of_its_trials(with_archive: UiServer, api: JobApi):
    sweep = a_sweep("birds", trials=3)
    for trial in sweep["status"]["trials"]:
        trial["job"] = trial["job"].replace("search", "birds")
        api.put(with_gpu_time(trial_of(sweep, trial["job"], f"uid-{trial['job']}"), 10, 2.5))
    api.put(with_gpu_time(a_job("birds-other", "Succeeded"), 1000))
    api.sweeps = [sweep]
    eventually(lambda: with_archive.get("/api/v1/sweeps/jobs/team/birds").json["trialCosts"].keys() == {"0", "1", "2"})
    page = with_archive.get("/sweeps/jobs/team/birds").text
    for text in ("37.5 GPUh", "75.00 EUR", "12.5 GPUh", "25.00 EUR", "lost by NodeLost"):
        assert text in page
    found = with_archive.get("/api/v1/sweeps/jobs/team/birds").json
    assert found["cost"]["spent"] == {"productive": 60, "starting": 0, "waiting": 0, "lost": 15}
    assert "75.00 EUR" in with_archive.get("/api/v1/sweeps/jobs/team/birds/report.html").text


def test_the_page_of_a_deleted_sweep_has_the_gpu_time_of_its_archived_jobs(
    with_archive: UiServer, archive: WrittenArchive
):
    archive.job(with_gpu_time(trial_of(a_sweep(), "search-1", "t1"), 10, 2.5))
    page = with_archive.get(f"/sweeps/{GONE}").text
    assert "12.5 GPUh" in page
    assert "10 jobs are missing, and their GPU time is not counted: search-2, search-3" in page
    assert with_archive.get(f"/api/v1/sweeps/{GONE}").json["cost"]["spent"]["productive"] == 20


def test_the_page_of_a_sweep_of_this_machine_has_the_gpu_time_of_its_runs(server: UiServer, tmp_path: Path):
    store(tmp_path)
    folder = tmp_path / "runs" / "search" / "20260304-100000" / "trials" / "search-0"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(with_gpu_time(a_job("search-0", "Succeeded"), 10, price=None)))
    assert "10.0 GPUh" in server.get("/sweeps/runs/search/20260304-100000").text


# --- trials of sweeps of this machine --------------------------------------------------------------------------------


def with_trial(tmp_path: Path, number: int = 0, phase: str = "Succeeded") -> str:
    """Store the sweep with the run of a trial. Return the address of the trial."""
    directory = tmp_path / "runs" / "search" / "20260304-100000"
    if not directory.exists():
        store(tmp_path)
    name = f"search-{number}"
    write_run(
        a_run(directory, "trials", name, phase, {f"{name}-worker-0-0": b"the log of a trial\n"}), a_job(name, phase)
    )
    return f"runs/search-{number}/20260304-100000"


def test_the_trials_of_a_sweep_of_this_machine_have_pages_logs_and_links_back(server: UiServer, tmp_path: Path):
    address = with_trial(tmp_path)
    sweep = server.get("/sweeps/runs/search/20260304-100000").text
    assert f'<a href="/{address}">' in sweep
    assert sweep.count('<th scope="row"><a href="/runs/') == 1, "trials that were not started have no page"
    page = server.get(f"/{address}")
    assert page.status == 200
    assert '<a href="/sweeps/runs/search/20260304-100000">sweep search</a>' in page.text
    assert "the log of a trial" in server.get(f"/{address}/logs").text
    assert server.get("/runs/search-0").headers["location"] == f"/{address}"
    assert server.get("/api/v1/runs").json["items"] == [], "a sweep is one entry of lists"
    assert server.get("/runs/search-1/20260304-100000").status == 404


def test_a_trial_that_its_sweep_has_stopped_is_stopped_and_not_interrupted(server: UiServer, tmp_path: Path):
    file = tmp_path / "runs" / "search" / "20260304-100000" / "sweep.json"
    address = with_trial(tmp_path, phase="Running")
    assert "Succeeded" in server.get(f"/{address}").text
    sweep = json.loads(file.read_text())
    sweep["status"]["trials"][0]["phase"] = "Stopped"
    file.write_text(json.dumps(sweep))
    eventually(lambda: "Stopped" in server.get(f"/{address}").text)


def test_a_sweep_of_this_machine_has_an_age(server: UiServer, tmp_path: Path):
    store(tmp_path)
    [row] = [row for row in server.get("/sweeps").text.split("<tr>") if "/sweeps/runs/search" in row]
    assert "<td></td></tr>" not in row


def test_a_sweep_in_a_directory_that_run_dir_named_is_listed_with_its_trials(server: UiServer, tmp_path: Path):
    address = with_trial(tmp_path)
    runs = tmp_path / "runs"
    (runs / "search" / "20260304-100000").rename(runs / "tpe")
    assert '<a href="/sweeps/runs/tpe/tpe">' in server.get("/sweeps").text
    address = address.replace("20260304-100000", "tpe")
    eventually(lambda: f'<a href="/{address}">' in server.get("/sweeps/runs/tpe/tpe").text)
    assert "the log of a trial" in server.get(f"/{address}/logs").text
    assert '<a href="/sweeps/runs/tpe/tpe">sweep tpe</a>' in server.get(f"/{address}").text
