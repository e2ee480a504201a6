"""`get --all`, `describe`, `logs` and `report` of jobs and pods that are deleted, from an archive."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from allranks.archive.layout import LogName
from allranks.cli.archived import Archive
from allranks.cli.job_logs import JobLogs, LogRequest
from allranks.cli.main import cli
from allranks.core.facts.model import Pod
from allranks.views.report.forms import rendered
from allranks.views.report.model import last_update
from support import reported
from support.archives import WrittenArchive
from support.some_api import SomeApi
from support.sweep_samples import a_sweep
from support.ui_samples import event

Run = Callable[..., Result]


@pytest.fixture
def running() -> dict[str, Any]:
    return reported.job("whales", reported.finished()["status"] | {"phase": "Running"})


@pytest.fixture
def api(tmp_path: Path, running: dict[str, Any]) -> Iterator[SomeApi]:
    with SomeApi(tmp_path, copy.deepcopy(running)) as api:
        yield api


def saved(archive: WrittenArchive, uid: str = "uid-penguins", hour: int = 10) -> dict[str, Any]:
    """A job with two attempts, and logs of three of its pods."""
    job = reported.finished()
    job["metadata"] |= {"uid": uid, "creationTimestamp": f"2026-03-04T{hour}:00:00Z", "labels": {"team": "nlp"}}
    archive.job(job, event("penguins", "DistributedTraining", "Started", "attempt 0 started", uid=uid))
    last = job["status"]["attempt"]
    archive.log(job, LogName(0, "master", 0), "one", "two", "three", second=1)
    archive.log(job, LogName(0, "worker", 1), "two: ValueError", second=2)
    archive.log(job, LogName(last, "worker", 0), f"done {uid}", second=3)
    return job


def last_attempt(job: dict[str, Any]) -> int:
    return int(job["status"]["attempt"])


# --- get -------------------------------------------------------------------------------------------------------------


def test_get_all_prints_deleted_jobs_first_and_marks_them(allranks: Run, archive: WrittenArchive, running):
    saved(archive)
    archive.job(running)
    result = allranks("get", "--all")
    assert (result.exit_code, result.stderr) == (0, "")
    header, *rows = [line.split() for line in result.stdout.splitlines()]
    assert (header[0], header[-1]) == ("NAME", "DELETED")
    assert [(row[0], row[2], row[-1]) for row in rows] == [
        ("penguins", "Succeeded", "yes"),
        ("whales", "Running", "no"),
    ]
    assert allranks("get", "--all", "-l", "team=vision").stdout.split()[-1] == "no"  # the API of the tests selects all
    assert [line.split()[0] for line in allranks("get", "penguins", "--all", "--no-headers").stdout.splitlines()] == [
        "penguins"
    ]


def test_get_all_as_json_has_an_annotation_with_the_archive(allranks: Run, archive: WrittenArchive):
    job = saved(archive)
    document = json.loads(allranks("get", "--all", "-o", "json").stdout)
    gone, there = document["items"]
    assert gone["metadata"]["annotations"]["allranks.dev/archived-in"] == archive.url
    assert "annotations" not in there["metadata"]
    one = json.loads(allranks("get", "penguins", "--all", "-o", "json").stdout)
    assert (one["kind"], one["status"]["phase"]) == (job["kind"], "Succeeded")
    assert allranks("get", "--all", "-o", "name").stdout.split()[0].endswith("/penguins")


def test_get_all_without_a_cluster_does_not_say_that_jobs_are_deleted(archive: WrittenArchive, tmp_path: Path):
    saved(archive)
    missing = str(tmp_path / "missing")
    words = ["get", "--all", "-A", "--archive", archive.url, "--kubeconfig", missing]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[1].split()[-1] == "unknown"
    assert "Only jobs of the archive are printed" in result.stderr


def test_get_all_of_an_unknown_job_or_without_an_archive_is_an_error(allranks: Run, archive: WrittenArchive):
    result = allranks("get", "seals", "--all")
    text = f"error: there is no job seals, neither on the cluster nor in the archive {archive.url}\n"
    assert (result.exit_code, result.stderr) == (1, text)
    result = allranks("get", "--all", url=None)
    assert result.exit_code == 2
    assert "--all reads an archive: name it with --archive or ALLRANKS_ARCHIVE." in result.stderr
    assert allranks("get", "--all", "--watch").exit_code == 2
    assert "is not a label selector" in allranks("get", "--all", "-l", "a=(").stderr
    result = allranks("get", "--all", "--archive", archive.url + "/missing")
    assert (result.exit_code, result.stderr) == (1, f"error: {archive.url}/missing: there is no such directory\n")
    result = allranks("get", "--all", "--archive", "ftp://somewhere")
    assert result.exit_code == 1
    assert "an archive is a directory, or an address that begins with one of s3://" in result.stderr


def test_get_all_of_sweeps_prints_deleted_ones_and_no_jobs(allranks: Run, api: SomeApi, archive: WrittenArchive):
    saved(archive)
    there = a_sweep("birds", phase="Running")
    archive.job(a_sweep())
    archive.job(there)
    api.sweeps = [there]
    result = allranks("get", "--all", "--sweeps")
    assert result.exit_code == 0, result.stderr
    header, *rows = [line.split() for line in result.stdout.splitlines()]
    assert (header[0], header[-1]) == ("NAME", "DELETED")
    assert [(row[0], row[-1]) for row in rows] == [("search", "yes"), ("birds", "no")]
    assert "Succeeded" in rows[0]
    assert "12/12" in rows[0]
    document = json.loads(allranks("get", "search", "--all", "--sweeps", "-o", "json").stdout)
    assert (document["kind"], document["status"]["phase"]) == ("TrainingSweep", "Succeeded")
    assert document["metadata"]["annotations"]["allranks.dev/archived-in"] == archive.url
    result = allranks("get", "seals", "--all", "--sweeps")
    text = f"error: there is no sweep seals, neither on the cluster nor in the archive {archive.url}\n"
    assert (result.exit_code, result.stderr) == (1, text)


# --- report and describe ---------------------------------------------------------------------------------------------


def test_report_on_a_deleted_job_ends_with_its_last_change(allranks: Run, archive: WrittenArchive):
    job = saved(archive)
    result = allranks("report", "penguins")
    end = last_update(job)
    assert end is not None
    assert (result.exit_code, result.stdout) == (0, rendered(job, "text", end))
    shown = f"penguins is shown from the archive {archive.url} (created 2026-03-04T10:00:00Z, UID uid-penguins)\n"
    assert result.stderr == shown
    assert json.loads(allranks("report", "penguins", "-o", "json").stdout)["name"] == "penguins"


def test_the_newest_job_of_a_name_is_shown_and_the_uid_selects_another(allranks: Run, archive: WrittenArchive):
    job = saved(archive, "uid-2", 12)
    saved(archive, "uid-1", 11)
    attempt = str(last_attempt(job))
    assert allranks("logs", "penguins").stdout == "worker-0 | done uid-2\n"
    assert allranks("logs", "penguins", "--uid", "uid-1", "--attempt", attempt).stdout == "worker-0 | done uid-1\n"
    result = allranks("report", "penguins", "--uid", "uid-3")
    error = f"error: the archive {archive.url} has no job or sweep penguins with UID uid-3 in namespace team"
    assert (result.exit_code, result.stderr.splitlines()[0]) == (1, error)
    result = allranks("report", "penguins", "--uid", "uid-1", url=None)
    assert result.exit_code == 2
    assert "--uid selects a job of an archive" in result.stderr


def test_a_job_that_exists_is_not_read_from_the_archive(allranks: Run, archive: WrittenArchive, running):
    archive.job(running | {"spec": running["spec"] | {"image": "old:1"}})
    result = allranks("report", "whales")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "old:1" not in result.stdout


def test_a_job_that_is_nowhere_has_the_error_of_the_cluster(allranks: Run):
    for command in ("report", "logs", "describe"):
        result = allranks(command, "seals")
        assert result.exit_code == 1
        assert "error: there is no job seals in namespace team" in result.stderr


def test_report_on_a_deleted_sweep_has_its_trials_and_the_importance_of_its_parameters(
    allranks: Run, archive: WrittenArchive, tmp_path: Path
):
    archive.job(a_sweep())
    result = allranks("report", "search")
    assert result.exit_code == 0, result.stderr
    assert "search: Succeeded, the best loss is" in result.stdout
    assert f"search is shown from the archive {archive.url}" in result.stderr
    document = json.loads(allranks("report", "search", "-o", "json").stdout)
    assert (len(document["status"]["trials"]), set(document["importances"])) == (12, {"lr", "batch"})
    assert allranks("report", "search", "-o", str(tmp_path / "page.html")).exit_code == 0
    assert (tmp_path / "page.html").read_text().count("<polyline") == 12
    where = ["--kubeconfig", str(tmp_path / "missing"), "-n", "team", "--archive", archive.url]
    assert CliRunner().invoke(cli, ["report", "search", *where]).stdout == result.stdout


def test_report_on_a_name_that_a_job_and_a_sweep_had_shows_what_exists_then_the_newest(
    allranks: Run, api: SomeApi, archive: WrittenArchive
):
    job, sweep = saved(archive), a_sweep("penguins", "uid-s")
    sweep["metadata"]["creationTimestamp"] = "2026-03-04T11:00:00Z"
    archive.job(sweep)
    assert allranks("report", "penguins").stdout.startswith("penguins: Succeeded, the best loss")
    assert "the best loss" not in allranks("report", "penguins", "--uid", "uid-penguins").stdout
    job["metadata"] |= {"uid": "uid-2", "creationTimestamp": "2026-03-04T12:00:00Z"}
    archive.job(job)
    assert "the best loss" not in allranks("report", "penguins").stdout
    assert "the best loss" in allranks("report", "penguins", "--uid", "uid-s").stdout
    api.sweeps = [a_sweep("penguins", "uid-3", phase="Running")]
    result = allranks("report", "penguins")
    assert (result.stdout.partition(",")[0], result.stderr) == ("penguins: Running", "")


def test_describe_prints_the_events_of_a_deleted_job(allranks: Run, archive: WrittenArchive):
    saved(archive)
    result = allranks("describe", "penguins")
    assert result.exit_code == 0, result.stderr
    assert f"the job is deleted: this is its last state in the archive {archive.url}" in result.stdout
    assert "attempt 0 started" in result.stdout
    document = json.loads(allranks("describe", "penguins", "-o", "json").stdout)
    assert [found["message"] for found in document["events"]] == ["attempt 0 started"]
    assert document["pods"] == []


# --- logs ------------------------------------------------------------------------------------------------------------


def test_logs_of_a_deleted_job_are_merged_by_time(allranks: Run, archive: WrittenArchive):
    job = saved(archive)
    result = allranks("logs", "penguins", "--attempt", "0")
    assert result.exit_code == 0, result.stderr
    order = ["master-0 | one", "master-0 | two", "worker-1 | two: ValueError", "master-0 | three"]
    assert result.stdout.splitlines() == order
    assert allranks("logs", "penguins", "--attempt", "0", "--tail", "1", "--role", "master").stdout == (
        "master-0 | three\n"
    )
    assert allranks("logs", "penguins", "--attempt", "0", "--since", "1h").stdout == ""
    last = f"worker-0 attempt {last_attempt(job)} | done uid-penguins"
    assert last in allranks("logs", "penguins", "--all-attempts").stdout
    lines = allranks("logs", "penguins", "--attempt", "0", "--index", "1", "-o", "json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "time": "2026-03-04T10:00:02.000000000Z",
            "role": "worker",
            "index": 1,
            "rank": None,
            "attempt": 0,
            "line": "two: ValueError",
        }
    ]


def test_logs_that_are_not_in_the_archive_are_an_error(allranks: Run, archive: WrittenArchive):
    saved(archive)
    result = allranks("logs", "penguins", "--attempt", "1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == f"error: the archive {archive.url} has none of the selected logs"
    assert allranks("logs", "penguins", "-c", "sidecar").exit_code == 1
    assert "has no role ps" in allranks("logs", "penguins", "--role", "ps").stderr


def test_logs_of_an_earlier_attempt_of_a_job_that_exists(allranks: Run, archive: WrittenArchive, running):
    """Its pods are deleted, as after each restart."""
    result = allranks("logs", "whales", "--attempt", "0")
    assert result.exit_code == 1
    assert f"the archive {archive.url} does not have their logs" in result.stderr
    assert "--archive reads the logs of an archive" in " ".join(
        allranks("logs", "whales", "--attempt", "0", url=None).stderr.split()
    )
    archive.log(running, LogName(0, "worker", 1), "ValueError: negative learning rate")
    result = allranks("logs", "whales", "--attempt", "0")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "worker-1 | ValueError: negative learning rate\n",
        "",
    )


@pytest.mark.parametrize(("started_at", "archived"), [(reported.at(0), False), (None, True)])
def test_a_log_that_the_cluster_has_is_not_read_from_the_archive(
    archive: WrittenArchive, running: dict[str, Any], started_at: Any, archived: bool
):
    archive.log(running, LogName(2, "worker", 1), "from the archive")
    options = {"roles": (), "ranks": (), "indices": (), "container": "trainer", "previous": False, "tail": None}
    options |= {"since": None, "timestamps": False, "no_prefix": False, "all_attempts": True, "output": None}
    logs = JobLogs(running, LogRequest(attempt=None, **options), Archive(archive.url))
    pod = Pod("whales-worker-1-2", "u", "worker", 1, 2, started_at=started_at)
    logs_of_deleted_pods = asyncio.run(logs._of_deleted_pods([pod]))
    assert [deleted.name for deleted, _ in logs_of_deleted_pods] == ["whales-worker-1-2"] * archived


def test_logs_and_report_without_a_cluster(archive: WrittenArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    job = saved(archive)
    monkeypatch.chdir(tmp_path)
    where = ["--kubeconfig", str(tmp_path / "missing"), "-n", "team", "--archive", archive.url]
    result = CliRunner().invoke(cli, ["logs", "penguins", *where])
    assert (result.exit_code, result.stdout) == (0, "worker-0 | done uid-penguins\n"), result.stderr
    result = CliRunner().invoke(cli, ["report", "penguins", *where])
    assert result.stdout == rendered(job, "text", last_update(job) or pytest.fail("no time"))
    result = CliRunner().invoke(cli, ["describe", "penguins", *where])
    assert "attempt 0 started" in result.stdout
    for command in ("logs", "report", "describe"):
        result = CliRunner().invoke(cli, [command, "seals", *where])
        assert result.exit_code == 1
        assert "missing" in result.stderr


# --- neither a cluster nor the job -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["logs", "describe", "report"])
@pytest.mark.parametrize(
    ("name", "namespace", "text"),
    [
        ("pengins", ["-n", "team"], "has no job pengins in namespace team, did you mean penguins?"),
        ("penguins", [], "has no job penguins in namespace default; it has one in namespace team: add -n team"),
        ("zebras", ["-n", "team"], "has no job zebras in namespace team"),
        ("searhc", ["-n", "team"], "has no job searhc in namespace team"),
    ],
)
def test_without_a_cluster_the_archive_is_named_first(archive, tmp_path, command, name, namespace, text):
    saved(archive)
    archive.job(a_sweep())
    if command != "logs":
        text = text.replace("no job", "no job or sweep")
        text += ", did you mean search?" if name == "searhc" else ""
    where = ["--kubeconfig", str(tmp_path / "missing"), *namespace, "--archive", archive.url]
    result = CliRunner().invoke(cli, [command, name, *where])
    first, second = [line for line in result.stderr.splitlines() if line.startswith("error:")][:2]
    assert (result.exit_code, first) == (1, f"error: the archive {archive.url} {text}")
    assert second.startswith("error: The cluster was not asked: ")
    assert "missing: there is no such file" in second


def test_a_command_for_jobs_says_that_the_name_is_that_of_a_deleted_sweep(archive, tmp_path):
    archive.job(a_sweep())
    where = ["--kubeconfig", str(tmp_path / "missing"), "-n", "team", "--archive", archive.url]
    result = CliRunner().invoke(cli, ["logs", "search", *where])
    text = "has no job search in namespace team; search is a sweep: allranks report search shows it"
    assert text in result.stderr
    assert result.exit_code == 1
