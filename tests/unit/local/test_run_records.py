"""What a run stores for its report: the job, the progress with all metrics, and the commit of the code."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from allranks.api.status import MetricRecord, ProgressStatus, Status, Times
from allranks.core.facts.model import Plan
from allranks.core.facts.rank_reports import MetricValues
from allranks.fields import decode
from allranks.local import LocalRun, Options, records
from allranks.local.code import CodeVersion
from allranks.local.records import ProgressLog, StateFile
from allranks.views.report.run_files import read_run_files
from support.builders import NOW, job


def status(step: int, seconds: float, attempt: int = 0, phase: Any = "Running", **metrics: float) -> Status:
    at = NOW + timedelta(seconds=seconds)
    progress = ProgressStatus(step=step, last_report=at, first_step_time=NOW, samples_per_second=64, metrics=metrics)
    return Status(phase=phase, attempt=attempt, progress=progress)


def recorded(path: Path) -> list[tuple[int, int]]:
    """(attempt, step) of each line."""
    return [(point["attempt"], point["step"]) for point in map(json.loads, path.read_text().splitlines())]


def test_the_progress_is_stored_with_all_metrics(tmp_path: Path) -> None:
    ProgressLog(tmp_path / "p").note(status(3, 7, loss=0.5, lr=0.1))
    assert json.loads((tmp_path / "p").read_text()) == {
        "time": "2026-03-04T10:00:07Z",
        "attempt": 0,
        "step": 3,
        "samplesPerSecond": 64.0,
        "metrics": {"loss": 0.5, "lr": 0.1},
    }


def test_points_are_not_too_close_but_the_last_one_of_an_attempt_is_stored(tmp_path: Path) -> None:
    log = ProgressLog(tmp_path / "p")
    for step in range(41):
        log.note(status(step, step / 10))
    log.note(status(45, 4.5))
    log.note(status(30, 6.0, attempt=1))
    log.note(status(31, 6.1, attempt=1))
    log.note(status(31, 6.1, attempt=1, phase="Succeeded"))
    first = [(0, 0), (0, 10), (0, 20), (0, 30), (0, 40), (0, 45)]
    assert recorded(tmp_path / "p") == [*first, (1, 30), (1, 31)]


def test_metrics_that_follow_the_last_step_are_its_last_values(tmp_path: Path) -> None:
    run = LocalRun(job(roles={"worker": {}}, command=["train"]), Options(run_dir=tmp_path))
    run._apply(Plan(next=status(10, 1, loss=0.5, accuracy=0.1)))
    run._apply(Plan(next=status(30, 8, loss=0.4, accuracy=0.1)))
    run._apply(Plan(next=status(30, 8, loss=0.4, accuracy=0.95)))
    run._apply(Plan(next=status(30, 8, phase="Succeeded", loss=0.4, accuracy=0.95)))
    points = read_run_files(tmp_path).samples
    assert [(point.step, point.metrics["accuracy"]) for point in points] == [(10, 0.1), (30, 0.95)]


def test_the_last_point_keeps_its_rate_after_the_ranks_have_ended(tmp_path: Path) -> None:
    run = LocalRun(job(roles={"worker": {}}, command=["train"]), Options(run_dir=tmp_path))
    run._apply(Plan(next=status(30, 8, loss=0.4)))
    ended = status(30, 8, phase="Succeeded", loss=0.3)
    assert ended.progress
    run._apply(Plan(next=replace(ended, progress=replace(ended.progress, samples_per_second=None))))
    assert [(point.metrics, point.samples_per_second) for point in read_run_files(tmp_path).samples] == [
        ({"loss": 0.3}, 64)
    ]


def test_the_progress_that_a_new_attempt_begins_with_is_no_point(tmp_path: Path) -> None:
    log = ProgressLog(tmp_path / "p")
    log.note(status(9, 1))
    log.note(status(9, 3))  # another rank has reached the same step
    begun = status(9, 3, attempt=1)
    assert begun.progress
    log.note(replace(begun, progress=replace(begun.progress, first_step_time=None)))
    log.note(status(5, 9, attempt=1))
    assert recorded(tmp_path / "p") == [(0, 9), (1, 5)]


def values_of(name: str, *values: tuple[float, int, float | None]) -> MetricValues:
    """`values`: (seconds, step, value)"""
    times = tuple((NOW + timedelta(seconds=seconds), step, value) for seconds, step, value in values)
    return MetricValues(name, times, sum(value is not None for _, _, value in values), None)


def with_records(status: Status, **last_steps: int) -> Status:
    assert status.progress
    records = {name: MetricRecord(first_step=0, last_step=step) for name, step in last_steps.items()}
    return replace(status, progress=replace(status.progress, records=records))


def test_each_value_has_the_time_and_the_step_at_which_it_was_reported(tmp_path: Path) -> None:
    log = ProgressLog(tmp_path / "p")
    log.note(with_records(status(1, 0, loss=3.0), loss=1))
    losses = [(step / 10, step, 3.0 - step / 10) for step in range(2, 12)]
    log.record(0, [values_of("loss", *losses), values_of("accuracy", (0.5, 5, 0.99), (1.0, 10, 0.5))])
    log.note(with_records(status(11, 1.1, loss=1.9, accuracy=0.5), loss=11, accuracy=10))
    log.record(0, [values_of("eval", (5.0, 11, None))])  # after the last step
    log.note(with_records(status(11, 1.1, phase="Succeeded", loss=1.9, accuracy=0.5), loss=11, accuracy=10, eval=11))
    (tmp_path / "progress.jsonl").write_text((tmp_path / "p").read_text())
    lines = [json.loads(line) for line in (tmp_path / "p").read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(1, 12), 11]
    times = [datetime.fromisoformat(line["time"]) for line in lines]
    assert times == sorted(times)
    assert [(line["step"], line["metrics"]["accuracy"]) for line in lines if "accuracy" in line["metrics"]] == [
        (5, 0.99),
        (10, 0.5),
    ]
    assert lines[-2]["samplesPerSecond"] == 64
    assert lines[-1] == {"time": "2026-03-04T10:00:05Z", "attempt": 0, "step": 11, "metrics": {"eval": None}}
    samples = read_run_files(tmp_path).samples
    assert [sample.step for sample in samples] == [*range(1, 12)]
    assert samples[-1].metrics["loss"] == 1.9
    assert samples[-1].time == datetime.fromisoformat("2026-03-04T10:00:05Z")


def test_many_values_between_two_points_are_the_characteristic_ones_and_their_mean(tmp_path: Path) -> None:
    log = ProgressLog(tmp_path / "p")
    log.note(with_records(status(0, 0), loss=0))
    for part in range(5):
        steps = range(10 * part + 1, 10 * part + 11)
        log.record(0, [values_of("loss", *((step / 100, step, float(step != 33)) for step in steps))])
    log.note(with_records(status(50, 2.0, loss=1.0), loss=50))
    lines = [json.loads(line) for line in (tmp_path / "p").read_text().splitlines()][1:]
    assert [(line["step"], line["metrics"]["loss"]) for line in lines] == [(1, 1.0), (33, 0.0), (50, 1.0)]
    assert lines[-1]["means"] == {"loss": 0.98}


def test_the_values_of_an_attempt_that_has_ended_are_not_lost(tmp_path: Path) -> None:
    log = ProgressLog(tmp_path / "p")
    log.note(with_records(status(5, 1, loss=1.0), loss=5))
    log.record(0, [values_of("loss", (1.2, 6, 0.5))])
    log.note(with_records(status(5, 9, attempt=1, loss=0.9), loss=5))
    assert recorded(tmp_path / "p") == [(0, 5), (0, 6), (1, 5)]


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "POINTS", 10)
    log = ProgressLog(tmp_path / "p")
    for step in range(10_000):
        log.note(status(step, step))
    assert 10 < len(recorded(tmp_path / "p")) < 100


def test_an_earlier_run_in_the_same_directory_is_replaced(tmp_path: Path) -> None:
    for step in (1, 2):
        ProgressLog(tmp_path / "p").note(status(step, 1))
    assert recorded(tmp_path / "p") == [(0, 2)]
    ProgressLog(tmp_path / "p").note(Status())  # also before a first step
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("distance", [0.7, 60.0])
def test_a_run_that_is_killed_at_any_time_has_one_last_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distance: float
) -> None:
    """The last point of the report is the progress in the job file. `distance`: seconds between two points."""
    monkeypatch.setattr(records, "SHORTEST_SECONDS", distance)

    run = LocalRun(job(roles={"worker": {}}, command=["train"]), Options(run_dir=tmp_path))
    for step in range(1, 40):
        run._state_file._interval = 0.0 if step % 3 == 0 else 3600.0
        run._apply(Plan(next=status(step, step * 0.5, loss=1 / step)))
        document = json.loads((tmp_path / "job.json").read_text())
        points = read_run_files(tmp_path).samples
        assert (points[-1].step, points[-1].metrics) == (
            document["status"]["progress"]["step"],
            document["status"]["progress"]["metrics"],
        )


def test_a_file_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    ProgressLog(tmp_path / "gone" / "p").note(status(3, 7))


def test_a_new_phase_or_attempt_is_stored_at_once_and_progress_now_and_then(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "job.json", job())

    def stored() -> tuple[str, int, int]:
        found = json.loads((tmp_path / "job.json").read_text())["status"]
        return found["phase"], found["attempt"], found["progress"]["step"]

    file.write_throttled(status(1, 1, phase="Pending"))
    file.write_throttled(status(2, 2, phase="Running"))
    assert stored() == ("Running", 0, 2)
    file.write_throttled(status(3, 3))
    assert stored() == ("Running", 0, 2)
    file.write_throttled(status(4, 4, attempt=1))
    assert stored() == ("Running", 1, 4)


def test_the_moment_in_the_file_is_kept_current_without_any_news(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(records, "ALIVE_INTERVAL_SECONDS", 0.01)
    quiet = Status(phase="Running", times=Times(category="Productive", since=NOW, productive=1.0))
    path = tmp_path / "job.json"

    async def until_written() -> None:
        current = asyncio.create_task(StateFile(path, job()).keep_current(lambda: quiet))
        async with asyncio.timeout(300):
            while not path.exists():
                await asyncio.sleep(0.01)
        current.cancel()

    asyncio.run(until_written())
    times = decode(Status, json.loads(path.read_text())["status"]).times
    assert times
    assert times.since > NOW
    assert times.productive == 1 + (times.since - NOW).total_seconds()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "code"
    directory.mkdir()
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "a")
        monkeypatch.setenv(f"{name}_EMAIL", "a@example.com")
    (directory / "train.py").write_text("1")
    for command in (["init", "-q"], ["add", "train.py"], ["commit", "-qm", "x"], ["tag", "-am", "v", "v1"]):
        subprocess.run(["git", *command], cwd=directory, check=True, capture_output=True)
    return directory


def commit_of(repository: Path) -> str:
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=repository, text=True).strip()


def stored(directory: Path) -> Any:
    file = directory.parent / "code.json"
    CodeVersion(directory).write(file, timeout=300)
    return json.loads(file.read_text()) if file.exists() else None


def test_the_commit_of_the_code_is_stored_and_whether_files_differ_from_it(repository: Path) -> None:
    assert stored(repository) == {"commit": commit_of(repository), "dirty": False}
    (repository / "notes.txt").write_text("not tracked")
    assert stored(repository) == {"commit": commit_of(repository), "dirty": False}
    (repository / "train.py").write_text("2")
    assert stored(repository) == {"commit": commit_of(repository), "dirty": True}


def test_what_tracked_files_differed_in_at_the_start_is_stored_and_new_files_are_named(repository: Path) -> None:
    file = repository.parent / "code.json"
    (repository / "train.py").write_text("2")
    (repository / "notes.txt").write_text("not tracked")
    (repository / "runs" / "a").mkdir(parents=True)
    (repository / "runs" / "a" / "job.json").write_text("{}")
    version = CodeVersion(repository)
    for process in [process for output in version._outputs for process in output._processes]:
        process.wait(300)
    (repository / "train.py").write_text("3")
    version.write(file, timeout=300)
    text = (repository.parent / "code.diff").read_text()
    assert text.startswith(f"# differences from commit {commit_of(repository)}\ndiff --git a/train.py b/train.py\n")
    assert "\n+2\n" in text
    assert text.endswith("# notes.txt is not shown: git does not track it\n")


def test_code_without_differences_has_no_file_of_them(repository: Path) -> None:
    CodeVersion(repository).write(repository.parent / "code.json", timeout=300)
    assert not (repository.parent / "code.diff").exists()


def test_code_outside_a_repository_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "code").mkdir()
    assert stored(tmp_path / "code") is None
    monkeypatch.setenv("PATH", "")
    assert stored(tmp_path / "code") is None


def test_a_slow_git_delays_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:/usr/bin:/bin")
    started = time.monotonic()
    CodeVersion(tmp_path, timeout=0.1).write(tmp_path / "code.json", timeout=0.1)
    assert time.monotonic() - started < 30, "git would sleep for 60 seconds"
    assert not (tmp_path / "code.json").exists()
