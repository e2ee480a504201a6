"""Deleted jobs of an archive: in the history, as pages and in the REST interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.archive.layout import LogName
from allranks.archive.store import DirectoryStore
from allranks.ui import archive as archived_jobs
from support.archives import WrittenArchive
from support.job_api import JobApi
from support.ui_samples import HOSTILE, a_job, event, failure, progress, times
from support.ui_server import UiServer

GONE = "archive/team/penguins-uid-1"


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    (tmp_path / "archive").mkdir()
    return WrittenArchive(tmp_path / "archive")


@pytest.fixture
def gone(archive: WrittenArchive) -> dict[str, Any]:
    """An earlier job with the name of one that exists: its second attempt succeeded."""
    job = a_job("penguins", "Succeeded", attempt=1, completionTime="2026-03-04T10:00:00Z", times=times())
    job["metadata"]["uid"] = "uid-1"
    job["status"] |= {"lastFailure": failure(), "progress": progress(5000)}
    archive.job(job, event("penguins", "DistributedTraining", "Started", "attempt 0 started", uid="uid-1"))
    for index in range(3):
        archive.log(job, LogName(0, "worker", index), f"first {index}", f"end {index}", second=10 * index)
    archive.log(job, LogName(1, "worker", 0), *(f"line {number}" for number in range(30)))
    return job


@pytest.fixture
def server(api: JobApi, archive: WrittenArchive, gone: dict[str, Any], tmp_path: Path) -> Iterator[UiServer]:
    with UiServer(api.kubeconfig, tmp_path / "runs", all_namespaces=True, archive=archive.url) as server:
        yield server


def texts(answer: Any) -> list[str]:
    assert answer.status == 200, answer.text
    return [line["line"] for line in answer.json["lines"]]


def test_deleted_jobs_are_listed_and_those_that_exist_are_not(server: UiServer, api: JobApi, archive, gone):
    archive.job(api.jobs["broken"])
    found = server.get("/api/v1/archive").json["items"]
    assert [item["metadata"]["uid"] for item in found] == ["uid-1"]
    assert server.get(f"/api/v1/{GONE}").json == gone
    assert server.get("/api/v1/archive?namespace=other").json["items"] == []
    assert server.get("/api/v1/archive?phase=Failed").json["items"] == []
    assert len(server.get("/api/v1/archive?label=team%3Dnlp").json["items"]) == 1
    assert len(server.get("/api/v1/jobs").json["items"]) == 2


def test_attempts_events_and_report_are_those_of_the_archive(server: UiServer):
    assert [one["reason"] for one in server.get(f"/api/v1/{GONE}/events").json["items"]] == ["Started"]
    report = server.get(f"/api/v1/{GONE}/report").json
    assert (report["name"], report["phase"]) == ("penguins", "Succeeded")
    assert server.get(f"/api/v1/{GONE}/attempts").json == report["attempts"]
    assert "<h1>penguins" in server.get(f"/api/v1/{GONE}/report.html").text
    assert server.get(f"/api/v1/{GONE}/pods").json["items"] == []
    assert [one["state"] for one in server.get(f"/api/v1/{GONE}/ranks").json] == ["Succeeded"] * 3


def test_logs_of_all_attempts_can_be_read_and_searched(server: UiServer):
    assert texts(server.get(f"/api/v1/{GONE}/logs?tail=2")) == ["line 28", "line 29"]
    assert "the archive has more lines" in server.get(f"/api/v1/{GONE}/logs?tail=2").json["notes"][0]
    first = texts(server.get(f"/api/v1/{GONE}/logs?attempt=0"))
    assert first == ["first 0", "end 0", "first 1", "end 1", "first 2", "end 2"]
    assert texts(server.get(f"/api/v1/{GONE}/logs?attempt=0&tail=3")) == first[-3:]
    assert texts(server.get(f"/api/v1/{GONE}/logs?attempt=0&replica=worker-1")) == ["first 1", "end 1"]
    assert texts(server.get(f"/api/v1/{GONE}/logs?attempt=0&search=FIRST")) == ["first 0", "first 1", "first 2"]
    answer = server.get(f"/api/v1/{GONE}/logs?attempt=7").json
    assert (answer["lines"], answer["notes"]) == ([], ["the archive has no such log of attempt 7"])
    assert "event: end" in server.get(f"/api/v1/{GONE}/logs?follow=true").text


def test_a_job_that_exists_has_the_logs_of_its_deleted_pods_from_the_archive(server: UiServer, api, archive):
    job = api.jobs["broken"]
    address = "/api/v1/jobs/team/broken/logs?attempt=0"
    assert server.get(address).json["lines"] == []
    archive.log(job, LogName(0, "worker", 1), "out of memory")
    answer = server.get(address)
    assert (texts(answer), answer.json["notes"]) == (["out of memory"], ["from the archive"])


def test_the_history_counts_and_lists_deleted_jobs(server: UiServer, api: JobApi, tmp_path: Path):
    page = server.get("/history").text
    assert "1 job that the archive" in page
    assert f'href="/{GONE}"' in page
    assert [group["jobs"] for group in server.get("/api/v1/history").json] == [3]
    assert "0 jobs that the archive" in server.get("/history?namespace=other").text
    with UiServer(api.kubeconfig, tmp_path / "runs", all_namespaces=True) as without:
        assert [group["jobs"] for group in without.get("/api/v1/history").json] == [2]
        assert "Deleted jobs" not in without.get("/history").text


@pytest.mark.parametrize(
    ("tab", "text"),
    [
        ("", "deleted, from the archive (UID uid-1)"),
        ("/logs", "line 29"),
        ("/events", "attempt 0 started"),
        ("/manifest", "uid-1"),
    ],
)
def test_the_pages_of_a_deleted_job_have_no_actions(server: UiServer, tab: str, text: str):
    page = server.get(f"/{GONE}{tab}")
    assert page.status == 200
    assert text in page.text
    assert "/actions/" not in page.text
    assert "Run again" not in page.text
    assert "data-live" not in page.text or 'data-live=""' in page.text


@pytest.mark.parametrize(("verb", "action"), [("POST", "/suspend"), ("POST", "/resubmit"), ("DELETE", "")])
def test_a_deleted_job_cannot_be_changed(server: UiServer, verb: str, action: str):
    answer = server.request(verb, f"/api/v1/{GONE}{action}")
    assert (answer.status, answer.json["detail"]) == (409, "penguins is deleted: only the archive has it")


def test_jobs_can_be_compared_with_deleted_ones(server: UiServer):
    found = server.get(f"/api/v1/compare?job=jobs/team/penguins&job={GONE}").json
    assert found["jobs"] == ["jobs/team/penguins", GONE]
    page = server.get(f"/compare?job={GONE}").text
    assert f'value="{GONE}" checked> team/penguins-uid-1 (Succeeded)' in page


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("archive/team/penguins-uid-2", 404, "the archive "),
        ("archive/%2e%2e/etc", 404, "the archive "),
        ("archive/team/penguins-uid-1%00", 404, "the archive "),
    ],
)
def test_a_job_that_the_archive_does_not_have_is_a_problem(server: UiServer, path: str, status: int, detail: str):
    answer = server.get(f"/api/v1/{path}")
    assert answer.status == status
    assert answer.json["detail"].startswith(detail)


def test_without_an_archive_the_routes_say_how_to_name_one(api: JobApi, tmp_path: Path):
    with UiServer(api.kubeconfig, tmp_path / "runs") as server:
        for path in ("archive", GONE):
            answer = server.get(f"/api/v1/{path}")
            detail = "there is no archive: allranks ui --archive names one"
            assert (answer.status, answer.json["detail"]) == (404, detail)


def test_an_archive_that_cannot_be_read_is_a_sentence(api: JobApi, tmp_path: Path):
    with UiServer(api.kubeconfig, tmp_path / "runs", archive=str(tmp_path / "missing")) as server:
        answer = server.get("/api/v1/archive")
        assert answer.status == 503
        assert answer.json["detail"] == f"{tmp_path}/missing: there is no such directory"
        page = server.get("/history")
        assert page.status == 200
        assert "The archive cannot be read: " in page.text
        assert '<th scope="row">team</th><td>2</td>' in page.text
        assert server.get("/").status == 200
        assert server.get("/compare").status == 200


def test_a_server_for_one_namespace_shows_only_its_deleted_jobs(api: JobApi, archive: WrittenArchive, gone, tmp_path):
    other = a_job("whales", "Failed", namespace="other")
    archive.job(other)
    with UiServer(api.kubeconfig, tmp_path / "runs", "other", archive=archive.url) as server:
        assert [one["metadata"]["name"] for one in server.get("/api/v1/archive").json["items"]] == ["whales"]
        assert server.get(f"/api/v1/{GONE}").status == 404


def test_deleted_jobs_are_shown_without_a_cluster(archive: WrittenArchive, gone, tmp_path: Path):
    with UiServer(tmp_path / "missing", tmp_path / "runs", archive=archive.url) as server:
        assert f'href="/{GONE}"' in server.get("/history").text
        assert texts(server.get(f"/api/v1/{GONE}/logs?tail=1")) == ["line 29"]


def test_a_job_deleted_while_it_ran_is_interrupted(server: UiServer, archive: WrittenArchive):
    job = a_job("whales", "Running")
    archive.job(job)
    assert "Interrupted" in server.get("/archive/team/whales-uid-whales").text


def test_hostile_text_of_the_archive_stays_text(archive: WrittenArchive, api: JobApi, tmp_path: Path):
    job = a_job("penguins", "Failed")
    job["metadata"]["labels"] = {"team": HOSTILE}
    job["status"]["lastFailure"] = failure(message=HOSTILE)
    archive.job(job, event("penguins", "DistributedTraining", "Started", HOSTILE, uid="uid-penguins"))
    archive.log(job, LogName(0, "worker", 0), HOSTILE)
    with UiServer(api.kubeconfig, tmp_path / "runs", all_namespaces=True, archive=archive.url) as server:
        for page in ("/archive/team/penguins-uid-penguins", "/archive/team/penguins-uid-penguins/logs", "/history"):
            text = server.get(page).text
            assert "<script>alert" not in text
            assert "<img src=x" not in text


def test_the_list_is_bounded_and_read_again_after_a_while(
    server: UiServer, archive: WrittenArchive, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(archived_jobs, "MOST_JOBS", 2)
    for number in range(3):
        archive.job(a_job(f"whales-{number}", "Failed"))
    assert len(server.get("/api/v1/archive").json["items"]) == 2
    DirectoryStore(Path(archive.url)).put("team/broken/job.json", json.dumps({}).encode())
    archive.job(a_job("seals", "Failed"))
    names = [item["metadata"]["name"] for item in server.get("/api/v1/archive").json["items"]]
    assert "seals" not in names, "the list is not older than 30 s"
    monkeypatch.setattr(archived_jobs, "FRESH_SECONDS", 0.0)
    names = [item["metadata"]["name"] for item in server.get("/api/v1/archive").json["items"]]
    assert "seals" in names
