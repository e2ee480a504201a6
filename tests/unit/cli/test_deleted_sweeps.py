"""`describe` and `promote` of sweeps: those of the cluster, and deleted ones of an archive."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from support.archives import WrittenArchive
from support.job_api import JobApi
from support.sweep_samples import a_sweep, trial_of, with_gpu_time
from support.ui_samples import event

Run = Callable[..., Result]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[JobApi]:
    with JobApi(tmp_path) as api:
        api.sweeps = []
        yield api


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def searched(**checkpoint: Any) -> dict[str, Any]:
    """A sweep of three trials, whose best one is trial 2."""
    sweep = a_sweep(trials=3)
    sweep["spec"]["template"]["spec"]["checkpoint"] = checkpoint or {"claim": "models", "subPath": "nlp"}
    return sweep


# --- describe --------------------------------------------------------------------------------------------------------


def test_describe_shows_a_sweep_of_the_cluster_with_trials_gpu_time_and_events(allranks: Run, api: JobApi):
    sweep = a_sweep(trials=3)
    api.sweeps = [sweep]
    api.events = [event("search", "TrainingSweep", "TrialCreated", "trial 0: batch=16", uid="uid-search")]
    for number in range(3):
        api.put(with_gpu_time(trial_of(sweep, f"search-{number}", f"t{number}"), 10, 2.5))
    result = allranks("describe", "search")
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "Name: search" in lines
    assert "Objective: loss, Minimize" in lines
    assert "Trials: 3/3 (3 succeeded)" in lines
    assert any(line.startswith("Phase: Succeeded: the best loss is") for line in lines)
    assert any(line.startswith("GPU time: 37.5 GPUh, 75.00 EUR at 2.00 EUR per GPU-hour; productive") for line in lines)
    assert any("12.5 GPUh 10.0 GPUh 2.5 GPUh 25.00 EUR best" in line for line in lines)
    assert any("Normal TrialCreated sweep trial 0: batch=16" in line for line in lines)
    assert "deleted" not in result.stdout
    found = json.loads(allranks("describe", "search", "-o", "json").stdout)
    assert found["sweep"]["kind"] == "TrainingSweep"
    assert [one["reason"] for one in found["events"]] == ["TrialCreated"]
    assert found["errors"] == []


def test_describe_shows_a_deleted_sweep_from_the_archive(allranks: Run, archive: WrittenArchive, tmp_path: Path):
    sweep = a_sweep(trials=3)
    archive.job(sweep, event("search", "TrainingSweep", "TrialStopped", "trial 1 stopped", uid="uid-search"))
    archive.job(with_gpu_time(trial_of(sweep, "search-0", "t0"), 10))
    result = allranks("describe", "search")
    assert result.exit_code == 0, result.stderr
    assert f"the sweep is deleted: this is its last state in the archive {archive.url}" in result.stdout
    assert f"search is shown from the archive {archive.url}" in result.stderr
    assert "trial 1 stopped" in result.stdout
    assert "10.0 GPUh" in result.stdout
    assert "2 jobs are missing, and their GPU time is not counted: search-1, search-2" in result.stdout
    missing = tmp_path / "missing"
    without_cluster = allranks("describe", "search", "-n", "team", kubeconfig=missing)
    assert without_ages(without_cluster.stdout) == without_ages(result.stdout)
    assert allranks("describe", "search", url=None).exit_code == 1


def without_ages(text: str) -> str:
    """Return the text without the ages, which grow between two calls."""
    return " ".join(re.sub(r"\b\d+(s|m|m\d+s)\b", "AGE", text).split())


def test_describe_of_a_sweep_says_that_its_events_may_not_be_read(allranks: Run, api: JobApi):
    api.sweeps = [a_sweep(trials=3)]
    api.forbidden.add("events")
    result = allranks("describe", "search")
    assert result.exit_code == 0, result.stderr
    assert "may not" in result.stdout.partition("Events:")[2]
    [error] = json.loads(allranks("describe", "search", "-o", "json").stdout)["errors"]
    assert "events" in error


# --- promote ---------------------------------------------------------------------------------------------------------


def test_a_trial_of_a_sweep_that_exists_is_promoted_from_its_job(allranks: Run, api: JobApi):
    sweep = searched()
    api.sweeps = [sweep]
    api.put(trial_of(sweep, "search-1", "t1"))
    result = allranks("promote", "search", "1")
    assert (result.exit_code, result.stderr) == (0, "")
    spec = yaml.safe_load(result.stdout)["spec"]
    assert (spec["resumeFrom"], spec["checkpoint"]["subPath"]) == ("search-1", "nlp/search-1-promoted")


def test_a_trial_whose_job_is_deleted_continues_in_its_own_folder(
    allranks: Run, api: JobApi, archive: WrittenArchive, tmp_path: Path
):
    sweep = searched()
    note = (
        "note: the job search-1 is deleted, so this one continues in its folder nlp/search-1 of claim models: if that "
        "is gone, the training begins again"
    )
    api.sweeps = [sweep]
    assert note in allranks("promote", "search", "1").stderr
    api.sweeps = []
    archive.job(sweep)
    result = allranks("promote", "search", "1")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.splitlines()[1:] == [note]
    job = yaml.safe_load(result.stdout)
    assert job["metadata"]["name"] == "search-1-promoted"
    assert "resumeFrom" not in job["spec"]
    assert job["spec"]["checkpoint"] == {"claim": "models", "subPath": "nlp/search-1"}
    assert {"name": "ALLRANKS_PARAM_BATCH", "value": sweep["status"]["trials"][1]["parameters"]["batch"]} in job[
        "spec"
    ]["env"]
    missing = tmp_path / "missing"
    assert allranks("promote", "search", "1", "-n", "team", kubeconfig=missing).stdout == result.stdout
    api.put(trial_of(sweep, "search-1", "orphan"))
    spec = yaml.safe_load(allranks("promote", "search", "1").stdout)["spec"]
    assert spec["resumeFrom"] == "search-1", "its job was kept when the sweep was deleted"


def test_the_uid_selects_one_of_several_deleted_sweeps(allranks: Run, archive: WrittenArchive):
    newer, older = searched(), searched(claim="old")
    older["metadata"] |= {"uid": "older", "creationTimestamp": "2026-03-01T10:00:00Z"}
    archive.job(newer)
    archive.job(older)
    assert "subPath: nlp/search-0" in allranks("promote", "search", "0").stdout
    assert "claim: old" in allranks("promote", "search", "0", "--uid", "older").stdout
    result = allranks("promote", "search", "0", "--uid", "none")
    text = f"error: the archive {archive.url} has no sweep search with UID none in namespace team\n"
    assert (result.exit_code, result.stderr) == (1, text)


def test_what_is_lost_with_a_deleted_sweep_is_said(allranks: Run, archive: WrittenArchive):
    archive.job(searched(volume={"emptyDir": {}}))
    result = allranks("promote", "search", "1")
    assert result.exit_code == 1
    assert "the checkpoints of trial 1 are gone: a volume of type emptyDir ends with its pod." in result.stderr
    secret = searched()
    secret["metadata"] |= {"name": "secret", "uid": "s"}
    secret["spec"]["template"]["spec"]["env"] = [{"name": "API_TOKEN", "value": "swordfish-1"}]
    archive.job(secret)
    result = allranks("promote", "secret", "1")
    assert "note: the archive has masked values of the manifest: replace each <masked>" in result.stderr
    assert "error: " in allranks("promote", "nothing", "1").stderr
