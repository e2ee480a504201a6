"""Every manifest in examples/ trains for real, with two or more ranks, through `allranks run`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from frameworks.examples.conftest import ROOT

pytestmark = pytest.mark.slow

PER_COMMIT = (
    *("penguins-pytorch", "penguins-tensorflow", "penguins-horovod"),
    *("penguins-mpi", "penguins-spmd"),
)
"""One example for each framework; ranks of JAX and Ray meet in test_jax.py and test_ray_cluster.py. The others run at
night."""
SWEEPS = ("penguins-sweep", "penguins-ray-tune")
"""test_sweep.py and test_ray_cluster.py run them."""
LOSS_ONLY = ("lm-transformers", "lora-trl")
"""They print no accuracy: test_strategies.py runs them."""
MANIFESTS = [
    pytest.param(name, marks=() if name in PER_COMMIT else pytest.mark.nightly)
    for name in sorted(path.stem for path in (ROOT / "examples").glob("*.yaml"))
    if name not in (*LOSS_ONLY, *SWEEPS)
]
RANKS = {
    "penguins-pytorch": 3,
    "penguins-preflight": 3,
    "rpc-parameter-server": 3,
    "rpc-model-parallel": 1,
    "penguins-tensorflow-model": 1,
}
"""Number of ranks that print an accuracy, if it is not two. With parameter servers only the chief does."""
PREDICT = (
    *("penguins-pytorch", "penguins-pytorch-elastic", "penguins-pytorch-watched", "penguins-horovod"),
    *("penguins-tensorflow", "penguins-tensorflow-ps"),
    *("penguins-horovod-keras", "penguins-horovod-elastic", "penguins-horovod-mpi", "rpc-model-parallel"),
)
"""They export the model, load it again, and predict a new penguin."""
ACCURACY = {"lm-pytorch": 0.35}
"""Of the next byte of a text. The others: 0.97."""


@pytest.mark.parametrize("name", MANIFESTS)
def test_an_example_trains_to_the_promised_accuracy_on_all_ranks(name, run_job, request) -> None:
    if "allranks/libraries:" in (ROOT / f"examples/{name}.yaml").read_text():
        request.getfixturevalue("libraries")
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
    assert accuracies[0] >= ACCURACY.get(name, 0.97)
    assert run.output.count("is predicted to be Gentoo") == (name in PREDICT)


@pytest.mark.nightly
def test_the_language_model_trains_with_fsdp2_and_saves_a_share_of_each_rank(run_job, tmp_path: Path) -> None:
    small = "args=[--epochs=1, --steps-per-epoch=2, --width=32, --layers=1, --context=32, --sample=10]"
    run = run_job("examples/lm-pytorch.yaml", "--set", small, "--volume", f"lm-pytorch={tmp_path / 'claim'}").finish()

    assert run.code == 0, run.output
    assert len(run.accuracies()) == 2
    assert "sample: The " in run.output
    [saved] = (tmp_path / "claim").glob("step-*")
    shares = sorted(path.name for path in saved.iterdir())
    assert shares == [".metadata", "__0_0.distcp", "__1_0.distcp", "progress.json"]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_an_elastic_job_with_fsdp2_continues_at_another_size_from_the_shares_of_all_ranks(run_job, tmp_path) -> None:
    """What the operator does when it resizes an elastic job: a new attempt with other ranks, on the same volume."""
    for ranks, epochs in ((2, 2), (3, 4), (1, 5)):
        small = f"args=[--epochs={epochs}, --steps-per-epoch=3, --width=32, --layers=2, --context=32, --sample=10]"
        sizes = ("--set", "elastic={minReplicas: 1, maxReplicas: 4}", "--set", f"roles.worker.replicas={ranks}")
        volume = f"lm-pytorch={tmp_path / 'claim'}"
        run = run_job("examples/lm-pytorch.yaml", "--set", small, *sizes, "--volume", volume).finish()
        assert run.code == 0, run.output
        assert len(run.accuracies()) == ranks
    assert "resumed from epoch 4 of" in run.output
    lines = [json.loads(line) for line in (tmp_path / "claim/metrics.jsonl").read_text().splitlines()]
    assert [line["world_size"] for line in lines] == [2, 2, 3, 3, 1]
    losses = [line["loss"] for line in lines]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.nightly
def test_checkpoints_metrics_and_the_loss_curve_are_in_the_claim(run_job, tmp_path: Path) -> None:
    claim = tmp_path / "claim"
    run = run_job("examples/penguins-pytorch.yaml", "--volume", f"penguins-pytorch={claim}").finish()

    assert run.code == 0, run.output
    lines = [json.loads(line) for line in (claim / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 21))
    assert lines[-1]["loss"] < lines[0]["loss"] / 2
    assert (claim / "loss.png").read_bytes().startswith(b"\x89PNG")
