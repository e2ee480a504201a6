"""The sweep of penguins finds a good network with real ranks, and stops a third of its trials early."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frameworks.examples.conftest import ROOT
from support.commands import allranks

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]


def test_a_sweep_of_penguins_finds_an_accurate_network_and_stops_a_third_of_the_trials(
    frameworks: Path, tmp_path: Path
) -> None:
    words = ("sweep", "examples/penguins-sweep.yaml", "-o", "json", "--run-dir", str(tmp_path / "run"))
    done = allranks(*words, folder=ROOT, programs=frameworks / "bin", seconds=1700)
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)["status"]
    assert (status["phase"], status["summary"]) == ("Succeeded", "12/12"), done.stderr
    assert status["best"]["value"] >= 0.97
    assert status["counts"]["stopped"] >= 4
    assert status["counts"]["failed"] == 0
