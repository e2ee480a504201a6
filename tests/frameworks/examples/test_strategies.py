"""Each row of docs/reference/frameworks.md with real ranks: a rank is killed, and the job resumes and succeeds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import strategies  # noqa: E402

from e2e import test_examples as on_nodes  # noqa: E402
from e2e import test_strategies as on_nodes_with_options  # noqa: E402


def test_the_page_has_every_row_and_none_is_wrong() -> None:
    text = strategies.PAGE.read_text()
    for framework in {case.framework for case in strategies.CASES}:
        rows = strategies.table(text, framework.lower())
        assert [row[0] for row in rows] == [case.strategy for case in strategies.CASES if case.framework == framework]
        assert not [row for row in rows if "WRONG" in row]


def test_each_row_has_a_test_on_nodes() -> None:
    """`tests/e2e` runs nightly; its results are the column "on nodes"."""
    tests = {*on_nodes.JOBS, *(case.strategy for case in on_nodes_with_options.CASES)}
    names = {case.manifest if strategies.is_of_manifest(case) else case.strategy for case in strategies.CASES}
    assert names - tests == set()


STATUS = {
    "phase": "Succeeded",
    "restarts": {"counted": 1},
    "roles": {"worker": {"desired": 2}},
    "lastFailure": {"role": "worker", "index": 1, "exitCode": 137},
}
LOG = "resumed from epoch 2 of /c (loss 0.5)\nrank 0 of 2: test accuracy 0.9\nrank 1 of 2: test accuracy 0.9\n"


@pytest.mark.parametrize(
    ("log", "status", "wrong"),
    [
        (LOG, STATUS, ""),
        (LOG, STATUS | {"phase": "Failed"}, "Failed"),
        (LOG, STATUS | {"restarts": {"counted": 2}}, "2 restarts"),
        (LOG, STATUS | {"lastFailure": {"role": "worker", "index": 0, "exitCode": 137}}, "names worker-0"),
        (LOG.replace("resumed", "started"), STATUS, "no checkpoint was resumed"),
        (LOG.replace("rank 1", "rank one"), STATUS, "1 ranks printed"),
    ],
)
def test_a_row_is_wrong_unless_the_job_did_all_that_it_must(log, status, wrong) -> None:
    row = strategies.Row(strategies.Case("PyTorch", "DDP", "lm-pytorch", victim="worker-1"))
    strategies.judge(row, log, status)
    assert bool(row.wrong) == bool(wrong)
    assert wrong in "".join(row.wrong)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1900)
@pytest.mark.parametrize("case", strategies.CASES, ids=lambda case: f"{case.framework}-{case.strategy}")
def test_a_killed_rank_of_each_strategy_resumes(
    case: strategies.Case, libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{libraries / 'bin'}:{os.environ['PATH']}")
    assert strategies.run(case, tmp_path / "job").wrong == []
