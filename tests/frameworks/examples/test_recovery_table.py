"""The table of docs/reference/recovery.md is complete and correct, and real ranks recover as it says."""

from __future__ import annotations

import copy
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))

from recovery import page  # noqa: E402
from recovery.cases import FAULTS, FRAMEWORKS, Expected  # noqa: E402
from recovery.inject import EXCEPTION  # noqa: E402
from recovery.jobs import Trial  # noqa: E402
from recovery.processes import processes  # noqa: E402
from recovery.table import Cell, judge, run  # noqa: E402

FAULT = {fault.name: fault for fault in FAULTS}
FRAMEWORK = {framework.name: framework for framework in FRAMEWORKS}


def test_the_page_has_every_fault_of_every_framework_and_all_are_right() -> None:
    cells = page.read(page.PAGE.read_text())
    assert set(cells) == {(fault, framework) for fault in FAULT for framework in FRAMEWORK}
    assert [place for place, text in cells.items() if not text or "WRONG" in text] == []
    for (fault, framework), text in cells.items():
        expected = FAULT[fault].expected(FRAMEWORK[framework])
        if isinstance(expected, Expected):
            assert f"**{expected.verdict}**" in text
            assert re.search(r"<br>\d+\.\d s(<br>|$)", text), (fault, framework)
        else:
            assert text == expected


STATUS = {
    "phase": "Succeeded",
    "restarts": {"counted": 1},
    "history": [
        {
            "attempt": 0,
            "counted": True,
            "failure": {
                "pod": "job-worker-0-0",
                "role": "worker",
                "rank": 0,
                "exitCode": 137,
                "signal": 9,
                "reason": "Error",
            },
        },
        {"attempt": 1, "counted": False, "reason": "Completed"},
    ],
}
METRICS = [{"epoch": epoch, "loss": 1 / epoch} for epoch in (1, 2, 3, 4)]
TRIAL = Trial(seconds=3.0, epoch_before=2, resumed=(2, 0.5))


def judged(status: dict = STATUS, trial: Trial = TRIAL, metrics: list = METRICS) -> Cell:
    return judge(FRAMEWORK["TensorFlow"], FAULT["kill -9 of rank 0"], trial, 0, status, metrics)


def test_a_recovery_that_follows_the_rules_is_right() -> None:
    cell = judged()
    assert cell.wrong == []
    assert str(cell) == (
        "**Succeeded**<br>worker-0 (rank 0): signal 9, Error<br>1 counted<br>from epoch 2, loss 0.5000<br>3.0 s"
    )


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("phase",), "Failed"),
        (("history", 0, "counted"), False),
        (("history", 0, "failure", "rank"), 1),
        (("history", 0, "failure", "role"), "chief"),
        (("history", 0, "failure", "exitCode"), 1),
        (("history", 0, "failure", "signal"), 15),
        (("history", 0, "failure", "reason"), "Deleted"),
        (("history",), []),
    ],
    ids=str,
)
def test_a_status_that_contradicts_the_rules_is_wrong(where: tuple, value: object) -> None:
    status = copy.deepcopy(STATUS)
    place = status
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    cell = judged(status)
    assert cell.wrong
    assert str(cell).startswith("WRONG: ")


def test_the_cause_of_an_exception_is_the_rank_that_raised_with_its_last_lines() -> None:
    def wrong(**fields: object) -> list[str]:
        failure = {"pod": "job-launcher-0-0", "role": "launcher", "index": 0, "rank": 1, "exitCode": 1}
        failure |= {"reason": "Error", "message": EXCEPTION, **fields}
        status = {**STATUS, "history": [{"counted": True, "failure": failure}], "lastFailure": failure}
        return judge(FRAMEWORK["Horovod-MPI"], FAULT["an exception"], TRIAL, 0, status, METRICS).wrong

    assert wrong() == []
    assert wrong(message="HorovodInternalError") == ["its last lines do not show the cause"]
    assert wrong(rank=0) == ["expected root cause rank 1"]


def test_work_that_must_survive_may_not_be_lost() -> None:
    failure = {"pod": "job-worker-1-0", "role": "worker", "index": 1, "rank": 2, "exitCode": 137, "signal": 9}
    status = {
        "phase": "Succeeded",
        "attempt": 0,
        "restarts": {"counted": 1},
        "lastFailure": failure | {"reason": "Error"},
    }

    def of(trial: Trial, **more: object) -> Cell:
        return judge(FRAMEWORK["TensorFlow-PS"], FAULT["kill -9 of another rank"], trial, 0, status | more, METRICS)

    assert of(Trial(seconds=0.5)).wrong == []
    assert "nothing lost" in str(of(Trial(seconds=0.5)))
    assert of(TRIAL).wrong == ["a checkpoint was read"]
    assert of(Trial(seconds=0.5), attempt=1).wrong == ["attempt 1 was started"]


@pytest.mark.parametrize(
    ("why", "trial", "metrics"),
    [
        ("did not resume", Trial(seconds=3.0, epoch_before=2), METRICS),
        ("epoch 2 was done", Trial(seconds=3.0, epoch_before=2, resumed=(1, 1.0)), METRICS),
        ("resumed with loss 0.6", Trial(seconds=3.0, epoch_before=2, resumed=(2, 0.6)), METRICS),
        ("metrics.jsonl", TRIAL, [METRICS[0], METRICS[1], METRICS[1], METRICS[2]]),
        ("a fresh start", TRIAL, [*METRICS[:2], {"epoch": 3, "loss": 1.1}]),
        ("training did not continue", Trial(epoch_before=2, problem="training did not continue"), METRICS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_training_that_does_not_continue_where_it_was_is_wrong(why: str, trial: Trial, metrics: list) -> None:
    assert any(why in wrong for wrong in judged(trial=trial, metrics=metrics).wrong)


def test_cells_that_were_run_replace_those_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    page.PAGE.write_text("before\n<!-- faults --><!-- /faults -->\n<!-- table --><!-- /table -->\nafter\n")
    one, other = FRAMEWORKS[0].name, FRAMEWORKS[1].name
    page.write([Cell(one, FAULTS[0].name, none="old"), Cell(other, FAULTS[0].name, none="kept")])
    page.write([Cell(one, FAULTS[0].name, none="new | newest")])
    text = page.PAGE.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    found = page.read(text)
    assert (found[FAULTS[0].name, one], found[FAULTS[0].name, other]) == ("new | newest", "kept")
    assert found[FAULTS[1].name, one] == ""


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("framework", "fault"),
    [
        ("TensorFlow", "kill -9 of rank 0"),
        ("Horovod", "kill -9 of rank 0"),
        ("PyTorch", "an exception"),
        ("TensorFlow-PS", "kill -9 of another rank"),
        ("Horovod-elastic", "kill -9 of another rank"),
        ("JAX", "kill -9 of rank 0"),
    ],
)
def test_real_ranks_recover(
    framework: str, fault: str, frameworks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{frameworks / 'bin'}:{os.environ['PATH']}")
    [cell] = run(FRAMEWORK[framework], [FAULT[fault]], tmp_path, print)
    assert cell.wrong == []
    assert cell.seconds
    [job] = tmp_path.glob("job-*")
    assert processes(f"ALLRANKS_CHECKPOINT_DIR={job / 'claim'}") == []
