"""`tools/flakes.py`: tests that have failed run again, each alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import flakes  # noqa: E402
import junit  # noqa: E402
import parts  # noqa: E402

RESULT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_x" name="test_passes" time="0.1"/>
<testcase classname="tests.unit.test_x.TestIt" name="test_sometimes[a|b]" time="0.2"><failure message="assert 1 == 2">
long</failure></testcase>
<testcase classname="tests.unit.test_x" name="test_never" time="0.3"><error>boom
more</error></testcase>
</testsuite></testsuites>"""


@pytest.fixture(autouse=True)
def last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unit.xml").write_text(RESULT)
    monkeypatch.setattr(junit, "RESULTS", tmp_path)


def test_the_tests_of_a_run_have_their_file_name_and_first_failure():
    assert [case[1:] for case in junit.cases("unit")] == [
        ("tests/unit/test_x.py", "test_passes", ""),
        ("tests/unit/test_x.py", "TestIt::test_sometimes[a|b]", "assert 1 == 2"),
        ("tests/unit/test_x.py", "test_never", "boom\nmore"),
    ]


def test_the_table_says_which_tests_pass_alone(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["flakes.py"])
    monkeypatch.setattr(flakes, "again", lambda part, case: "passes" if "sometimes" in case.name else "fails again")
    flakes.main()
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| `tests/unit/test_x.py::TestIt::test_sometimes[a|b]` | passes | `assert 1 == 2` |",
        "| `tests/unit/test_x.py::test_never` | fails again | `boom` |",
    ]


def test_without_a_failed_test_there_is_no_table(tmp_path, monkeypatch, capsys):
    (tmp_path / "unit.xml").unlink()
    monkeypatch.setattr(sys, "argv", ["flakes.py"])
    flakes.main()
    assert capsys.readouterr().out == "No test has failed: look at the output of the run.\n"


def test_a_test_that_passes_alone_is_flaky():
    passes = junit.Case(0, "tests/unit/tools/test_workflows.py", "test_every_part_of_the_night_has_a_machine", "x")
    assert flakes.again(parts.PARTS["unit"], passes) == "**passes: flaky**"
    assert flakes.again(parts.PARTS["unit"], passes._replace(name="test_that_does_not_exist")) == "fails again"
