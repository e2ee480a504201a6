"""GPU-hours and money in the report on a sweep: of a cluster, of an archive and of this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from allranks.cli.main import cli
from allranks.client.sweeps import deleted_trial
from allranks.views.report import sweep as sweep_report
from allranks.views.report.sweep_cost import TrialJobs
from support.archives import WrittenArchive
from support.some_api import SomeApi
from support.sweep_samples import a_sweep, trial_of, with_gpu_time

SWEEP = a_sweep(trials=3)
RUN_AGAIN = a_sweep(trials=3)
RUN_AGAIN["status"]["trials"][1] |= {"runs": 1, "job": "search-1-r1"}


def job(name: str, productive: float, lost: float = 0.0, price: float | None = 2.0, of: Any = SWEEP) -> dict[str, Any]:
    return with_gpu_time(trial_of(of, name, f"uid-{name}"), productive, lost, price)


def report(*jobs: dict[str, Any], of: Any = SWEEP) -> sweep_report.SweepReport:
    return sweep_report.build(of, TrialJobs([deleted_trial(one) for one in jobs]))


def cells(made: sweep_report.SweepReport, column: str) -> list[str]:
    place = made.headers.index(column)
    return [cells[place] for _, cells in made.rows]


def test_the_report_has_the_gpu_time_of_all_trials_and_of_each_in_the_words_of_that_of_a_job():
    made = report(job("search-0", 10, 2.5), job("search-1", 1), job("search-2", 0.5))
    text = list(sweep_report.text(made))
    assert "GPU time: 14.0 GPUh, 28.00 EUR" in text
    table = [line.split() for line in text[text.index("GPU time") + 1 :]]
    assert [table[place] for place in (0, 1, 4, 5)] == [
        ["WHAT", "GPU-HOURS", "PRICE"],
        ["productive", "11.5", "GPUh", "23.00", "EUR"],
        ["lost", "2.5", "GPUh", "5.00", "EUR"],
        ["lost", "by", "NodeLost", "2.5", "GPUh", "5.00", "EUR"],
    ]
    assert cells(made, "GPU-hours") == ["12.5 GPUh", "1 GPUh", "0.5 GPUh"]
    assert cells(made, "Lost") == ["2.5 GPUh", "0.0 GPUh", "0.0 GPUh"]
    assert cells(made, "Cost") == ["25.00 EUR", "2.00 EUR", "1.00 EUR"]
    assert ("Cost", "28.00 EUR", "14.0 GPUh") in made.tiles
    page = sweep_report.page(made)
    assert "28.00 EUR" in page
    assert "lost by NodeLost" in page
    found = made.as_json()
    assert found["cost"]["gpuHours"] == {"productive": 11.5, "starting": 0, "waiting": 0, "lost": 2.5}
    assert (found["cost"]["currency"], found["cost"]["lostByReason"]) == ("EUR", {"NodeLost": 5.0})
    assert found["trialCosts"]["0"]["spent"]["productive"] == 20.0


def test_a_trial_that_was_run_again_has_the_gpu_time_of_all_its_jobs():
    jobs = [job("search-0", 1, of=RUN_AGAIN), job("search-1", 0, 3, of=RUN_AGAIN), job("search-1-r1", 4, of=RUN_AGAIN)]
    made = report(*jobs, job("search-2", 1), of=RUN_AGAIN)
    assert cells(made, "GPU-hours")[1] == "7 GPUh"
    assert made.cost_note == ""


def test_without_a_price_there_are_hours_only_and_without_gpus_nothing():
    made = report(*(job(f"search-{number}", 1, price=None) for number in range(3)))
    assert "Cost" not in made.headers
    assert ("GPU time", "3 GPUh", "") in made.tiles
    assert "GPU time: 3 GPUh" in list(sweep_report.text(made))
    without = report(*(trial_of(SWEEP, f"search-{number}", "u") for number in range(3)))
    assert "GPU-hours" not in without.headers
    assert without.as_json()["cost"] is None
    assert "GPU time" not in "\n".join(sweep_report.text(without))


def test_amounts_of_two_currencies_are_not_added():
    dollars = job("search-1", 1)
    dollars["status"]["cost"]["currency"] = "USD"
    made = report(job("search-0", 1), dollars, job("search-2", 1))
    assert "GPU time: 3 GPUh" in list(sweep_report.text(made))
    assert "Cost" not in made.headers


def test_the_report_names_the_jobs_whose_gpu_time_is_missing():
    made = report(job("search-0", 1))
    note = "2 jobs are missing, and their GPU time is not counted: search-1, search-2"
    assert note in list(sweep_report.text(made))
    assert note in sweep_report.page(made)
    assert report(trial_of(SWEEP, "search-0", "u")).cost_note == "", "the others have no GPUs either"
    assert report().cost_note.startswith("3 jobs are missing")


# --- where the jobs are ----------------------------------------------------------------------------------------------


@pytest.fixture
def api(tmp_path: Path) -> Iterator[SomeApi]:
    with SomeApi(tmp_path) as api:
        yield api


@pytest.fixture
def allranks(allranks: Callable[..., Result]) -> Callable[..., Result]:
    def run(*words: str, **options: Any) -> Result:
        done = allranks(*words, **options)
        assert done.exit_code == 0, done.stderr
        return done

    return run


def test_the_gpu_time_of_a_live_sweep_is_that_of_its_own_jobs_and_of_deleted_ones_of_the_archive(
    allranks, api: SomeApi, archive: WrittenArchive
):
    api.sweeps = [SWEEP]
    api.put(job("search-0", 1))
    api.put(job("search-1", 2))
    other = a_sweep(uid="earlier", trials=3)
    api.put(job("search-2", 50, of=other))
    archive.job(job("search-2", 4))
    archive.job(with_gpu_time(trial_of(other, "search-2", "uid-of-earlier"), 70))
    assert "GPU time: 7 GPUh, 14.00 EUR" in allranks("report", "search").stdout
    text = allranks("report", "search", url=None).stdout
    assert "GPU time: 3 GPUh, 6.00 EUR" in text
    assert "1 job is missing, and its GPU time is not counted: search-2\n" in text
    text = allranks("report", "search", url="/nothing").stdout
    assert "search-2 (/nothing: there is no such directory)" in text


def test_the_gpu_time_of_a_running_trial_counts_until_now(allranks, api: SomeApi):
    api.sweeps = [SWEEP]
    running = job("search-0", 1)
    running["status"] |= {"phase": "Running", "completionTime": None}
    running["status"]["times"] |= {"category": "Productive", "productiveSince": "2026-03-04T12:00:00Z"}
    running["status"]["cost"]["gpus"] = 2
    api.put(running)
    found = json.loads(allranks("report", "search", "-o", "json").stdout)
    assert found["cost"]["gpuHours"]["productive"] > 24


def test_the_gpu_time_of_an_archived_sweep_is_that_of_its_archived_jobs(
    allranks, archive: WrittenArchive, tmp_path: Path
):
    archive.job(SWEEP)
    for number in range(3):
        archive.job(job(f"search-{number}", 1))
    text = allranks("report", "search").stdout
    assert "GPU time: 3 GPUh, 6.00 EUR" in text
    where = ["--kubeconfig", str(tmp_path / "missing"), "-n", "team", "--archive", archive.url]
    assert CliRunner().invoke(cli, ["report", "search", *where]).stdout == text


def test_the_gpu_time_of_a_sweep_of_this_machine_is_that_of_its_runs(tmp_path: Path):
    (tmp_path / "sweep.json").write_text(json.dumps(SWEEP))
    for number in range(3):
        folder = tmp_path / "trials" / f"search-{number}"
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(json.dumps(job(f"search-{number}", 2, price=None)))
    (tmp_path / "trials" / "search-2" / "job.json").write_text("{")
    text = CliRunner().invoke(cli, ["report", "--run-dir", str(tmp_path)]).stdout
    assert "GPU time: 4 GPUh" in text
    assert "1 job is missing, and its GPU time is not counted: search-2" in text
