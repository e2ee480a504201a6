"""The importance of parameters: what decides has a large share, what does nothing has none."""

from __future__ import annotations

import random

import pytest

from allranks.api.sweep_status import Trial
from allranks.api.sweep_validation import parse_sweep
from allranks.core.sweeps.importance import MIN_TRIALS, importances
from unit.api.test_sweep import sweep

PARAMETERS = {
    "lr": {"logUniform": {"min": 0.0001, "max": 0.1}},
    "batch": {"values": [16, 32, 64]},
    "noise": {"uniform": {"min": 0, "max": 1}},
}
SPEC = parse_sweep(sweep(parameters=PARAMETERS, trials=50)).spec


def trials(seed: int, number: int, loss) -> list[Trial]:
    rng = random.Random(seed)
    out = []
    for place in range(number):
        lr, batch, noise = 10 ** rng.uniform(-4, -1), rng.choice([16, 32, 64]), rng.random()
        values = {"lr": f"{lr:.6g}", "batch": str(batch), "noise": f"{noise:.6g}"}
        phase = "Stopped" if place % 3 else "Succeeded"
        out.append(Trial(number=place, job=f"s-{place}", parameters=values, phase=phase, value=loss(lr, batch, noise)))
    return out


@pytest.mark.parametrize("seed", range(5))
def test_a_parameter_that_decides_alone_explains_nearly_all(seed: int):
    found = importances(SPEC, trials(seed, 60, lambda lr, batch, noise: lr))
    assert next(iter(found)) == "lr"
    assert found["lr"] > 0.85
    assert max(found["batch"], found["noise"]) < 0.2


@pytest.mark.parametrize("seed", range(5))
def test_a_best_value_in_the_middle_counts_as_well(seed: int):
    """A correlation would be zero."""
    found = importances(SPEC, trials(seed, 80, lambda lr, batch, noise: abs(noise - 0.5)))
    assert next(iter(found)) == "noise"
    assert found["noise"] > 0.5


def test_a_choice_is_grouped_by_its_values():
    found = importances(SPEC, trials(1, 60, lambda lr, batch, noise: batch + noise))
    assert found["batch"] > 0.8


def test_random_results_have_no_importance_on_average():
    rng = random.Random(3)
    means = [importances(SPEC, trials(seed, 40, lambda *_: rng.random()))["lr"] for seed in range(40)]
    assert sum(means) / len(means) < 0.08


def test_few_trials_and_equal_results_show_nothing():
    assert importances(SPEC, trials(1, MIN_TRIALS - 1, lambda lr, batch, noise: lr)) == {}
    assert set(importances(SPEC, trials(1, 20, lambda *_: 1.0)).values()) == {0.0}
