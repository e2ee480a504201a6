"""`allranks.history`: which run or job it reads."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import pytest

import allranks
from allranks.kube.cluster import Where
from support import reported
from support.archives import WrittenArchive
from support.sweep_samples import a_sweep


@pytest.fixture(autouse=True)
def without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)


def stored(directory: Path, value: float) -> None:
    directory.mkdir(parents=True)
    (directory / "job.json").write_text(json.dumps(reported.job()))
    point = {"time": reported.stamp(1), "attempt": 0, "step": 1, "metrics": {"loss": value}}
    (directory / "progress.jsonl").write_text(json.dumps(point))


def test_a_run_is_read_by_its_directory_that_of_its_job_or_its_name(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for value, time in ((1.0, "20260304-100000"), (2.0, "20260304-110000")):
        stored(root / "penguins" / time, value)
    (root / "penguins" / "latest").symlink_to("20260304-110000")
    for run, value in (
        (root / "penguins" / "20260304-100000", 1.0),
        (root / "penguins", 2.0),
        ("penguins/20260304-100000", 1.0),
        ("penguins", 2.0),
    ):
        assert [row.value for row in allranks.history(run, root=root)] == [value]
    with pytest.raises(allranks.AllranksError, match=r"there is no such run; did you mean penguins\?"):
        allranks.history("penguin", root=root)


def test_of_a_sweep_only_trials_have_a_record(tmp_path: Path) -> None:
    sweep = tmp_path / "search" / "20260304-100000"
    stored(sweep / "trials" / "search-0", 1.0)
    (sweep / "sweep.json").write_text(json.dumps(a_sweep()))
    for run in (sweep, "search"):
        with pytest.raises(allranks.AllranksError, match="is a sweep: name one of its trials"):
            allranks.history(run, root=tmp_path)
    assert [row.value for row in allranks.history("search-0", root=tmp_path)] == [1.0]


def test_a_deleted_job_is_read_from_the_archive(tmp_path: Path) -> None:
    archive, job = WrittenArchive(tmp_path), reported.finished()
    job["metadata"]["uid"] = "uid-penguins"
    archive.job(job)
    values = allranks.history("penguins", archive=archive.url, namespace="team")
    curve = job["status"]["progress"]["curve"]
    assert [(row.step, row.value) for row in values if row.time] == [(point["step"], point["value"]) for point in curve]
    with pytest.raises(allranks.AllranksError, match="has no job penguins in namespace default"):
        allranks.history("penguins", archive=archive.url)


def test_a_job_on_a_cluster_has_what_its_status_has(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = reported.running()
    job = allranks.Job(copy.deepcopy(manifest), Where())
    monkeypatch.setattr(job, "_refresh", lambda: manifest)
    curve = manifest["status"]["progress"]["curve"]
    assert [row.step for row in job.history() if row.time] == [point["step"] for point in curve]
