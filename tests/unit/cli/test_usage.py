"""`allranks usage`: jobs of the cluster, of an archive, and runs of this machine."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from allranks.cli.main import cli
from support.archives import WrittenArchive
from support.some_api import SomeApi
from support.ui_samples import a_job, a_run, done, failure

Run = Callable[..., Result]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[SomeApi]:
    running = a_job("whales", "Running")
    running["metadata"]["annotations"] = {"allranks.dev/user": "ada@example.com"}
    with SomeApi(tmp_path, running, done("penguins")) as api:
        yield api


def test_jobs_of_the_cluster_and_deleted_jobs_are_counted_once(allranks: Run, archive: WrittenArchive):
    archive.job(done("penguins"))  # it exists
    gone = done("gone")
    gone["metadata"]["labels"] = {"team": "vision"}
    archive.job(gone)
    archive.job(done("elsewhere", "other"))
    result = allranks("usage", "--by", "team")
    assert (result.exit_code, result.stderr) == (0, "")
    header, *rows = [line.split() for line in result.stdout.splitlines()]
    assert header[:4] == ["TEAM", "JOBS", "ENDED", "QUEUE"]
    assert [row[:2] for row in rows] == [["nlp", "2"], ["vision", "1"], ["all", "3"]]
    assert rows[0][-2:] == ["1.00", "EUR"]
    assert [group["jobs"] for group in json.loads(allranks("usage", "-A", "-o", "json").stdout)] == [3, 1]


def test_a_table_without_prices_has_no_columns_of_money(allranks: Run, api: SomeApi):
    del api.jobs["penguins"]
    header, row = allranks("usage", "--by", "namespace,user").stdout.splitlines()
    assert header.split() == ["NAMESPACE", "USER", "JOBS", "QUEUE", "TIME", "GOODPUT"] or "COST" not in header
    assert row.split()[:3] == ["team", "ada@example.com", "1"]


def test_csv_has_numbers_and_json_the_keys_of_the_rest_interface(allranks: Run, archive: WrittenArchive):
    archive.job(done("gone", when="2026-03-11T10:00:00Z"))
    [row] = csv.DictReader(io.StringIO(allranks("usage", "--by", "week", "--until", "2026-03-08", "-o", "csv").stdout))
    assert (row["week"], row["jobs"], row["gpu_hours"], row["spent_EUR"]) == ("2026-W10", "1", "3.5", "7.0")
    groups = json.loads(allranks("usage", "--by", "week,job", "--until", "2026-03-31", "-o", "json").stdout)
    assert [group["keys"]["job"] for group in groups] == ["gone", "penguins"]
    assert (groups[0]["goodput"], groups[0]["queuedSeconds"]) == (0.8, 900)


def test_a_time_and_labels_select_jobs(allranks: Run):
    def count(*options: str) -> list[int]:
        return [group["jobs"] for group in json.loads(allranks("usage", "-o", "json", *options).stdout)]

    assert count("--since", "30d") == [1]
    assert count("--since", "2026-03-04T10:00") == [2]
    assert count("--since", "2026-03-04T12:00+01:00", "--until", "2026-03-05") == []
    assert count("-l", "team=nlp") == [2]
    assert count("-l", "team=vision") == []
    assert allranks("usage", "-l", "team=vision").stderr.endswith("No jobs.\n")


def test_without_an_archive_a_note_says_that_deleted_jobs_are_missing(allranks: Run):
    assert "deleted jobs are not counted" in allranks("usage", url=None).stderr


def test_without_a_cluster_the_archive_is_counted_with_a_warning(archive: WrittenArchive, tmp_path: Path):
    archive.job(done("gone"))
    words = ["usage", "-n", "team", "--archive", archive.url, "--kubeconfig", str(tmp_path / "none")]
    result = CliRunner().invoke(cli, [*words, "-o", "json"])
    assert (result.exit_code, [group["jobs"] for group in json.loads(result.stdout)]) == (0, [1])
    assert "Only jobs of the archive are counted" in result.stderr
    result = CliRunner().invoke(cli, [*words[:3], "--kubeconfig", str(tmp_path / "none")])
    assert result.exit_code == 1
    result = CliRunner().invoke(cli, [*words[:4], str(tmp_path / "absent"), *words[5:]])
    assert (result.exit_code, "there is no such directory" in result.stderr) == (1, True)


def test_an_archive_that_cannot_be_read_is_an_error(allranks: Run, tmp_path: Path):
    result = allranks("usage", url=str(tmp_path / "absent"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no such directory" in result.stderr


def test_runs_of_a_directory_are_counted_without_a_cluster(tmp_path: Path):
    a_run(tmp_path / "runs", "hello", "20260304-101500", "Failed", {}, lastFailure=failure())
    (tmp_path / "runs" / "broken" / "20260304-101500").mkdir(parents=True)
    result = CliRunner().invoke(cli, ["usage", "--runs", str(tmp_path / "runs"), "--by", "job", "-o", "json"])
    assert [(group["name"], group["failed"]) for group in json.loads(result.stdout)] == [("hello", 1)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--by", "moon"], "moon' is not a group: use namespace, pool"),
        (["--since", "yesterday"], "yesterday is not a time: use for example 7d"),
        (["-l", "a in"], "-l"),
    ],
)
def test_wrong_options_are_explained(allranks: Run, options: list[str], sentence: str):
    result = allranks("usage", *options)
    assert result.exit_code == 2
    assert sentence in result.stderr
