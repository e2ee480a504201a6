"""The parts of tools/test.py: every test is in one that runs at night, and in at most one that runs for each change."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from unit.processes import PROCESSES

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import parts  # noqa: E402

MARKERS = ("slow", "cluster", "e2e", "nightly", "processes")


@pytest.mark.parametrize("file", PROCESSES)
def test_the_tests_that_start_programs_for_each_change_exist(file):
    names = set(re.findall(r"^(?:async )?def (test_\w+)", (ROOT / "tests" / "unit" / file).read_text(), re.MULTILINE))
    assert PROCESSES[file] <= names


def chosen(part: parts.Part, marks: set[str]) -> bool:
    [command] = part.commands
    expression = str(command[command.index("-m", 3) + 1])
    return bool(eval(expression, {name: name in marks for name in (*MARKERS, "kueue", "scenario")}))


@pytest.mark.parametrize("marks", [(), ("processes",), ("nightly",), ("nightly", "processes")], ids=str)
@pytest.mark.parametrize("place", ["", "slow", "cluster"])
def test_every_test_runs_at_night_and_without_nightly_once_for_each_change(place, marks):
    marks = {*marks, place}
    every = [part for part in parts.EVERY_CHANGE[1:] if chosen(part, marks)]
    assert len(every) == ("nightly" not in marks)
    night = [parts.PARTS[name] for name in ("unit-all", "frameworks-all", "apiserver-all")]
    assert sum(chosen(part, marks) for part in night) == 1


def test_the_budget_of_a_change_is_about_ten_minutes():
    waiting = sum(part.minutes for part in parts.EVERY_CHANGE if part.waits)
    assert max(waiting, sum(part.minutes for part in parts.EVERY_CHANGE) - waiting) <= 12
