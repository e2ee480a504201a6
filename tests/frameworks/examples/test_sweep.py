"""The sweep of penguins finds a good network with real ranks, and stops a third of its trials early."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from frameworks.examples.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]


def test_a_sweep_of_penguins_finds_an_accurate_network_and_stops_a_third_of_the_trials(
    frameworks: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "allranks", "sweep", "examples/penguins-sweep.yaml", "-o", "json"]
    environ = {**os.environ, "PATH": f"{frameworks}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        [*command, "--run-dir", str(tmp_path / "run")],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)["status"]
    assert (status["phase"], status["summary"]) == ("Succeeded", "12/12"), done.stderr
    assert status["best"]["value"] >= 0.97
    assert status["counts"]["stopped"] >= 4
    assert status["counts"]["failed"] == 0
