"""`allranks runs` with sweeps of this machine: listed with their trials, and removed as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from allranks.cli.main import cli
from allranks.local import run_directories
from allranks.local.run_directories import RunsError
from allranks.local.sweep_files import StoredSweep, find_stored
from unit.local.test_run_directories import stored

TIME = "20260304-101500"


def trial(number: int, phase: str) -> dict[str, Any]:
    at = f"2026-03-04T10:{15 + number}:00Z"
    begun = {} if phase == "Pending" else {"startTime": at}
    return {"number": number, "job": f"search-{number}", "parameters": {}, "phase": phase, **begun}


def a_sweep(root: Path, phase: str = "Succeeded", year: int = 2026, time: str = TIME) -> Path:
    """Four trials: two have ended, one is running, and one has not started."""
    directory = root / "search" / time
    directory.mkdir(parents=True)
    status: dict[str, Any] = {"phase": phase, "summary": "2/4", "startTime": f"{year}-03-04T10:15:00Z"}
    if phase == "Succeeded":
        status["completionTime"] = f"{year}-03-04T10:25:00Z"
    phases = ("Succeeded", "Stopped", "Running", "Pending")
    status["trials"] = [trial(number, phase) for number, phase in enumerate(phases)]
    document = {"kind": "TrainingSweep", "metadata": {"name": "search"}, "spec": {}, "status": status}
    (directory / "sweep.json").write_text(json.dumps(document))
    for number, ended in enumerate(("Succeeded", "Suspended", "Running")):
        run = directory / "trials" / f"search-{number}"
        (run / "logs").mkdir(parents=True)
        status = {"phase": ended, "startTime": "2026-03-04T10:15:00Z"}
        (run / "job.json").write_text(
            json.dumps({"kind": "DistributedTraining", "metadata": {"name": run.name}, "spec": {}, "status": status})
        )
        (run / "logs" / f"{run.name}-worker-0-0.log").write_text("hello\n")
    return directory


def allranks(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    return tmp_path / "runs"


def columns(result: Result, *places: int) -> list[list[str]]:
    return [[line.split()[place] for place in places] for line in result.stdout.splitlines()]


def test_a_sweep_is_a_row_and_its_trials_are_rows_on_request(here: Path) -> None:
    stored(here, "a/20260304-101500")
    a_sweep(here)
    assert columns(allranks("runs"), 0, 1, -1)[0] == ["RUN", "PHASE", "TRIALS"]
    assert columns(allranks("runs"), 0, 1)[1:] == [[f"a/{TIME}", "Succeeded"], [f"search/{TIME}", "Succeeded"]]
    assert columns(allranks("runs"), 3, -1)[2] == ["10:00", "2/4"]
    trials = [["search-0", "Succeeded"], ["search-1", "Stopped"], ["search-2", "Interrupted"]]
    expected = [[f"search/{TIME}/{name}", phase] for name, phase in trials]
    for command in (["runs", "--trials"], ["runs", "list", "--trials"]):
        assert columns(allranks(*command), 0, 1)[3:] == expected
    run, sweep = json.loads(allranks("runs", "-o", "json").stdout)
    assert "trials" not in run
    assert (sweep["run"], sweep["completionTime"]) == (f"search/{TIME}", "2026-03-04T10:25:00+00:00")
    assert [[one["run"], one["phase"]] for one in sweep["trials"]] == expected
    assert sweep["bytes"] > sum(one["bytes"] for one in sweep["trials"])


def test_without_sweeps_the_list_has_no_column_for_trials(here: Path) -> None:
    stored(here, "a/20260304-101500")
    assert "TRIALS" not in allranks("runs").stdout


def test_a_killed_sweep_is_interrupted_and_ended_with_its_last_trial(here: Path) -> None:
    sweep = StoredSweep(a_sweep(here, "Running"))
    assert (sweep.phase, str(sweep.ended)) == ("Interrupted", "2026-03-04 10:17:00+00:00")


@pytest.mark.parametrize("name", ["search-1", f"search/{TIME}/search-1"])
def test_a_trial_has_logs_and_a_report(here: Path, name: str) -> None:
    a_sweep(here)
    assert find_stored(name, here).name == f"search/{TIME}/search-1"
    assert allranks("runs", "logs", name).stdout == "worker-0-0 | hello\n"
    assert "search-1 was interrupted" in allranks("runs", "report", name).stdout
    done = allranks("runs", "rm", name)
    assert (done.exit_code, done.stderr) == (
        1,
        f"error: search/{TIME}/search-1 is a trial: remove its sweep, search/{TIME}\n",
    )
    assert find_stored(name, here).directory.exists()


def test_what_only_a_trial_has_names_one(here: Path) -> None:
    a_sweep(here)
    for command in ("logs", "stacks"):
        done = allranks("runs", command, "search")
        assert done.exit_code == 1
        assert f"search/{TIME} is a sweep: name one of its trials, for example search/{TIME}/search-0" in done.stderr
    with pytest.raises(RunsError, match=f"search/{TIME} has no trial search-3 that was started"):
        find_stored(f"search/{TIME}/search-3", here)
    with pytest.raises(RunsError, match="there is no such run; did you mean search"):
        find_stored("serach", here)


def test_a_sweep_is_removed_as_one(here: Path) -> None:
    a_sweep(here, year=2020)
    newer = a_sweep(here, year=2999, time="29990304-101500")
    assert allranks("runs", "prune", "--older-than", "7d").stdout == f"removed search/{TIME}\n"
    assert [path.name for path in (here / "search").iterdir()] == [newer.name]
    with run_directories.in_use(newer / "trials" / "search-2"):
        done = allranks("runs", "rm", "search")
        assert (done.exit_code, "still running" in done.stderr) == (1, True)
    assert allranks("runs", "rm", "--all", "search").stdout == "removed search/29990304-101500\n"
    assert list(here.iterdir()) == []


def test_the_report_of_a_name_is_that_of_its_newest_run_or_sweep(here: Path) -> None:
    a_sweep(here)
    stored(here, "search/20260304-111500", "Failed")
    assert allranks("report", "search").stdout.startswith("search Failed")


def test_a_sweep_and_a_run_in_a_directory_that_run_dir_named_are_listed_read_and_removed_by_its_name(
    here: Path,
) -> None:
    here.mkdir()
    a_sweep(here.parent / "elsewhere").rename(here / "tpe")
    (here / "tpe" / "trials" / "search-0").rename(here / "lone")
    for time in ("20260305-101500", "20260303-101500"):
        stored(here, f"a/{time}")
    listed = [name for (name,) in columns(allranks("runs"), 0)[1:]]
    assert listed == ["a/20260305-101500", "tpe", "lone", "a/20260303-101500"], "the newest first"
    assert allranks("runs", "logs", "lone", "--replica", "worker-0").stdout == "worker-0-0 | hello\n"
    for name in ("tpe/search-1", "tpe/tpe/search-1", "search-1"):
        assert find_stored(name, here).name == "tpe/search-1"
    assert find_stored("tpe", here).directory == here / "tpe"
    assert allranks("runs", "rm", "tpe", "lone").stdout == "removed tpe\nremoved lone\n"
    assert sorted(path.name for path in here.iterdir()) == ["a"]
