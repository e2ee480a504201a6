"""The steps that ranks record, as they are read while the ranks run."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.local.verify.watch import StepLogs, pattern_of
from allranks.report.step_log import StepLog


def test_each_report_is_read_once_with_the_process_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "3"), ("ALLRANKS_ROLE", "worker"), ("ALLRANKS_INDEX", "1"), ("ALLRANKS_ATTEMPT", "2")):
        monkeypatch.setenv(name, value)
    log, reader = StepLog(str(tmp_path)), StepLogs(tmp_path)
    log.write(None, {"loss": 9.0}, False)
    assert reader.new_lines() == [], "no step yet"
    log.write(1, {"loss": 0.1 + 0.2, "name": "text"}, False)
    (line,) = reader.new_lines()
    assert (line.step, line.rank, line.replica, line.attempt) == (1, 3, "worker-1", 2)
    assert line.metrics == {"loss": 0.1 + 0.2}, "every bit"
    log.write(2, {}, True)
    log.write(3, {"loss": float("nan")}, False)
    assert [line.step for line in reader.new_lines()] == [2, 3]
    assert reader.new_lines() == []


def test_a_line_that_is_not_complete_yet_is_read_later(tmp_path: Path) -> None:
    reader, path = StepLogs(tmp_path), tmp_path / "a.jsonl"
    path.write_text('{"pid": 7, "replica": "worker-0", "attempt": 0, "python": "python3"}\n{"time": 1.0, "ra')
    assert reader.new_lines() == []
    with path.open("a") as file:
        file.write('nk": null, "step": 5}\n')
    (line,) = reader.new_lines()
    assert (line.pid, line.step, line.rank_name) == (7, 5, "worker-0")


def test_names_that_differ_in_numbers_have_one_pattern() -> None:
    assert pattern_of("run-00001/epoch-7.claim-2.pt") == "run-#/epoch-#.claim-#.pt"
