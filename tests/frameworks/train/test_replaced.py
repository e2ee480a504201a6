"""A replaced program ends as README.md says, with a line and its own exit code. And the snippets for other programs in
README.md work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from common.claims import EXIT_CODE, Claim, Replaced, newest_claim

from .launch import ROOT
from .test_checkpoints import names
from .test_records import epochs

RANK = """
import sys, threading
sys.path.insert(0, {train!r})
from argparse import Namespace
from pathlib import Path
from common.claims import Claim
from common.journal import Journal, Progress
directory = Path({directory!r})
options = Namespace(epochs=20, checkpoint_dir={checkpoints}, checkpoint_every=1, output_dir=directory)
journal = Journal(options, 0, 2, ".pt", "cpu")
progress = Progress(1, 8, [0.5], [0.5])
journal.begin(progress)
journal.end_epoch(progress, 0.5, 0.1, 8, lambda: b"weights")
if journal._store:
    journal._store.hold(2, b"late")
Claim(directory)
{then}
print("continued")
"""
WAYS = {
    "an epoch ends": 'journal.end_epoch(progress, 0.5, 0.1, 8, lambda: b"late")',
    "stopped by SIGTERM": 'journal.stop(progress, lambda: b"late")',
    "saves alone, in a thread": "t = threading.Thread(target=journal.save_alone); t.start(); t.join()",
    "the training is over": 'journal.finish(progress, 1.0, "late")',
    "the training begins": "journal.begin(progress)",
}


@pytest.mark.parametrize("then", WAYS.values(), ids=WAYS)
def test_a_replaced_training_ends_with_a_line_and_its_own_exit_code(then: str, tmp_path: Path) -> None:
    ended = run_rank(tmp_path / "claim", "directory", then)
    last = f"attempt 0 was replaced by a later start ({tmp_path}/claim/.claim-00002)"
    assert ended.stdout.splitlines()[-1] == f"rank 0 of 2: {last}: stopping, nothing more is written"
    assert (ended.returncode, ended.stderr) == (EXIT_CODE, "")
    assert names(tmp_path / "claim") == ["epoch-00001.claim-00001.pt", "metrics.jsonl"]
    assert epochs(tmp_path / "claim/metrics.jsonl") == [1]


def test_an_attempt_that_starts_late_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLRANKS_JOB_UID", "a")
    monkeypatch.setenv("ALLRANKS_ATTEMPT", "1")
    Claim(tmp_path)
    monkeypatch.setenv("ALLRANKS_ATTEMPT", "0")
    ended = run_rank(tmp_path, "directory", "")
    assert (ended.returncode, ended.stderr) == (EXIT_CODE, "")
    assert ended.stdout.splitlines() == [
        "rank 0 of 2: started on cpu",
        f"rank 0 of 2: attempt 0 was replaced by attempt 1 ({tmp_path}/.claim-00001): "
        "stopping, nothing more is written",
    ]
    assert [path.name for path in tmp_path.iterdir()] == [".claim-00001"]


def test_metrics_alone_are_fenced_too(tmp_path: Path) -> None:
    ended = run_rank(tmp_path, "None", WAYS["an epoch ends"])
    assert (ended.returncode, ended.stderr) == (EXIT_CODE, "")
    assert epochs(tmp_path / "metrics.jsonl") == [1]


def test_a_directory_with_two_names_is_claimed_once(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "claim")
    (tmp_path / "claim").mkdir()
    ended = run_rank(tmp_path / "claim", "directory.with_name('link')", "newest = 1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith("continued\n")
    assert newest_claim(tmp_path / "claim") == 2  # the claim of the journal, and that of the script


def run_rank(directory: Path, checkpoints: str, then: str) -> subprocess.CompletedProcess[str]:
    """Runs a journal in a process that is replaced after its first epoch and then executes `then`."""
    program = RANK.format(train=str(ROOT / "train"), directory=str(directory), checkpoints=checkpoints, then=then)
    return subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)


# The snippets for other programs in README.md.


def blocks() -> list[str]:
    section = (ROOT / "train/README.md").read_text().split("## Late writes")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_the_attempt_in_the_path_as_the_readme_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLRANKS_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("ALLRANKS_ATTEMPT", "11")
    for name in ("attempt-2/epoch-00009.pt", "attempt-10/epoch-00007.pt", "attempt-10/epoch-00008.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    scope: dict[str, Any] = {"os": os, "Path": Path}
    exec(blocks()[0], scope)
    assert scope["resume_from"] == tmp_path / "attempt-10/epoch-00008.pt"
    assert scope["folder"].is_dir()


def test_the_claim_as_the_readme_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLRANKS_CHECKPOINT_DIR", str(tmp_path))
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    scope: dict[str, Any] = {"os": os, "Path": Path, "Claim": Claim, "Replaced": Replaced, "EXIT_CODE": EXIT_CODE}
    exec(blocks()[1], scope | {"epoch": 7, "content": b"weights"})
    assert (names(tmp_path), exits) == (["epoch-00007.claim-00001.pt"], [])

    def replaced(claim: Claim, *_: object) -> None:
        Claim(tmp_path)
        claim.check()

    monkeypatch.setattr(Claim, "write", replaced)
    exec(blocks()[1], scope | {"epoch": 8, "content": b"weights"})
    assert (names(tmp_path), exits) == (["epoch-00007.claim-00001.pt"], [75])
