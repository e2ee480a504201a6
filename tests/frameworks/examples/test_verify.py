"""`allranks verify` with real frameworks: a program that resumes well, its mistakes, and the examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frameworks.examples.conftest import ROOT
from support.commands import allranks

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

SECONDS = 1500


def verify(frameworks: Path, run_dir: Path, example: str, *options: str, status: int) -> dict[str, Any]:
    """Returns the page as JSON."""
    words = ("verify", example, "-o", "json", "--run-dir", str(run_dir), *options)
    done = allranks(*words, folder=ROOT, programs=frameworks / "bin", seconds=SECONDS)
    assert done.returncode == status, done.stdout + done.stderr
    page: dict[str, Any] = json.loads(done.stdout)
    return page


def test_a_program_that_resumes_well_is_trusted(frameworks: Path, tmp_path: Path) -> None:
    page = verify(frameworks, tmp_path / "run", "examples/verify/job.yaml", status=0)
    assert page["losses"]["worst"] == 0.0, "bit by bit: the sum of two ranks has one order"
    assert page["losses"]["compared"] > 0
    assert [file["result"] in ("equal", "same") for file in page["checkpoints"]] == [True]


@pytest.mark.parametrize(
    ("mistake", "words"),
    [("optimizer", "the state of the optimizer"), ("sampler", "the position of the sampler")],
)
def test_a_state_that_is_not_restored_is_found(frameworks: Path, tmp_path: Path, mistake: str, words: str) -> None:
    options = ("--kills", "2", "--", "--mistake", mistake)
    page = verify(frameworks, tmp_path / "run", "examples/verify/job.yaml", *options, status=1)
    assert page["losses"]["firstDifference"]["metric"] == "loss"
    assert words in page["hint"]


def test_a_checkpoint_that_is_written_in_place_is_torn(frameworks: Path, tmp_path: Path) -> None:
    """A kill in one of twenty saves comes in the middle."""
    options = ("--kills", "20", "--", "--mistake", "in-place")
    page = verify(frameworks, tmp_path / "run", "examples/verify/job.yaml", *options, status=1)
    assert any("the end of the zip archive is missing" in reason for reason in page["reasons"]), page


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("penguins-pytorch", ["--epochs=8", "--work=0.02"]),
        ("penguins-tensorflow", ["--epochs=8", "--work=0.02"]),
        ("penguins-spmd", ["--epochs=8", "--work=0.02"]),
        ("penguins-horovod", ["--epochs=8", "--work=0.02"]),
        ("digits-jax", ["--epochs=3"]),
    ],
)
def test_an_example_can_be_trusted_to_resume(frameworks: Path, tmp_path: Path, name: str, arguments: list[str]) -> None:
    options = ("--kills", "2", "--seed", "5", "--", *arguments)
    page = verify(frameworks, tmp_path / "run", f"examples/{name}.yaml", *options, status=0)
    assert page["losses"]["compared"] > 0
    assert page["kills"]
