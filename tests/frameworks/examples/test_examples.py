"""Every manifest in examples/ trains for real, with two or more ranks, through `allranks run`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from frameworks.examples.conftest import ROOT

pytestmark = pytest.mark.slow

PER_COMMIT = (
    *("penguins-pytorch", "penguins-tensorflow", "penguins-tensorflow-ps", "penguins-horovod", "digits-jax"),
    *("penguins-mpi", "penguins-spmd"),
)
"""One example for each framework and kind of job. The others run every night."""
MANIFESTS = [
    pytest.param(name, marks=() if name in PER_COMMIT else pytest.mark.nightly)
    for name in sorted(path.stem for path in (ROOT / "examples").glob("*.yaml"))
]
RANKS = {"penguins-pytorch": 3}
"""Number of ranks that print an accuracy, if it is not two. With parameter servers only the chief does."""


@pytest.mark.parametrize("name", MANIFESTS)
def test_an_example_trains_to_the_promised_accuracy_on_all_ranks(name, run_job) -> None:
    if name.endswith("-mpi") and not shutil.which("mpirun"):
        pytest.skip("no mpirun on this machine (Debian: openmpi-bin)")
    run = run_job(f"examples/{name}.yaml").finish()

    assert run.code == 0, run.output
    assert run.status["phase"] == "Succeeded"
    assert run.status["restarts"]["counted"] == 0
    accuracies = run.accuracies()
    expected = 1 if name.endswith("-ps") else RANKS.get(name, 2)
    assert len(accuracies) == expected, run.output
    assert len(set(accuracies)) == 1, f"ranks disagree: {accuracies}"
    assert accuracies[0] >= 0.97


@pytest.mark.nightly
def test_checkpoints_metrics_and_the_loss_curve_are_in_the_claim(run_job, tmp_path: Path) -> None:
    claim = tmp_path / "claim"
    run = run_job("examples/penguins-pytorch.yaml", "--volume", f"penguins-pytorch={claim}").finish()

    assert run.code == 0, run.output
    lines = [json.loads(line) for line in (claim / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 21))
    assert lines[-1]["loss"] < lines[0]["loss"] / 2
    assert (claim / "loss.png").read_bytes().startswith(b"\x89PNG")
